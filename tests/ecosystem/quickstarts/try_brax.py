"""brax: steps of a physical environment, and their gradient."""

import jax
import jax.numpy as jnp
from brax import envs
from parts import show

env = envs.get_environment("inverted_pendulum", backend="generalized")
state = jax.jit(env.reset)(jax.random.PRNGKey(0))
show("reset", state.obs)
step = jax.jit(env.step)
for _ in range(3):
    state = step(state, jnp.array([0.3]))
show("steps", state.obs, state.reward)
