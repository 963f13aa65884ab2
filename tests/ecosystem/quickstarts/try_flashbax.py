"""flashbax: buffers of experience for reinforcement learning, of items, trajectories, and with priorities."""

import flashbax as fbx
import jax
import jax.numpy as jnp
from parts import show


def transition(k):
    k = jnp.asarray(k, jnp.float32)
    return {"obs": k + jnp.arange(3.0), "action": jnp.int32(k), "reward": k / 2}


def numbers(tree):
    return jax.tree.leaves(tree)


buffer = fbx.make_item_buffer(max_length=16, min_length=2, sample_batch_size=4)
state = buffer.init(transition(0))
for k in range(5):
    state = jax.jit(buffer.add)(state, transition(k))
show("items", buffer.can_sample(state), *numbers(jax.jit(buffer.sample)(state, jax.random.key(0)).experience))

buffer = fbx.make_flat_buffer(max_length=32, min_length=4, sample_batch_size=3, add_batch_size=2)
state = buffer.init(transition(0))
add, sample = jax.jit(buffer.add, donate_argnums=0), jax.jit(buffer.sample)
for k in range(6):
    state = add(state, jax.vmap(transition)(jnp.array([k, 10 + k])))
found = sample(state, jax.random.key(1)).experience
show("flat", buffer.can_sample(state), *numbers(found.first), *numbers(found.second))

buffer = fbx.make_trajectory_buffer(
    add_batch_size=2, sample_batch_size=3, sample_sequence_length=4, period=2, min_length_time_axis=4,
    max_length_time_axis=12,
)  # fmt: skip
state = buffer.init(transition(0))
add, sample = jax.jit(buffer.add), jax.jit(buffer.sample)
for k in range(5):
    steps = jnp.arange(3 * k, 3 * k + 3)
    state = add(state, jax.vmap(jax.vmap(transition))(jnp.stack([steps, 100 + steps])))
show("trajectories", buffer.can_sample(state), *numbers(sample(state, jax.random.key(2)).experience))

buffer = fbx.make_prioritised_trajectory_buffer(
    add_batch_size=1, sample_batch_size=4, sample_sequence_length=2, period=1, min_length_time_axis=2,
    max_length_time_axis=16, priority_exponent=0.6, device="cpu",
)  # fmt: skip
state = buffer.init(transition(0))
for k in range(4):
    state = jax.jit(buffer.add)(state, jax.vmap(jax.vmap(transition))(jnp.arange(3 * k, 3 * k + 3)[None]))
found = jax.jit(buffer.sample)(state, jax.random.key(3))
show("priorities", *numbers(found.experience), found.probabilities, found.indices)
state = jax.jit(buffer.set_priorities)(state, found.indices, jnp.array([1.0, 5.0, 2.0, 9.0]))
found = jax.jit(buffer.sample)(state, jax.random.key(4))
show("new priorities", *numbers(found.experience), found.probabilities)

queue = fbx.make_trajectory_queue(
    max_length_time_axis=12, add_batch_size=1, add_sequence_length=3, sample_sequence_length=3
)
state = queue.init(transition(0))
for k in range(3):
    state = queue.add(state, jax.vmap(jax.vmap(transition))(jnp.arange(3 * k, 3 * k + 3)[None]))
state, found = queue.sample(state)
show("queue", queue.can_sample(state), *numbers(found.experience))


def collect(carry, k):
    state = buffer_of_items.add(carry, transition(k))
    return state, buffer_of_items.sample(state, jax.random.fold_in(jax.random.key(5), k)).experience["reward"].sum()


buffer_of_items = fbx.make_item_buffer(max_length=8, min_length=1, sample_batch_size=2)
show("scan", jax.lax.scan(collect, buffer_of_items.init(transition(0)), jnp.arange(12))[1])
