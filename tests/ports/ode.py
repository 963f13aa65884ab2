"""An adaptive Runge-Kutta solver in a while_loop, its adjoint as a custom_vjp, and forward sensitivities by jvp."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

C = [
    [0.0],
    [1 / 4],
    [3 / 32, 9 / 32],
    [1932 / 2197, -7200 / 2197, 7296 / 2197],
    [439 / 216, -8.0, 3680 / 513, -845 / 4104],
]
C.append([-8 / 27, 2.0, -3544 / 2565, 1859 / 4104, -11 / 40])
HIGH = jnp.array([16 / 135, 0.0, 6656 / 12825, 28561 / 56430, -9 / 50, 2 / 55])
LOW = jnp.array([25 / 216, 0.0, 1408 / 2565, 2197 / 4104, -1 / 5, 0.0])


def step(f, y, dt):
    ks = [f(y)]
    for row in C[1:]:
        ks.append(f(y + dt * sum(a * k for a, k in zip(row, ks))))
    k = jnp.stack(ks)
    return y + dt * (HIGH @ k), dt * jnp.max(jnp.abs((HIGH - LOW) @ k))


def solve(f, y, end, tolerance):
    def unfinished(state):
        _, t, _, count = state
        return (t < end) & (count < 200)

    def advance(state):
        y, t, dt, count = state
        dt = jnp.minimum(dt, end - t)
        new, error = step(f, y, dt)
        good = error <= tolerance
        factor = jnp.clip(0.9 * (tolerance / jnp.maximum(error, 1e-10)) ** 0.2, 0.2, 4.0)
        return jnp.where(good, new, y), jnp.where(good, t + dt, t), dt * factor, count + 1

    y, _, _, count = lax.while_loop(unfinished, advance, (y, 0.0, 0.1, 0))
    return y, count


@partial(jax.custom_vjp, nondiff_argnums=(0, 3, 4))
def odeint(f, y, args, end, tolerance):
    return solve(lambda y: f(y, args), y, end, tolerance)[0]


def odeint_fwd(f, y, args, end, tolerance):
    out = odeint(f, y, args, end, tolerance)
    return out, (out, args)


def odeint_bwd(f, end, tolerance, residuals, ct):
    y, args = residuals
    start, unravel = ravel_pytree((y, ct, jax.tree.map(jnp.zeros_like, args)))

    def backwards(flat):
        y, ct, _ = unravel(flat)
        dy, pull = jax.vjp(f, y, args)
        ct_y, ct_args = pull(ct)
        return ravel_pytree((-dy, ct_y, ct_args))[0]

    _, ct_y, ct_args = unravel(solve(backwards, start, end, tolerance)[0])
    return ct_y, ct_args


odeint.defvjp(odeint_fwd, odeint_bwd)


def field(y, args):
    return jnp.array([y[1], -args["k"] * y[0] - args["damping"] * y[1]])


def main(wrap):
    y, args = jnp.array([1.0, 0.0]), {"k": jnp.float32(2.0), "damping": jnp.float32(0.3)}
    end = wrap(lambda y, args: odeint(field, y, args, 2.0, 1e-4))(y, args)
    loss = lambda y, args: jnp.sum(odeint(field, y, args, 2.0, 1e-4) ** 2)
    grads = wrap(jax.grad(loss, argnums=(0, 1)))(y, args)
    forward = lambda k: solve(lambda y: field(y, {"k": k, "damping": 0.3}), y, 2.0, 1e-4)[0]
    tangent = wrap(lambda k: jax.jvp(forward, (k,), (jnp.ones_like(k),))[1])(jnp.float32(2.0))
    return {"end": end, "grads": grads, "tangent": tangent}
