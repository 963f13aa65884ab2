"""Equinox: a module as a pytree, filtered transformations, and training."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from parts import show

x = jnp.sin(jnp.arange(24.0)).reshape(6, 4)
model = eqx.nn.MLP(4, 1, 8, 2, key=jax.random.key(0))
show("first", jax.vmap(model)(x))
optimizer = optax.adam(1e-2)
state = optimizer.init(eqx.filter(model, eqx.is_array))


@eqx.filter_jit
def step(model, state):
    value, grads = eqx.filter_value_and_grad(lambda m: ((jax.vmap(m)(x) - 1) ** 2).mean())(model)
    updates, state = optimizer.update(grads, state)
    return eqx.apply_updates(model, updates), state, value


losses = []
for _ in range(5):
    model, state, value = step(model, state)
    losses.append(value)
show("losses", losses)
show("attention", eqx.nn.MultiheadAttention(2, 4, key=jax.random.key(1))(x, x, x))
