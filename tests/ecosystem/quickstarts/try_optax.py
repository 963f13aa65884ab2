"""optax: optimizers, schedules and losses on a least-squares problem."""

import jax
import jax.numpy as jnp
import optax
from parts import show

target = jnp.array([1.0, -2.0, 3.0])


def fitted(optimizer, steps=40):
    params = {"w": jnp.zeros(3), "b": jnp.ones(())}
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        loss = lambda p: ((p["w"] - target) ** 2).sum() + p["b"] ** 2
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params["w"], params["b"]


schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 5, 40)
show("adamw", *fitted(optax.adamw(schedule, weight_decay=1e-2)))
show("clipped momentum", *fitted(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.05, momentum=0.9))))
show("lion", *fitted(optax.lion(0.03)))
show("schedule", [schedule(k) for k in (0, 3, 20, 40)])
logits, labels = jnp.array([[1.0, 2.0, 0.5], [0.1, 0.2, 3.0]]), jnp.array([1, 0])
show("cross entropy", optax.softmax_cross_entropy_with_integer_labels(logits, labels))
