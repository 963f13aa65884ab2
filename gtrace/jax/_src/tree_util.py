"""``jax._src.tree_util``: the functions of ``jax.tree_util``, and a table of classes that flax asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import optree

from gtrace.extend import whole_leaves
from gtrace.jax.private_places import public_names
from gtrace.tree import NAMESPACE

_get: Any = optree.register_pytree_node.get


class _Registry(Mapping[type, Any]):
    """The classes that are inner nodes of pytrees."""

    def __getitem__(self, kind: type) -> Any:
        entry = _get(kind, namespace=NAMESPACE)
        if entry is None:
            raise KeyError(kind)
        return entry

    def __iter__(self) -> Iterator[type]:
        return iter(_get(namespace=NAMESPACE))

    def __len__(self) -> int:
        return len(_get(namespace=NAMESPACE))


_registry = _Registry()


def prefix_errors(
    prefix_tree: Any, full_tree: Any, is_leaf: Callable[..., bool] | None = None
) -> list[Callable[[str], ValueError]]:
    """Return what keeps a tree from being a prefix of another one: functions from the tree's name to errors.

    >>> [error("in_axes").__class__.__name__ for error in prefix_errors((1, [2]), (1, 2))]
    ['ValueError']
    """
    found: list[Callable[[str], ValueError]] = optree.prefix_errors(
        prefix_tree, full_tree, is_leaf=whole_leaves(is_leaf), namespace=NAMESPACE
    )
    return found


__getattr__ = public_names(__name__)
