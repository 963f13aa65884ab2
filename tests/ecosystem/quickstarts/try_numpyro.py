"""numpyro: the posterior of a regression by NUTS, and a guide by SVI."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO, log_likelihood
from numpyro.infer.autoguide import AutoNormal
from parts import show

x = jnp.linspace(-1, 1, 12)
y = 0.5 + 2 * x + 0.1 * jnp.sin(7 * x)


def model(x, y=None):
    slope, offset = numpyro.sample("slope", dist.Normal(0, 3)), numpyro.sample("offset", dist.Normal(0, 3))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(offset + slope * x, noise), obs=y)


values = {"slope": jnp.array([2.0]), "offset": jnp.array([0.4]), "noise": jnp.array([0.2])}
show("likelihood", log_likelihood(model, values, x, y)["y"])
show("prior", dist.HalfNormal(1).log_prob(0.3), dist.Normal(0, 3).sample(jax.random.key(0), (3,)))
mcmc = MCMC(NUTS(model), num_warmup=200, num_samples=200, progress_bar=False)
mcmc.run(jax.random.key(1), x, y)
posterior = mcmc.get_samples()
show("posterior ~0.03", posterior["slope"].mean(), posterior["offset"].mean(), posterior["noise"].mean())
guide = AutoNormal(model)
found = SVI(model, guide, numpyro.optim.Adam(0.02), Trace_ELBO()).run(jax.random.key(2), 50, x, y, progress_bar=False)
show("guide", found.losses[::10])
