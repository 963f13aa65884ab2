"""Key paths: the positions of leaves in pytrees."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs
import optree

from gtrace.core.base.config import config
from gtrace.core.base.tree.treedef import NAMESPACE, Leaf, TreeDef, flatten, in_order, too_deep, up_to

__all__ = [
    "DictKey", "FlattenedIndexKey", "GetAttrKey", "KeyEntry", "KeyPath", "SequenceKey", "flatten_with_path", "keystr",
    "leaves_with_path", "map_with_path",
]  # fmt: skip


@attrs.frozen
class SequenceKey:
    """The index of an element of a list or tuple."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"


@attrs.frozen
class DictKey:
    """The key of an element of a dict."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@attrs.frozen
class GetAttrKey:
    """The name of an attribute of a namedtuple, a dataclass or an attrs class."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@attrs.frozen
class FlattenedIndexKey:
    """The index of a child of a registered class whose children have no keys."""

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


KeyEntry = SequenceKey | DictKey | GetAttrKey | FlattenedIndexKey
KeyPath = tuple[Any, ...]


class Keyed(optree.PyTreeEntry):
    """An entry whose key the node's class defines."""

    __slots__ = ()

    def __call__(self, node: Any) -> Any:
        raise TypeError(f"[tree] expected a key that leads to a child by itself, got {self.entry!r}.")

    def codify(self, node: str = "") -> str:
        return f"{node}{self.entry}"


def _key(entry: optree.PyTreeEntry) -> Any:
    if isinstance(entry, Keyed):
        return entry.entry
    if isinstance(entry, optree.SequenceEntry) and not isinstance(
        entry, (optree.NamedTupleEntry, optree.StructSequenceEntry)
    ):
        return SequenceKey(entry.index)
    if isinstance(entry, optree.MappingEntry):
        return DictKey(entry.key)
    if isinstance(entry, (optree.NamedTupleEntry, optree.StructSequenceEntry)):
        return GetAttrKey(entry.field)
    if isinstance(entry, optree.GetAttrEntry):
        return GetAttrKey(entry.name)
    return FlattenedIndexKey(entry.entry)


def flatten_with_path(tree: Any, is_leaf: Leaf = None) -> tuple[list[tuple[KeyPath, Any]], TreeDef]:
    """Return the leaves of `tree` as pairs of key path and leaf, and its structure.

    >>> flatten_with_path({"a": (1, 2)})[0][1]
    ((DictKey(key='a'), SequenceKey(idx=1)), 2)
    """
    try:
        accessors, values, treedef = optree.tree_flatten_with_accessor(tree, is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise too_deep() from error
    if config.current.jax_results:
        treedef = in_order(treedef)
    return [(tuple([_key(entry) for entry in a]), x) for a, x in zip(accessors, values, strict=True)], treedef


def leaves_with_path(tree: Any, is_leaf: Leaf = None) -> list[tuple[KeyPath, Any]]:
    """Return the leaves of `tree` as pairs of key path and leaf.

    >>> [(gt.tree.keystr(path), x) for path, x in gt.tree.leaves_with_path({"a": [1, 2]})]
    [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    return flatten_with_path(tree, is_leaf)[0]


def map_with_path(function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Leaf = None) -> Any:
    """Apply `function` to the key path of each leaf of `tree`, the leaf, and the matching leaves of `rest`.

    Raises:
        StructureError: a tree of `rest` has another structure.

    >>> map_with_path(lambda path, x: keystr(path), {"a": (1, 2)})
    {'a': ("['a'][0]", "['a'][1]")}
    """
    pairs, _ = flatten_with_path(tree, is_leaf)
    treedef = flatten(tree, is_leaf)[1]
    columns = [up_to(treedef, other) for other in rest]
    return treedef.unflatten([function(*pair, *others) for pair, *others in zip(pairs, *columns, strict=True)])


def keystr(keys: Iterable[Any], *, simple: bool = False, separator: str = "") -> str:
    """Return a key path as text.

    Args:
        simple: only the keys, without brackets and quotes.
        separator: between the keys.

    >>> keystr((DictKey("layers"), SequenceKey(0)), simple=True, separator="/")
    'layers/0'
    """
    if not simple:
        return separator.join(map(str, keys))
    return separator.join(str(getattr(key, type(key).__attrs_attrs__[0].name, key)) for key in keys)
