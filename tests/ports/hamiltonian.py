"""Hamiltonian Monte Carlo for a correlated normal distribution: leapfrog steps in a fori_loop, chains by vmap."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.scipy.stats import multivariate_normal

MEAN = jnp.array([1.0, -0.5])
COV = jnp.array([[1.0, 0.6], [0.6, 0.8]])


def log_density(q):
    return multivariate_normal.logpdf(q, MEAN, COV)


def leapfrog(q, p, step_size, steps):
    force = jax.grad(log_density)

    def body(_, state):
        q, p = state
        q = q + step_size * p
        return q, p + step_size * force(q)

    p = p + 0.5 * step_size * force(q)
    q, p = lax.fori_loop(0, steps - 1, body, (q, p))
    q = q + step_size * p
    return q, p + 0.5 * step_size * force(q)


def transition(q, key, step_size, steps):
    key_p, key_u = random.split(key)
    p = random.normal(key_p, q.shape, dtype=q.dtype)
    new_q, new_p = leapfrog(q, p, step_size, steps)
    energy = -log_density(q) + 0.5 * jnp.vdot(p, p)
    new_energy = -log_density(new_q) + 0.5 * jnp.vdot(new_p, new_p)
    accept = jnp.log(random.uniform(key_u)) < energy - new_energy
    return jnp.where(accept, new_q, q), accept


@partial(jax.jit, static_argnums=(2,))
def chain(key, q, count):
    def body(q, key):
        q, accepted = transition(q, key, 0.3, 5)
        return q, (q, accepted)

    _, (samples, accepted) = lax.scan(body, q, random.split(key, count))
    return samples, accepted.mean()


def main(wrap):
    keys = random.split(random.PRNGKey(2), 3)
    samples, rate = wrap(jax.vmap(lambda key: chain(key, jnp.zeros(2), 6)))(keys)
    return {"samples": samples, "rate": rate, "moments": jnp.cov(samples.reshape(-1, 2).T)}
