"""flax.nnx: a module with state, its gradient and an optimizer."""

import jax.numpy as jnp
import optax
from flax import nnx
from parts import show


class Model(nnx.Module):
    def __init__(self, rngs):
        self.first, self.norm = nnx.Linear(4, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
        self.last = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.norm(self.first(x))))


x = jnp.sin(jnp.arange(24.0)).reshape(6, 4)
model = Model(nnx.Rngs(0))
show("first", model(x))
optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)


@nnx.jit
def step(model, optimizer):
    value, grads = nnx.value_and_grad(lambda model: ((model(x) - 1.0) ** 2).mean())(model)
    optimizer.update(model, grads)
    return value


show("losses", [step(model, optimizer) for _ in range(4)])
model.eval()
show("evaluation", model(x), model.norm.mean[...])
