"""diffrax: a differential equation, dense output, and the gradient through the solver."""

import diffrax
import jax
import jax.numpy as jnp
from parts import show

term = diffrax.ODETerm(lambda t, y, k: jnp.array([y[1], -k * y[0]]))
times = jnp.linspace(0, 2, 5)


def solved(k):
    return diffrax.diffeqsolve(
        term, diffrax.Tsit5(), 0, 2, 0.1, jnp.array([1.0, 0.0]), args=k, saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-7),
    )  # fmt: skip


show("solution", solved(2.0).ys)
show("gradient", jax.grad(lambda k: solved(k).ys[-1, 0])(2.0))
fixed = diffrax.diffeqsolve(term, diffrax.Heun(), 0, 1, 0.05, jnp.array([1.0, 0.0]), args=1.0)
show("fixed steps", fixed.ys)
