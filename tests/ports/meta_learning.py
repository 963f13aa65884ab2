"""MAML on sine waves: gradients of steps of gradient descent, over a batch of tasks; parameters in dicts."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import grad, random, vmap


def init(key, sizes):
    keys = random.split(key, len(sizes) - 1)
    return {
        f"layer{k}": {"w": random.normal(key, (m, n)) / jnp.sqrt(m), "b": jnp.full(n, 0.1)}
        for k, (key, m, n) in enumerate(zip(keys, sizes[:-1], sizes[1:]))
    }


def net(params, x):
    for name in sorted(params)[:-1]:
        x = jax.nn.relu(x @ params[name]["w"] + params[name]["b"])
    last = params[max(params)]
    return x @ last["w"] + last["b"]


def error(params, x, y):
    return jnp.mean((net(params, x) - y) ** 2)


def adapted(params, x, y, rate=0.1):
    return jax.tree.map(lambda p, g: p - rate * g, params, grad(error)(params, x, y))


def meta_loss(params, x, y):
    def task(x, y):
        return error(adapted(params, x[0], y[0]), x[1], y[1])

    return vmap(task)(x, y).mean()


def main(wrap):
    params = init(random.PRNGKey(2), [1, 8, 1])
    keys = random.split(random.PRNGKey(3), 3)
    size = random.uniform(keys[0], (4,), minval=0.1, maxval=0.5)
    phase = random.uniform(keys[1], (4,), maxval=jnp.pi)
    x = random.uniform(keys[2], (4, 2, 10, 1), minval=-5.0, maxval=5.0)
    y = size[:, None, None, None] * jnp.sin(x + phase[:, None, None, None])
    step = wrap(partial(jax.value_and_grad(meta_loss)))
    losses = []
    for _ in range(3):
        value, grads = step(params, x, y)
        params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
        losses.append(float(value))
    (first, second), *_ = ((layer["b"], layer["w"]) for layer in params.values())
    names = "/".join(key for layer in grads.values() for key in layer)
    return {"losses": jnp.array(losses), "bias": first, "weights": second, "names": names, "params": params}
