"""The names of ``jax.tree_util``: those of ``gtrace.tree``, mostly with ``tree_`` before them."""

from gtrace import tree
from gtrace.jax.adapt import JAX_NAMES, namespace

_PREFIXED = {name: getattr(tree, name.removeprefix("tree_"), None) for name in JAX_NAMES["jax.tree_util"]}

__getattr__, __dir__ = namespace(
    "jax.tree_util",
    tree,
    {name: value for name, value in _PREFIXED.items() if value is not None},
    {
        "PyTreeDef": tree.TreeDef,
        "treedef_children": tree.children,
        "treedef_is_leaf": tree.is_leaf,
        "treedef_tuple": tree.tuple_of,
    },
)
