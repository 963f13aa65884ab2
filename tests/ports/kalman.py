"""A Kalman filter, once as a scan and once as an associative scan, and the gradient of its likelihood."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random


class State(NamedTuple):
    mean: jax.Array
    cov: jax.Array


class Model(NamedTuple):
    transition: jax.Array
    process: jax.Array
    emission: jax.Array
    noise: jax.Array


def model(dt, scale):
    return Model(
        transition=jnp.array([[1.0, dt], [0.0, 1.0]]),
        process=scale * jnp.array([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]]),
        emission=jnp.array([[1.0, 0.0]]),
        noise=jnp.eye(1) * 0.3,
    )


def filtered(m, initial, ys):
    def step(carry, y):
        state, total = carry
        mean = m.transition @ state.mean
        cov = m.transition @ state.cov @ m.transition.T + m.process
        innovation = y - m.emission @ mean
        s = m.emission @ cov @ m.emission.T + m.noise
        gain = jnp.linalg.solve(s, m.emission @ cov).T
        sign, logdet = jnp.linalg.slogdet(2 * jnp.pi * s)
        total = total - 0.5 * (innovation @ jnp.linalg.solve(s, innovation) + sign * logdet)
        state = State(mean + gain @ innovation, cov - gain @ s @ gain.T)
        return (state, total), state

    (_, total), states = lax.scan(step, (initial, 0.0), ys)
    return states, total


def discounted(ys, decay):
    """The sums of past values, each weighted less, by an associative function of pairs."""

    def combine(a, b):
        return a[0] * b[0], b[0] * a[1] + b[1]

    return lax.associative_scan(combine, (jnp.full(ys.shape, decay), ys))[1]


def main(wrap):
    ys = jnp.cumsum(random.normal(random.PRNGKey(3), (10, 1)), axis=0)
    initial = State(jnp.zeros(2), jnp.eye(2))
    run = wrap(lambda scale: filtered(model(0.5, scale), initial, ys))
    states, total = run(jnp.float32(0.2))
    slope = wrap(jax.grad(lambda scale: filtered(model(0.5, scale), initial, ys)[1]))(0.2)
    return {
        "means": states.mean, "covs": states.cov[-1], "likelihood": total, "slope": slope, "sums": discounted(ys, 0.9)
    }  # fmt: skip
