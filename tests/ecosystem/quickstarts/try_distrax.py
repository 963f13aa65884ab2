"""distrax: densities, samples and bijectors."""

import distrax
import jax
import jax.numpy as jnp
from parts import show

normal = distrax.MultivariateNormalDiag(jnp.array([0.0, 1.0]), jnp.array([1.0, 2.0]))
show("normal", normal.log_prob(jnp.ones(2)), normal.entropy(), normal.sample(seed=jax.random.key(0), sample_shape=3))
mixture = distrax.MixtureSameFamily(
    distrax.Categorical(probs=jnp.array([0.3, 0.7])), distrax.Normal(jnp.array([-1.0, 1.0]), jnp.ones(2))
)
show("mixture", jax.vmap(mixture.log_prob)(jnp.linspace(-2, 2, 5)), mixture.mean())
flow = distrax.Transformed(distrax.Normal(0.0, 1.0), distrax.Chain([distrax.ScalarAffine(1.0, 2.0), distrax.Tanh()]))
show("flow", flow.log_prob(jnp.array(0.5)), jax.grad(flow.log_prob)(0.5))
show("divergence", distrax.Normal(0.0, 1.0).kl_divergence(distrax.Normal(1.0, 2.0)))
