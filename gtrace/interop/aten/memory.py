"""``as_strided`` and related operators, which read a tensor's memory. Recorded programs have their own memory layout.

They are traced as calls on a dense tensor with all elements of the memory in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core.base.errors import ArgumentError, message
from gtrace.interop.aten.traced_tensor import TracedTensor


def with_memory(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return a call on the whole memory of its traced first operand; None if the operand is the whole memory.

    Raises:
        ArgumentError: no dense tensor has that memory.
    """
    x, *rest = args
    count = 1 if "scatter" in str(function) else 0  # the source comes before the description
    given = dict(zip(("size", "stride", "storage_offset"), rest[count:], strict=False)) | kwargs
    offset = given.get("storage_offset")
    offset = x.storage_offset() if offset is None else offset
    root = x
    while root.origin is not None:
        root = root.origin.base
    if x.dtype is root.dtype and is_whole(x) and not x.storage_offset() and (root is x or x.numel() == root.numel()):
        return None
    found = function(_memory(root, x.dtype), *rest[:count], given["size"], given["stride"], offset)
    return torch.as_strided(found, x.shape, x.stride(), x.storage_offset()) if count else found


def _memory(root: TracedTensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a dense tensor of the elements in the memory of a traced tensor that is not a view."""
    order = _order(root)
    if order is None or root.memory.fixed or root.storage_offset() or root.dtype is not dtype:
        raise ArgumentError(
            message("as_strided", "a view of a dense tensor", f"one with strides {root.stride()}",
                    "Call contiguous() first, and describe the memory that it gives.")
        )  # fmt: skip
    return root.permute(order)


def constant_memory(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a call with the whole memory of its first operand, which has values."""
    x, *rest = args
    if "scatter" in str(function):  # the result has the axes of the operand
        return (x.contiguous(), *rest)
    length = x.untyped_storage().nbytes() // x.element_size()
    size, stride, *offset = rest
    first = offset[0] if offset else kwargs.get("storage_offset")
    return x.as_strided((length,), (1,), 0).clone(), size, stride, x.storage_offset() if first is None else first


def is_whole(x: torch.Tensor) -> bool:
    """Whether a tensor's elements are in the order of its memory."""
    return _order(x) == list(range(x.dim()))


def _order(x: torch.Tensor) -> list[int] | None:
    return memory_order(x.shape, x.stride())


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    """Return the axes in memory order; None if the tensor is not dense."""
    axes = list(range(len(shape)))
    if 0 in shape:
        return axes
    for order in (axes, sorted(axes, key=lambda k: (-strides[k], -shape[k]))):
        length = 1
        for k in reversed(order):
            if shape[k] != 1 and strides[k] != length:
                break
            length *= shape[k]
        else:
            return order
    return None
