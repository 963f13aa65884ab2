"""Functions of ``jax.tree`` and ``jax.tree_util`` whose parameters or results differ from those of ``gtrace.tree``."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import optree

from gtrace import tree
from gtrace.tree import TreeDef
from gtrace.tree.structure import NAMESPACE, UNSET

Leaf = Callable[..., bool] | None


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
) -> tuple[list[tuple[Any, Any]], TreeDef]:
    """``gt.tree.flatten_with_path``; with `is_leaf_takes_path`, `is_leaf` is a function of a path and a node."""
    return tree.flatten_with_path(tree_, _by_value(tree_, is_leaf, is_leaf_takes_path))


def leaves_with_path(tree_: Any, is_leaf: Leaf = None, is_leaf_takes_path: bool = False) -> list[tuple[Any, Any]]:
    """``gt.tree.leaves_with_path``, as `flatten_with_path`."""
    return flatten_with_path(tree_, is_leaf, is_leaf_takes_path)[0]


def map_with_path(
    f: Callable[..., Any], tree_: Any, *rest: Any, is_leaf: Leaf = None, is_leaf_takes_path: bool = False
) -> Any:
    """``gt.tree.map_with_path``, as `flatten_with_path`."""
    return tree.map_with_path(f, tree_, *rest, is_leaf=_by_value(tree_, is_leaf, is_leaf_takes_path))


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
    values = tree.leaves(tree_, is_leaf)
    if not values:
        if identity is UNSET:
            raise TypeError("reduce_associative() of a tree without leaves needs identity=")
        return identity
    while len(values) > 1:
        pairs = [operation(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def is_tree_node(x: Any) -> bool:
    """Whether something is an inner node of pytrees, such as a list or None, and no leaf."""
    return not tree.structure(x).is_leaf() or x is None


def flatten_one_level(x: Any) -> tuple[list[Any], Any]:
    """Return the children of an inner node, and what is kept beside them.

    Raises:
        ValueError: it is a leaf.
    """
    children, kept, *_ = optree.tree_flatten_one_level(x, namespace=NAMESPACE)
    return list(children), kept


def flatten_one_level_with_keys(x: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the children of an inner node with their keys, and what is kept beside them.

    Raises:
        ValueError: it is a leaf.
    """
    children, kept = flatten_one_level(x)
    keys = [path[0] for path, _ in tree.leaves_with_path(x, is_leaf=lambda node: node is not x)]
    return list(zip(keys, children, strict=True)), kept
