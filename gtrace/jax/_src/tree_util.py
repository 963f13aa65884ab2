"""``jax._src.tree_util``: the functions of ``jax.tree_util``, and a table of classes that flax asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import optree

from gtrace.core.base.tree import NAMESPACE
from gtrace.jax import tree_util as public

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


def __getattr__(name: str) -> Any:
    return getattr(public, name)
