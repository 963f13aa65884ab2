"""jax-md: energy, forces and a trajectory of particles in a periodic box."""

import jax
import jax.numpy as jnp
from jax_md import energy, minimize, simulate, space
from parts import show

displacement, shift = space.periodic(4.0)
places = jnp.stack(jnp.meshgrid(jnp.arange(3.0), jnp.arange(3.0)), -1).reshape(-1, 2) * 1.3 + 0.05
places = places + 0.05 * jnp.sin(jnp.arange(18.0)).reshape(9, 2)
total = energy.soft_sphere_pair(displacement, sigma=1.5)
show("energy", total(places), jax.grad(total)(places)[0])
init, step = minimize.fire_descent(total, shift)
state = jax.lax.fori_loop(0, 10, lambda k, s: step(s), init(places))
show("minimum", total(state.position))
init, step = simulate.nve(total, shift, 1e-3)
state = init(jax.random.key(0), places, kT=0.1)
moved = jax.lax.fori_loop(0, 20, lambda k, s: step(s), state)
show("trajectory", moved.position[0], moved.momentum[0])
