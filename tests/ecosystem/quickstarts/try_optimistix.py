"""optimistix: roots, minima, least squares, and a derivative through a root."""

import jax
import jax.numpy as jnp
import optimistix as optx
from parts import show

root = lambda y, args: jnp.array([y[0] ** 2 + y[1] - args, y[0] - y[1]])
newton = optx.Newton(1e-6, 1e-6)
show("root", optx.root_find(root, newton, jnp.ones(2), 2.0).value)
show("derivative", jax.jacobian(lambda c: optx.root_find(root, newton, jnp.ones(2), c).value)(2.0))
show("minimum", optx.minimise(lambda y, _: ((y - 2) ** 2).sum(), optx.BFGS(1e-6, 1e-6), jnp.zeros(2)).value)
x = jnp.linspace(0, 1, 8)
residual = lambda p, _: p[0] * jnp.exp(-p[1] * x) - 2 * jnp.exp(-3 * x)
show("least squares", optx.least_squares(residual, optx.LevenbergMarquardt(1e-6, 1e-6), jnp.ones(2)).value)
