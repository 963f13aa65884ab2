"""jaxns: priors, densities, and the evidence of a model by nested sampling."""

import jax
import jax.numpy as jnp
from jaxns.core import NestedSampler
from jaxns.model import Model
from jaxns.priors import Prior
from parts import show
from tensorflow_probability.substrates import jax as tfp

jax.config.update("jax_enable_x64", True)
tfpd = tfp.distributions


def prior_model(predictor, observations, uncertainty):
    intercept = Prior(tfpd.Normal(loc=0.0, scale=1.0), name="intercept").realise()
    slope = Prior(tfpd.Normal(loc=0.0, scale=2.0), name="slope").realise()
    prediction = intercept + slope * predictor
    return jnp.sum(tfpd.Normal(loc=prediction, scale=uncertainty).log_prob(observations))


model = Model(prior_model=prior_model)
args = (jnp.linspace(0.0, 1.0, 6), jnp.asarray([0.15, 0.32, 0.83, 1.08, 1.52, 1.77]), jnp.asarray(0.15))
model.sanity_check(key=jax.random.PRNGKey(1), args=args)
point = model.sample_U(key=jax.random.PRNGKey(0), args=args)
show("sample", *jax.tree.leaves(point))
show("transform", *jax.tree.leaves(model.transform_to_X(point, args=args)))
show("densities", model.log_likelihood(point, args=args), model.log_prior(point, args=args))
show("gradient", *jax.tree.leaves(jax.grad(lambda u: model.log_likelihood(u, args=args))(point)))

state = NestedSampler(model=model, collect_phantom_samples=True).run(key=jax.random.PRNGKey(6), args=args)
results = state.to_result().trim()
show("evidence ~0.3", results.log_Z_mean)
show("uncertainty ~0.1", results.log_Z_uncert)
posterior = results.resample(500, key=jax.random.PRNGKey(7))
means = [posterior.integrate_fn_over_posterior(lambda x, name=name: x[name]) for name in ("intercept", "slope")]
show("posterior ~0.15", *means)
