"""lineax: linear systems by several solvers, and their derivatives."""

import jax
import jax.numpy as jnp
import lineax as lx
from parts import show

a = jnp.sin(jnp.arange(9.0)).reshape(3, 3) + 3 * jnp.eye(3)
b = jnp.arange(3.0)
show("lu", lx.linear_solve(lx.MatrixLinearOperator(a), b, lx.LU()).value)
spd = lx.MatrixLinearOperator(a @ a.T, lx.positive_semidefinite_tag)
show("cg", lx.linear_solve(spd, b, lx.CG(1e-6, 1e-6)).value)
tall = jnp.cos(jnp.arange(12.0) ** 2).reshape(4, 3)
show("qr", lx.linear_solve(lx.MatrixLinearOperator(tall), jnp.ones(4), lx.QR()).value)
show("gradient", jax.grad(lambda b: lx.linear_solve(lx.MatrixLinearOperator(a), b).value.sum())(b))
