"""A Kepler orbit in float64: JAX's setting of 64 bits, for a block, with symplectic and adaptive steps."""

import jax
import jax.numpy as jnp
from jax import lax


def energy(q, p):
    return 0.5 * jnp.sum(p**2) - 1.0 / jnp.linalg.norm(q)


def leapfrog(state, dt):
    q, p = state
    force = -jax.grad(energy)(q, p)
    p = p + 0.5 * dt * force
    q = q + dt * jax.grad(energy, argnums=1)(q, p)
    return q, p - 0.5 * dt * jax.grad(energy)(q, p)


def kepler(eccentricity, mean):
    def body(state):
        anomaly, _, count = state
        step = (anomaly - eccentricity * jnp.sin(anomaly) - mean) / (1 - eccentricity * jnp.cos(anomaly))
        return anomaly - step, jnp.abs(step), count + 1

    return lax.while_loop(lambda state: state[1] > 1e-12, body, (mean, jnp.inf, 0))


def main(wrap):
    with jax.enable_x64(True):
        e = 0.3
        start = jnp.array([1 - e, 0.0]), jnp.array([0.0, jnp.sqrt((1 + e) / (1 - e))])

        @wrap
        def run(state):
            return lax.scan(lambda s, dt: (leapfrog(s, dt), energy(*s)), state, jnp.full(20, 0.05))

        (q, p), energies = run(start)
        anomaly, _, count = wrap(kepler)(e, 1.0)
        noise = jax.random.normal(jax.random.key(0), (2,))
        dice = jax.random.randint(jax.random.PRNGKey(1), (3,), 0, 6)
        return {
            "q": q, "p": p, "drift": energies[-1] - energies[0], "anomaly": anomaly, "count": count, "noise": noise,
            "dice": dice, "ratio": jnp.arange(3) / 7, "hessian": jax.hessian(energy)(q, p), "eye": jnp.eye(2),
        }  # fmt: skip
