"""gymnax: an episode of the pole in one scan, and a batch of environments."""

import gymnax
import jax
import jax.numpy as jnp
from parts import show

env, params = gymnax.make("CartPole-v1")
obs, state = env.reset(jax.random.key(0), params)
show("reset", obs)


def step(carry, key):
    obs, state = carry
    obs, state, reward, done, *_ = env.step(key, state, (obs[2] > 0).astype(jnp.int32), params)
    return (obs, state), (obs, reward, done)


keys = jax.random.split(jax.random.key(1), 30)
observations, rewards, dones = jax.jit(lambda c, k: jax.lax.scan(step, c, k))((obs, state), keys)[1]
show("episode", observations[9], rewards.sum(), dones.sum())
show("batch", jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(2), 3), params)[0])
