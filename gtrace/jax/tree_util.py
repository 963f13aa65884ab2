"""The names of ``jax.tree_util``: those of ``gtrace.tree``, mostly with ``tree_`` before them."""

from gtrace import tree
from gtrace.jax import paths
from gtrace.jax.adapt import JAX_NAMES, namespace


class _Registry:
    """JAX's table of inner nodes, with the functions that ask it; gtrace has one table."""

    flatten = staticmethod(tree.flatten)
    flatten_one_level = staticmethod(paths.flatten_one_level)
    register_node = staticmethod(tree.register_pytree_node)


default_registry = _Registry()

_PREFIXED = {name: getattr(tree, name.removeprefix("tree_"), None) for name in JAX_NAMES["jax.tree_util"]}

__getattr__, __dir__ = namespace(
    "jax.tree_util",
    {
        "PyTreeDef": tree.TreeDef,
        "treedef_children": tree.children,
        "treedef_is_leaf": tree.is_leaf,
        "treedef_tuple": tree.tuple_of,
        "tree_flatten_with_path": paths.flatten_with_path,
        "tree_leaves_with_path": paths.leaves_with_path,
        "tree_map_with_path": paths.map_with_path,
        "tree_reduce_associative": paths.reduce_associative,
        "is_tree_node": paths.is_tree_node,
        "flatten_one_level": paths.flatten_one_level,
        "flatten_one_level_with_keys": paths.flatten_one_level_with_keys,
    },
    {name: value for name, value in _PREFIXED.items() if value is not None},
    tree,
)
