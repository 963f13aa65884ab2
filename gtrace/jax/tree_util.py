"""The names of ``jax.tree_util``: those of ``gtrace.tree``, mostly with ``tree_`` before them."""

from gtrace.extend import tree
from gtrace.jax import paths
from gtrace.jax.adapt import JAX_NAMES, namespace
from gtrace.jax.structures import PyTreeDef


class _Registry:
    """JAX's table of inner nodes, with the functions that ask it; gtrace has one table."""

    flatten = staticmethod(paths.flatten)
    flatten_one_level = staticmethod(paths.flatten_one_level)
    register_node = staticmethod(tree.register_pytree_node)


default_registry = _Registry()

_PLAIN = {name: name.removeprefix("tree_") for name in JAX_NAMES["jax.tree_util"]}
_PREFIXED = {name: getattr(paths, plain, getattr(tree, plain, None)) for name, plain in _PLAIN.items()}

__getattr__, __dir__ = namespace(
    "jax.tree_util",
    {
        "PyTreeDef": PyTreeDef,
    },
    {name: value for name, value in _PREFIXED.items() if value is not None},
    tree,
)
