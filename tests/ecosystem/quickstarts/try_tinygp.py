"""tinygp: the likelihood and the prediction of a Gaussian process."""

import jax
import jax.numpy as jnp
from parts import show
from tinygp import GaussianProcess, kernels

x = jnp.linspace(0, 3, 8)
y = jnp.sin(2 * x)


def likelihood(params):
    kernel = jnp.exp(params[0]) * kernels.Matern32(jnp.exp(params[1]))
    return GaussianProcess(kernel, x, diag=0.01).log_probability(y)


params = jnp.array([0.1, -0.2])
show("likelihood", likelihood(params), jax.grad(likelihood)(params))
gp = GaussianProcess(kernels.ExpSquared(0.8), x, diag=0.01)
found = gp.condition(y, jnp.array([0.5, 1.7])).gp
show("prediction", found.mean, found.variance)
