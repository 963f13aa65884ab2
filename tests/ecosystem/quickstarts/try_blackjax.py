"""blackjax: Hamiltonian Monte Carlo, NUTS and window adaptation."""

import blackjax
import jax
import jax.numpy as jnp
from parts import show


def log_density(x):
    return -0.5 * (x["a"] ** 2 + (x["b"] - 1) ** 2 / 0.25).sum()


start = {"a": jnp.zeros(2), "b": jnp.ones(())}
hmc = blackjax.hmc(log_density, 0.1, jnp.ones(3), 10)
state = hmc.init(start)
step = jax.jit(hmc.step)
for k in range(5):
    state, info = step(jax.random.key(k), state)
show("hmc", state.position["a"], state.position["b"], info.acceptance_rate)
warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
(state, parameters), _ = warmup.run(jax.random.key(7), start, num_steps=200)
nuts = blackjax.nuts(log_density, **parameters)


@jax.jit
def sampled(state, keys):
    def one(state, key):
        state, _ = nuts.step(key, state)
        return state, state.position["b"]

    return jax.lax.scan(one, state, keys)[1]


draws = sampled(state, jax.random.split(jax.random.key(8), 400))
show("nuts ~0.1", draws.mean(), draws.std())
