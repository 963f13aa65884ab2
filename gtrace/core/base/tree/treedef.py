"""Leaves and structures of pytrees, and functions of them."""

from __future__ import annotations

import builtins
import collections
import functools
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import optree

from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.config import config
from gtrace.core.base.errors import StructureError, message, user_location
from gtrace.core.base.exact_keys import exact_key

__all__ = [
    "NAMESPACE", "TreeDef", "all", "all_leaves", "broadcast", "children", "flatten", "is_leaf", "is_tuple", "leaves",
    "map", "number_keys", "paths", "reduce", "structure", "transpose", "tuple_of", "unflatten",
]  # fmt: skip

T = TypeVar("T")

NAMESPACE = "gtrace"
TreeDef = optree.PyTreeSpec


UNSET: Any = object()
"""Marks a missing argument."""

Leaf = Callable[[Any], bool] | None
"""Tells which nodes count as leaves."""


def _ordered_node(node: TreeDef) -> TreeDef:
    """Return a one-level structure with the keys of a dict in sorted order."""
    if node.type is dict:
        return optree.treespec_dict({k: optree.treespec_leaf() for k in node.entries()}, namespace=NAMESPACE)
    if node.type is collections.defaultdict:
        pairs = {k: optree.treespec_leaf() for k in node.entries()}
        empty: Any = node.unflatten([None] * len(pairs))
        return optree.treespec_defaultdict(empty.default_factory, pairs, namespace=NAMESPACE)
    return node


def _nodes(treedef: TreeDef) -> Iterable[TreeDef]:
    pending = [treedef]
    while pending:
        node = pending.pop()
        yield node
        pending += node.children()


@functools.lru_cache(maxsize=4096)
def _known_order(treedef: TreeDef) -> TreeDef | bool:
    """Return a structure with sorted keys; True if it has no keys, False if it must not be cached.

    Equal structures may differ in the static data of the user's classes, such as 1 and True. Such a structure must not
    replace another.
    """
    kinds = {node.kind for node in _nodes(treedef)}
    if optree.PyTreeKind.DICT not in kinds and optree.PyTreeKind.DEFAULTDICT not in kinds:
        return True
    if optree.PyTreeKind.CUSTOM in kinds or number_keys(treedef):
        return False
    return optree.treespec_transform(treedef, _ordered_node)


def in_order(treedef: TreeDef) -> TreeDef:
    """Return a structure that unflattens to dicts whose keys are in the order of the leaves.

    >>> in_order(structure({"b": 1, "a": 2})).unflatten([10, 20])
    {'a': 10, 'b': 20}
    """
    try:
        known = _known_order(treedef)
    except TypeError:  # a class has static data without a hash
        known = False
    if known is False:
        return optree.treespec_transform(treedef, _ordered_node)
    return treedef if known is True else known


_LEAVES: set[type] = {bool, int, float, complex, str}
_TAKEN_WHOLE: set[type] = set()
"""Classes that callers may treat as leaves."""

_WHOLE = set(_LEAVES)
"""Both sets of classes."""

_structures: BoundedTable[Hashable, TreeDef] = BoundedTable(4096)


def leaf_class(kind: type[T]) -> type[T]:
    """Make objects of a class leaves; return the class."""
    _LEAVES.add(kind)
    _WHOLE.add(kind)
    return kind


def whole_class(kind: type[T]) -> type[T]:
    """Make objects of a class nodes that `whole_leaves` treats as leaves; return the class."""
    _WHOLE.add(kind)
    _TAKEN_WHOLE.add(kind)
    return kind


def whole_leaves(is_leaf: Leaf = None) -> Leaf:
    """Return a predicate that extends `is_leaf`: it also holds for objects of `whole_class` classes."""
    return is_whole if is_leaf is None else lambda x: type(x) in _TAKEN_WHOLE or is_leaf(x)


def is_whole(x: Any) -> bool:
    """Whether an object belongs to a `whole_class` class."""
    return type(x) in _TAKEN_WHOLE


@functools.lru_cache(maxsize=4096)
def text_keys(keys: tuple[Any, ...]) -> tuple[str, ...] | None:
    """Return the keys of a dict in the order of its leaves; None unless all are strings.

    >>> text_keys(("b", "a")), text_keys((1, 2))
    (('a', 'b'), None)
    """
    return tuple(sorted(keys)) if builtins.all(key.__class__ is str for key in keys) else None


