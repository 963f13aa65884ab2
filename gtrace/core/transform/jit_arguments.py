"""The arguments of a call of a jitted function, taken apart."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import attrs
import torch

from gtrace.core.base import tree
from gtrace.core.base.tree.treedef import text_keys
from gtrace.core.trace.array import Array, layout


@attrs.define(eq=False)
class Arguments:
    """The arguments of one call, taken apart.

    Attributes:
        args, kwargs: with None in the place of static ones.
        static: the static ones, by position or name.
        static_key: their key, by value and type; None if there are none.
        leaves, structure: of the rest.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    static: list[tuple[int | str, Any]]
    static_key: Hashable
    leaves: list[Any]
    structure: tree.TreeDef

    @property
    def dynamic(self) -> Any:
        """The pytree whose leaves these are."""
        return (self.args, self.kwargs) if self.kwargs else self.args


def gather(value: Any, kinds: list[Any], tensors: list[torch.Tensor]) -> bool:
    """Take arguments apart as `tree.flatten` does, in less time, if they are arrays in dicts, lists and tuples.

    Args:
        value: a dict with strings as keys, a list, a tuple or None.
        kinds: to which what tells these arguments from others is added: types of arrays, keys and lengths.
        tensors: to which the values are added.

    Returns:
        Whether they are, and all arrays have a value.
    """
    container = value.__class__
    if container is tuple:
        kinds.append(len(value))
    elif container is list:
        value = tuple(value)
        kinds.append(-1 - len(value))
    elif container is dict:
        order = text_keys(tuple(value))
        if order is None:
            return False
        kinds.append(order)
        value = [value[key] for key in order]
    else:
        kinds.append(value)
        return value is None
    for x in value:
        if x.__class__ is Array:
            tensor = x._buf
            if tensor is None:
                return False
            kind = x._leaf
            if kind is None:
                kind = layout(x)
                if x._buf is not None:
                    tensor = x._buf  # perhaps another view, with the strides that follow from its shape
            tensors.append(tensor)
            kinds.append(kind)
        elif not gather(x, kinds, tensors):
            return False
    return True


def gather_named(kwargs: dict[str, Any], kinds: list[Any], tensors: list[torch.Tensor]) -> bool:
    """Do the same for keyword arguments, after the others: f(x, k=y) is not f(x, {"k": y})."""
    kinds.append("**")
    return gather(kwargs, kinds, tensors)
