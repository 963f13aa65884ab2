"""jraph: a graph network that passes messages, and a batch of graphs."""

import jax
import jax.numpy as jnp
import jraph
import numpy as np
from parts import show


def graph(count, seed):
    edges = np.array([(k, (k + 1) % count) for k in range(count)] + [(0, count - 1)])
    return jraph.GraphsTuple(
        nodes=jnp.sin(jnp.arange(count * 2.0) + seed).reshape(count, 2),
        edges=jnp.cos(jnp.arange(len(edges) * 1.0))[:, None],
        senders=jnp.array(edges[:, 0]), receivers=jnp.array(edges[:, 1]), globals=jnp.ones((1, 1)),
        n_node=jnp.array([count]), n_edge=jnp.array([len(edges)]),
    )  # fmt: skip


network = jraph.GraphNetwork(
    update_edge_fn=lambda e, s, r, g: jnp.tanh(e + s + r), update_node_fn=lambda n, s, r, g: n + s - r,
    update_global_fn=lambda n, e, g: g + n.sum(-1, keepdims=True) + e.sum(-1, keepdims=True),
)  # fmt: skip
both = jraph.batch([graph(3, 0.0), graph(4, 1.0)])
out = jax.jit(network)(both)
show("messages", out.nodes, out.globals)
padded = jraph.pad_with_graphs(both, 12, 16, 4)
show("padding", network(padded).globals[:2], jraph.get_graph_padding_mask(padded))
show("softmax", jraph.segment_softmax(both.edges[:, 0], both.receivers, 7))
show("gradient", jax.grad(lambda n: network(both._replace(nodes=n)).globals.sum())(both.nodes))