def _take_apart(tree: Any, shape: list[Any], leaves: list[Any], kinds: set[type]) -> bool:
    """Flatten a tree of dicts with string keys, lists, tuples and None. Its leaves are Arrays, numbers or strings.

    This takes a third of optree's time.

    Args:
        shape: the list that gets keys and lengths. Trees with equal lists have one structure.
        leaves: the list that gets the leaves.
        kinds: the classes of leaves.

    Returns:
        Whether the tree has this form.
    """
    kind = type(tree)
    if kind is tuple:
        shape.append(len(tree))
    elif kind is list:
        tree = tuple(tree)
        shape += (list, len(tree))
    elif kind is dict:
        given = tuple(tree)
        keys = text_keys(given)
        if keys is None:
            return False
        shape.append(given)  # unsorted, because dicts that the structure rebuilds have this order too
        tree = [tree[key] for key in keys]
    else:
        shape.append(None)
        if tree is None:
            return True
        leaves.append(tree)
        shape.append("")
        return kind in kinds
    for x in tree:
        if type(x) in kinds:
            leaves.append(x)
            shape.append("")
        elif not _take_apart(x, shape, leaves, kinds):
            return False
    return True


def too_deep() -> StructureError:
    """Return the error for a tree without end."""
    fix = "Look for a list or dict that is among its own elements."
    return StructureError(message("tree", "a finite tree", "one that holds itself, or has too many levels", fix))


