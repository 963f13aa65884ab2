"""Rows of arrays on a CPU that are chosen, or added, at integer places.

torch's kernels for indexing look up the place of every element, and add elements one by one. Those for rows copy and
add memory: of 4,000 rows of 64 they take 16 us in place of 149, and 62 in place of 485.
"""

from __future__ import annotations

import math

import torch

from gtrace.core.backends.interpreter.short_sums import rounded_once
from gtrace.core.backends.interpreter.tuned import LEAST_CHOSEN, LEAST_CHOSEN_ROW
from gtrace.core.base.mechanisms import ROW_INDEXING
from gtrace.core.ir.aval import Aval

_ADDED = torch.float32, torch.float64, torch.float16, torch.bfloat16
_CHOSEN = *_ADDED, torch.int64, torch.int32, torch.bool
_PLACES = torch.int64, torch.int32

_index_add = rounded_once(torch.index_add)


def chooses_rows(x: Aval, index: Aval) -> bool:
    """Whether `choose_rows` is the faster way to read x at places of its first axis."""
    row = math.prod(x.shape[1:])
    return (
        ROW_INDEXING.on
        and x.dtype in _CHOSEN and index.dtype in _PLACES and x.device.type == index.device.type == "cpu"
        and row >= LEAST_CHOSEN_ROW and row * math.prod(index.shape) >= LEAST_CHOSEN
    )  # fmt: skip


def choose_rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return x[index]."""
    ROW_INDEXING.used()
    low, high = torch.aminmax(index)
    size = x.shape[0]
    if not x.is_contiguous() or low.item() < -size or high.item() >= size:  # the kernel of indexing says which one
        return torch.ops.aten.index.Tensor(x, [index])
    flat = _counted(index, low, size).reshape(-1)
    return torch.index_select(x, 0, flat).view(*index.shape, *x.shape[1:])


def adds_rows(x: Aval, u: Aval, index: Aval) -> bool:
    """Whether `add_rows` adds u to x at places of its first axis."""
    return (
        ROW_INDEXING.on
        and x.dtype in _ADDED and u.dtype is x.dtype and index.dtype in _PLACES and x.device.type == "cpu"
        and u.shape == (*index.shape, *x.shape[1:])
    )  # fmt: skip


def add_rows(x: torch.Tensor, u: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return x with the rows of u added at the places of its first axis, all those of one place.

    torch's kernel rounds sums of 16 bits after each addition.
    """
    if not index.numel():
        return x.clone()
    ROW_INDEXING.used()
    flat = _counted(index, index.min(), x.shape[0]).reshape(-1)
    return _index_add(x, 0, flat, u.reshape(flat.shape[0], *x.shape[1:]))


def _counted(index: torch.Tensor, low: torch.Tensor, size: int) -> torch.Tensor:
    """Return places, the lowest of which is `low`, counted from the beginning of an axis."""
    return torch.where(index < 0, index + size, index) if low.item() < 0 else index
