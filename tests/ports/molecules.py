"""Molecular dynamics in a periodic box: forces as gradients, velocity Verlet, energy kept, positions minimized."""

from collections import namedtuple

import jax
import jax.numpy as jnp
from jax import grad, lax, random, vmap

Particles = namedtuple("Particles", ["position", "velocity", "force"])
BOX = 4.0


def displacement(a, b):
    return jnp.mod(a - b + BOX * 0.5, BOX) - BOX * 0.5


def soft_sphere(r, sigma=1.0, epsilon=10.0):
    overlap = jnp.where(r < sigma, 1.0 - r / sigma, 0.0)
    return epsilon / 2.0 * overlap**2


def pair_energy(positions):
    apart = vmap(vmap(displacement, (None, 0)), (0, None))(positions, positions)
    square = jnp.sum(apart**2, axis=-1)
    mask = 1.0 - jnp.eye(positions.shape[0])
    # the root has no derivative at 0, where a particle meets itself
    r = jnp.sqrt(jnp.where(mask > 0, square, 1.0))
    return 0.5 * jnp.sum(mask * soft_sphere(r))


force_fn = jax.jit(lambda positions: -grad(pair_energy)(positions))


def verlet(state, dt):
    velocity = state.velocity + 0.5 * dt * state.force
    position = jnp.mod(state.position + dt * velocity, BOX)
    force = force_fn(position)
    return Particles(position, velocity + 0.5 * dt * force, force)


def simulate(state, steps, dt=0.02):
    def body(state, _):
        state = verlet(state, dt)
        return state, pair_energy(state.position) + 0.5 * jnp.sum(state.velocity**2)

    return lax.scan(body, state, None, length=steps)


def descend(positions, steps):
    return lax.fori_loop(0, steps, lambda i, p: jnp.mod(p + 0.02 * force_fn(p), BOX), positions)


def main(wrap):
    key_r, key_v = random.split(random.PRNGKey(10))
    positions = random.uniform(key_r, (10, 2), maxval=BOX)
    state = Particles(positions, 0.3 * random.normal(key_v, (10, 2)), force_fn(positions))
    state, energies = wrap(lambda s: simulate(s, 12))(state)
    relaxed = wrap(lambda p: descend(p, 20))(positions)
    hessian = wrap(jax.hessian(lambda p: pair_energy(p.reshape(-1, 2))))(relaxed[:3].ravel())
    return {"energies": energies, "position": state.position, "relaxed": pair_energy(relaxed), "hessian": hessian}