def flatten(tree: Any, is_leaf: Leaf = None) -> tuple[list[Any], TreeDef]:
    """Return the leaves of `tree` from left to right, and its structure.

    Args:
        is_leaf: a predicate; nodes for which it holds are leaves too.

    >>> leaves, structure = flatten({"b": 2, "a": (1, None)})
    >>> leaves
    [1, 2]
    """
    values: list[Any] = []
    shape: list[Any] = []
    kinds = _LEAVES if is_leaf is None else _WHOLE if is_leaf is is_whole else None
    try:
        if kinds is not None and _take_apart(tree, shape, values, kinds):
            key = tuple(shape)
            found = _structures.get(key)
            if found is None:
                found = optree.tree_structure(tree, is_leaf, namespace=NAMESPACE)
                _structures.remember(key, found)
            treedef: TreeDef = found
        else:
            values, treedef = optree.tree_flatten(tree, is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise too_deep() from error
    return values, in_order(treedef) if config.current.jax_results else treedef


def leaves(tree: Any, is_leaf: Leaf = None) -> list[Any]:
    """Return the leaves of `tree` from left to right.

    >>> gt.tree.leaves({"b": 3, "a": [1, 2]})
    [1, 2, 3]
    """
    values: list[Any] = []
    kinds = _LEAVES if is_leaf is None else _WHOLE if is_leaf is is_whole else None
    try:
        if kinds is not None and _take_apart(tree, [], values, kinds):
            return values
        return optree.tree_leaves(tree, is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise too_deep() from error


def structure(tree: Any, is_leaf: Leaf = None) -> TreeDef:
    """Return the structure of `tree`.

    >>> gt.tree.structure([1, (2, 3)]) == gt.tree.structure([4, (5, 6)])
    True
    """
    try:
        treedef = optree.tree_structure(tree, is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise too_deep() from error
    return in_order(treedef) if config.current.jax_results else treedef


def children(treedef: TreeDef) -> list[TreeDef]:
    """Return the child structures of a structure's root.

    >>> [below.num_leaves for below in gt.tree.children(gt.tree.structure([1, (2, 3)]))]
    [1, 2]
    """
    return treedef.children()


def is_tuple(treedef: TreeDef) -> bool:
    """Whether the root of a structure is a plain tuple.

    >>> gt.tree.is_tuple(gt.tree.structure((1, 2))), gt.tree.is_tuple(gt.tree.structure([1, 2]))
    (True, False)
    """
    return treedef.type is tuple


def tuple_of(treedefs: Iterable[TreeDef]) -> TreeDef:
    """Return the structure of a tuple of trees of these structures.

    >>> gt.tree.tuple_of([gt.tree.structure(1), gt.tree.structure([2])]) == gt.tree.structure((1, [2]))
    True
    """
    return optree.treespec_tuple(treedefs, namespace=NAMESPACE)


def unflatten(treedef: TreeDef, values: Iterable[Any]) -> Any:
    """Rebuild a tree from its structure and leaves.

    >>> leaves, structure = gt.tree.flatten({"a": 1, "b": [2, 3]})
    >>> gt.tree.unflatten(structure, [x * 10 for x in leaves])
    {'a': 10, 'b': [20, 30]}
    """
    return treedef.unflatten(values)


def up_to(treedef: TreeDef, tree: Any, name: str = "tree.map") -> list[Any]:
    """Return the subtrees of `tree` at the leaves of a structure, which must be a prefix of it."""
    try:
        return treedef.flatten_up_to(tree)
    except (ValueError, TypeError) as error:
        text = str(error).replace("dictionary key mismatch", "Dict key mismatch", 1)  # as in JAX
        raise StructureError(
            f"[{name}] expected trees of one structure, got a difference: {text} (at {user_location()})"
        ) from None


def map(  # noqa: A001 - the field's name, as in jax.tree.map
    function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Leaf = None
) -> Any:
    """Apply `function` to each leaf of `tree` and the matching leaves of `rest`.

    Raises:
        StructureError: a tree of `rest` has another structure; the message names the key path.

    >>> map(lambda x, y: x + y, {"a": 1}, {"a": 10})
    {'a': 11}
    """
    values, treedef = flatten(tree, is_leaf)
    columns = [values, *[up_to(treedef, other) for other in rest]]
    return treedef.unflatten([function(*column) for column in zip(*columns, strict=True)])


def reduce(function: Callable[[Any, Any], Any], tree: Any, initializer: Any = UNSET, is_leaf: Leaf = None) -> Any:
    """Combine the leaves of `tree` from left to right, beginning with the initial value if given.

    >>> reduce(lambda x, y: x + y, {"a": 1, "b": (2, 3)}, 10)
    16
    """
    start = () if initializer is UNSET else (initializer,)
    return functools.reduce(function, leaves(tree, is_leaf), *start)


def all(tree: Any, *, is_leaf: Leaf = None) -> bool:  # noqa: A001 - as above
    """Return whether every leaf of `tree` is true.

    >>> all({"a": True, "b": (1, None)})
    True
    """
    return builtins.all(leaves(tree, is_leaf))


def transpose(outer: TreeDef, inner: TreeDef | None, tree: Any) -> Any:
    """Turn a tree of structure `outer` with subtrees of structure `inner` inside out.

    Args:
        inner: None: the structure of the first subtree.

    Raises:
        StructureError: `tree` has another structure.

    >>> transpose(structure([0, 0]), None, [{"a": 1}, {"a": 2}])
    {'a': [1, 2]}
    """
    parts = up_to(outer, tree, "tree.transpose")
    if inner is None:
        inner = structure(parts[0]) if parts else structure(None)
    rows = [up_to(inner, part, "tree.transpose") for part in parts]
    return inner.unflatten([outer.unflatten([row[k] for row in rows]) for k in range(inner.num_leaves)])


def broadcast(prefix: Any, tree: Any, is_leaf: Leaf = None) -> Any:
    """Return a tree like `tree`, with each leaf replaced by the leaf of `prefix` at or above its position.

    Raises:
        StructureError: `prefix` is not a prefix of `tree`.

    >>> broadcast((1, 2), (0, {"a": 0, "b": 0}))
    (1, {'a': 2, 'b': 2})
    """
    values, treedef = flatten(prefix, is_leaf)
    parts = up_to(treedef, tree, "tree.broadcast")
    return treedef.unflatten(
        [map(lambda _, value=value: value, part, is_leaf=is_leaf) for value, part in zip(values, parts, strict=True)]
    )


def paths(tree: Any) -> list[str]:
    """Return the key path of each leaf in Python's syntax.

    >>> paths({"layers": [1, 2]})
    ["['layers'][0]", "['layers'][1]"]
    """
    try:
        accessors = optree.tree_accessors(tree, namespace=NAMESPACE)
    except RecursionError as error:
        raise too_deep() from error
    return [accessor.codify("") for accessor in accessors]


def number_keys(treedef: TreeDef) -> tuple[Any, ...]:
    """Return the exact keys of dicts with other keys than strings. Structures compare keys by ==, where 1 is True.

    >>> number_keys(structure({"a": 1, "b": {1: 0}})) == number_keys(structure({"a": 1, "b": {True: 0}}))
    False
    >>> number_keys(structure({"a": 1, "b": (2, 3)}))
    ()
    """
    found: list[Any] = []
    pending = [treedef]
    while pending:
        node = pending.pop()
        if node.type is not None and issubclass(node.type, dict):
            entries = node.entries()
            if any(entry.__class__ is not str for entry in entries):
                found.append(exact_key(tuple(entries)))
        pending += node.children()
    return tuple(found)


def is_leaf(treedef: TreeDef) -> bool:
    """Whether a structure is one leaf.

    >>> gt.tree.is_leaf(gt.tree.structure(1)), gt.tree.is_leaf(gt.tree.structure([1]))
    (True, False)
    """
    return treedef.is_leaf()


def all_leaves(values: Iterable[Any], is_leaf: Leaf = None) -> bool:
    """Return whether all values are leaves.

    >>> all_leaves([1, 2]), all_leaves([1, (2,)])
    (True, False)
    """
    return optree.all_leaves(values, is_leaf, namespace=NAMESPACE)
