"""flax.linen: a network with attention and batch norm, trained for a few steps."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from parts import show


class Model(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.LayerNorm()(x + nn.SelfAttention(num_heads=2)(x))
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))
        return nn.Dense(3)(nn.gelu(x).mean(1))


x, y = jnp.sin(jnp.arange(4 * 5 * 6.0)).reshape(4, 5, 6), jnp.array([0, 2, 1, 2])
model = Model()
variables = model.init(jax.random.key(0), x)
show("first", model.apply(variables, x))
state = TrainState.create(apply_fn=model.apply, params=variables["params"], tx=optax.sgd(0.1))
stats = variables["batch_stats"]


@jax.jit
def step(state, stats):
    def loss(params):
        out, new = state.apply_fn({"params": params, "batch_stats": stats}, x, train=True, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(out, y).mean(), new["batch_stats"]

    (value, new), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads), new, value


losses = []
for _ in range(5):
    state, stats, value = step(state, stats)
    losses.append(value)
show("losses", losses)
show("evaluation", model.apply({"params": state.params, "batch_stats": stats}, x))
