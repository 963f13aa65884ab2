"""Counts of elements beside floats of 16 bits or fewer, which can neither hold large ones nor number them all."""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core.ops.declare import Array
from gtrace.core.ops.elementwise import divide
from gtrace.core.ops.operands import cast


def is_short(dtype: torch.dtype) -> bool:
    """Whether a dtype is floating with fewer than 32 bits. float16 ends at 65,504; bfloat16 numbers up to 256."""
    return dtype.is_floating_point and dtype.itemsize < 4


def accumulator(x: Array) -> torch.dtype:
    """Return the dtype in which elements of x are summed and counted: float32 for short ones, otherwise their own."""
    return torch.float32 if is_short(x.aval.dtype) else x.aval.dtype


def unshortened(x: Array) -> Array:
    """Return x, in float32 if its dtype is short: for what is rounded once, at the end."""
    return cast(x, torch.float32) if is_short(x.aval.dtype) else x


def over_count(x: Array, count: Any) -> Array:
    """Return x / count in the dtype of x: the quotient of a short x is computed in float32 and rounded once.

    Args:
        count: a number, or an array of numbers that broadcasts with x.
    """
    if not is_short(x.aval.dtype):
        return divide(x, cast(count, x.aval.dtype) if isinstance(count, Array) else count)
    wide = cast(count, torch.float32) if isinstance(count, Array) else float(count)
    return cast(divide(cast(x, torch.float32), wide), x.aval.dtype)
