"""chex: assertions, dataclasses that are pytrees, and a device-independent variant."""

import chex
import jax
import jax.numpy as jnp
from parts import show


@chex.dataclass
class Pair:
    left: chex.Array
    right: chex.Array


pair = Pair(left=jnp.arange(3.0), right=jnp.ones((2, 2)))
chex.assert_shape(pair.left, (3,))
chex.assert_tree_all_finite(pair)
show("dataclass", jax.tree.map(lambda x: x * 2, pair).left, jax.grad(lambda p: (p.left**2).sum())(pair).left)
try:
    chex.assert_equal_shape([pair.left, pair.right])
except AssertionError:
    show("refused", 1)


@jax.jit
@chex.assert_max_traces(n=1)
def traced(x):
    return x + 1


show("one trace", traced(1.0), traced(2.0))
