"""The arguments of a call in one walk: what tells it from other calls, and the values.

This is the fast path of `gtrace.jit`. It reads the slots of Arrays in place, as a call would cost 50 ns an array.
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
    except RecursionError:  # `tree.flatten` refuses it
        return False
    return True


def gather_named(kwargs: dict[str, Any], kinds: list[Any], tensors: list[torch.Tensor]) -> bool:
    """Do the same for keyword arguments, after the others: f(x, k=y) is not f(x, {"k": y})."""
    kinds.append("**")
    return gather(kwargs, kinds, tensors)


def noted_kinds(arguments: Sequence[Any]) -> list[Leaf | None] | None:
    """Return the `gtrace.core.trace.force.layout` noted on each argument; None: not all are Arrays."""
    try:
        return [x._leaf for x in arguments]
    except AttributeError:  # a Python scalar, or an array of another library
        return None


def tensors_of(arrays: Sequence[Array]) -> list[Any]:
    """Return the values of Arrays that have one."""
    return [x._buf for x in arrays]
