"""Collects the types and values of a call's arguments in one walk.

This is the fast path of `gtrace.jit`. It reads the slots of Arrays directly, because a call would cost 50 ns an array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core.base.tree.treedef import text_keys
from gtrace.core.ir.op import Leaf
from gtrace.core.trace.array import Array
from gtrace.core.trace.force import layout


def gather(value: Any, kinds: list[Any], tensors: list[torch.Tensor]) -> bool:
    """Flatten arguments like `tree.flatten`, but faster, if they are arrays in dicts, lists and tuples.

    Args:
        value: a dict with string keys, a list, a tuple or None.
        kinds: the list that gets the types of arrays, keys and lengths. It tells these arguments from others.
        tensors: the list that gets the values.

    Returns:
        Whether the arguments have this form, and all arrays have a value.
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
    try:
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
    except RecursionError:  # `tree.flatten` raises for it
        return False
    return True


def gather_named(kwargs: dict[str, Any], kinds: list[Any], tensors: list[torch.Tensor]) -> bool:
    """Flatten keyword arguments after the others. The mark separates f(x, k=y) from f(x, {"k": y})."""
    kinds.append("**")
    return gather(kwargs, kinds, tensors)


def noted_kinds(arguments: Sequence[Any]) -> list[Leaf | None] | None:
    """Return the cached `gtrace.core.trace.force.layout` of each argument; None unless all are Arrays."""
    try:
        return [x._leaf for x in arguments]
    except AttributeError:  # a Python scalar, or an array of another library
        return None


def tensors_of(arrays: Sequence[Array]) -> list[Any]:
    """Return the values of Arrays that have a value."""
    return [x._buf for x in arrays]
