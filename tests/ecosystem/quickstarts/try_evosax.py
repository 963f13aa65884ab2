"""evosax: an evolution strategy on a quadratic function."""

import jax
import jax.numpy as jnp
from evosax.algorithms import Open_ES
from parts import show

strategy = Open_ES(population_size=32, solution=jnp.zeros(4))
params = strategy.default_params
state = strategy.init(jax.random.key(0), jnp.zeros(4), params)


@jax.jit
def generation(state, key):
    ask, tell = jax.random.split(key)
    population, state = strategy.ask(ask, state, params)
    fitness = ((population - 1.0) ** 2).sum(-1)
    return strategy.tell(tell, population, fitness, state, params)[0], fitness.min()


best = []
for k in range(20):
    state, value = generation(state, jax.random.key(k + 1))
    best.append(value)
show("best", best)
show("mean", state.mean)
