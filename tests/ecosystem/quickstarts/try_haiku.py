"""haiku: a convolutional network with batch norm and dropout, and an LSTM."""

import haiku as hk
import jax
import jax.numpy as jnp
from parts import show


def network(x, train):
    x = hk.Conv2D(4, 3)(x)
    x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(x, train))
    x = hk.dropout(hk.next_rng_key(), 0.5, x) if train else x
    return hk.nets.MLP([8, 3])(x.mean((1, 2)))


x = jnp.sin(jnp.arange(2 * 5 * 5 * 2.0)).reshape(2, 5, 5, 2)
model = hk.transform_with_state(network)
params, state = model.init(jax.random.PRNGKey(0), x, True)
out, state = model.apply(params, state, jax.random.PRNGKey(1), x, True)
show("training", out)
show("evaluation", model.apply(params, state, None, x, False)[0])
grads = jax.grad(lambda p: model.apply(p, state, jax.random.PRNGKey(2), x, True)[0].sum())(params)
show("gradient", jax.tree.leaves(jax.tree.map(jnp.sum, grads)))


def unrolled(x):
    core = hk.LSTM(5)
    return hk.dynamic_unroll(core, x, core.initial_state(2))[0]


recurrent = hk.without_apply_rng(hk.transform(unrolled))
sequence = x.reshape(10, 2, 5)
show("lstm", recurrent.apply(recurrent.init(jax.random.PRNGKey(3), sequence), sequence)[-1])
