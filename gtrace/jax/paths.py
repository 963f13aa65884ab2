"""Functions of ``jax.tree`` and ``jax.tree_util``: those of ``gtrace.tree`` with arrays of typed keys as leaves, and
structures that print as JAX's."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import optree

from gtrace.extend import UNSET, tree, whole_leaves
from gtrace.jax.structures import PyTreeDef, spec_of
from gtrace.tree import NAMESPACE

Leaf = Callable[..., bool] | None

_registered: Any = optree.register_pytree_node.get


def flatten(tree_: Any, is_leaf: Leaf = None) -> tuple[list[Any], PyTreeDef]:
    """Return the leaves of a tree, left to right, and its structure.

    >>> flatten({"a": (1, 2)})
    ([1, 2], PyTreeDef({'a': (*, *)}))
    """
    leaves_, spec = tree.flatten(tree_, whole_leaves(is_leaf))
    return leaves_, PyTreeDef(spec)


def leaves(tree_: Any, is_leaf: Leaf = None) -> list[Any]:
    """Return the leaves of a tree, left to right."""
    return tree.leaves(tree_, whole_leaves(is_leaf))


def structure(tree_: Any, is_leaf: Leaf = None) -> PyTreeDef:
    """Return the structure of a tree."""
    return PyTreeDef(tree.structure(tree_, whole_leaves(is_leaf)))


def unflatten(treedef: Any, leaves: Iterable[Any]) -> Any:
    """Return a tree of a structure with these leaves."""
    return treedef.unflatten(leaves)


def map(f: Callable[..., Any], tree_: Any, *rest: Any, is_leaf: Leaf = None) -> Any:  # noqa: A001 - JAX's name
    """``gt.tree.map``.

    >>> import gtrace.jax as jax
    >>> jax.tree.map(lambda x: x.shape, {"key": jax.random.key(0), "w": jax.numpy.ones(2)})
    {'key': (), 'w': (2,)}
    """
    return tree.map(f, tree_, *rest, is_leaf=whole_leaves(is_leaf))


def reduce(function: Callable[[Any, Any], Any], tree_: Any, initializer: Any = UNSET, is_leaf: Leaf = None) -> Any:
    """``gt.tree.reduce``."""
    return tree.reduce(function, tree_, initializer, whole_leaves(is_leaf))


def all(tree_: Any, *, is_leaf: Leaf = None) -> bool:  # noqa: A001 - JAX's name
    """``gt.tree.all``."""
    return tree.all(tree_, is_leaf=whole_leaves(is_leaf))


def all_leaves(iterable: Iterable[Any], is_leaf: Leaf = None) -> bool:
    """``gt.tree.all_leaves``."""
    return tree.all_leaves(iterable, whole_leaves(is_leaf))


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: Leaf = None) -> Any:
    """``gt.tree.broadcast``."""
    return tree.broadcast(prefix_tree, full_tree, whole_leaves(is_leaf))


def transpose(outer_treedef: Any, inner_treedef: Any, pytree_to_transpose: Any) -> Any:
    """``gt.tree.transpose``; the static data of nodes need not agree, only the number of leaves."""
    outer, inner = spec_of(outer_treedef), spec_of(inner_treedef)
    values = leaves(pytree_to_transpose)
    if inner is None or len(values) != outer.num_leaves * inner.num_leaves:
        return tree.transpose(outer, inner, pytree_to_transpose)
    width = inner.num_leaves
    return inner.unflatten([outer.unflatten(values[k::width]) for k in range(width)])


def treedef_children(treedef: Any) -> list[PyTreeDef]:
    """Return the structures right below the root of a structure."""
    return PyTreeDef(treedef).children()


def treedef_is_leaf(treedef: Any) -> bool:
    """Return whether a structure is that of one leaf."""
    return spec_of(treedef).is_leaf()


def treedef_tuple(treedefs: Iterable[Any]) -> PyTreeDef:
    """Return the structure of a tuple of trees of these structures."""
    return PyTreeDef(tree.tuple_of([spec_of(treedef) for treedef in treedefs]))


def _by_value(pytree: Any, is_leaf: Leaf, takes_path: bool) -> Leaf:
    """Return `is_leaf` as a function of nodes alone: a node is known by being the object at one of the paths."""
    if is_leaf is None or not takes_path:
        return is_leaf
    found: list[Any] = []
    stack: list[tuple[Any, Any]] = [((), pytree)]
    while stack:
        path, node = stack.pop()
        if is_leaf(path, node):
            found.append(node)
        elif is_tree_node(node):
            inner = tree.flatten_with_path(node, is_leaf=functools.partial(operator.is_not, node))[0]
            stack += [((*path, *below), child) for below, child in inner]
    return lambda node: any(node is x for x in found)


def flatten_with_path(
    tree_: Any, is_leaf: Leaf = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[Any, Any]], PyTreeDef]:
    """``gt.tree.flatten_with_path``; with `is_leaf_takes_path`, `is_leaf` is a function of a path and a node."""
    pairs, spec = tree.flatten_with_path(tree_, whole_leaves(_by_value(tree_, is_leaf, is_leaf_takes_path)))
    return pairs, PyTreeDef(spec)


def leaves_with_path(tree_: Any, is_leaf: Leaf = None, is_leaf_takes_path: bool = False) -> list[tuple[Any, Any]]:
    """``gt.tree.leaves_with_path``, as `flatten_with_path`."""
    return flatten_with_path(tree_, is_leaf, is_leaf_takes_path)[0]


def map_with_path(
    f: Callable[..., Any], tree_: Any, *rest: Any, is_leaf: Leaf = None, is_leaf_takes_path: bool = False
) -> Any:
    """``gt.tree.map_with_path``, as `flatten_with_path`."""
    return tree.map_with_path(f, tree_, *rest, is_leaf=whole_leaves(_by_value(tree_, is_leaf, is_leaf_takes_path)))


def reduce_associative(
    operation: Callable[[Any, Any], Any], tree_: Any, *, identity: Any = UNSET, is_leaf: Leaf = None
) -> Any:
    """Combine the leaves in pairs, and the results again, by an associative function.

    >>> import gtrace.jax as jax
    >>> jax.tree.reduce_associative(lambda a, b: a + b, {"a": 1, "b": (2, 3)})
    6

    Raises:
        TypeError: there are no leaves, and no `identity`.
    """
    values = leaves(tree_, is_leaf)
    if not values:
        if identity is UNSET:
            raise TypeError("reduce_associative() of a tree without leaves needs identity=")
        return identity
    while len(values) > 1:
        pairs = [operation(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def is_tree_node(x: Any) -> bool:
    """Whether something is an inner node of pytrees, such as a list or None, and no leaf; or a class of such nodes."""
    if isinstance(x, type):
        return optree.is_namedtuple_class(x) or _registered(x, namespace=NAMESPACE) is not None
    return not tree.structure(x, whole_leaves()).is_leaf() or x is None


def node_of(nodetype: type, static: Any, children: Iterable[Any]) -> Any:
    """Return a node of a registered class, of its static data and its children.

    Raises:
        KeyError: the class is not registered.
    """
    entry = _registered(nodetype, namespace=NAMESPACE)
    if entry is None:
        raise KeyError(nodetype)
    return entry.unflatten_func(static, tuple(children))


def flatten_one_level(x: Any) -> tuple[list[Any], Any]:
    """Return the children of an inner node, and its static data.

    Raises:
        ValueError: it is a leaf.
    """
    children, kept, *_ = optree.tree_flatten_one_level(x, namespace=NAMESPACE)
    return list(children), kept


def flatten_one_level_with_keys(x: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the children of an inner node with their keys, and its static data.

    Raises:
        ValueError: it is a leaf.
    """
    children, kept = flatten_one_level(x)
    kept = tuple(kept) if isinstance(x, dict) else kept
    keys = [path[0] for path, _ in tree.leaves_with_path(x, is_leaf=lambda node: node is not x)]
    return list(zip(keys, children, strict=True)), kept
