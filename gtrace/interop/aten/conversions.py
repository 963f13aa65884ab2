"""Dtype conversions and roundings as in torch."""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.dtypes import COMPLEX
from gtrace.core.base.errors import user_location, warn_at
from gtrace.core.ops.saturation import INTEGERS
from gtrace.core.trace.array import Array
from gtrace.core.trace.promotion import as_dtype

__all__ = ["fits", "is_inexact", "real_if_needed", "wrapped"]


def real_if_needed(x: Array, dtype: Any) -> Array:
    """Return the real part of complex numbers if the dtype is real, with torch's warning; other arrays unchanged."""
    if x.aval.dtype not in COMPLEX or as_dtype(dtype) in (*COMPLEX, torch.bool):
        return x
    warn_at("Casting complex values to real discards the imaginary part", user_location(), UserWarning)
    return ops.real(x)


def is_inexact(x: Any, dtype: torch.dtype) -> bool:
    """Whether `x` is a number that a floating dtype must round."""
    return isinstance(x, (int, float)) and float(torch.tensor(x, dtype=torch.float64, device="cpu").to(dtype)) != x


def wrapped(x: Any, dtype: torch.dtype) -> Any:
    """Return an integer as torch takes it beside integers of a dtype: its last bits. Anything else is unchanged."""
    if dtype not in INTEGERS or not isinstance(x, int) or isinstance(x, bool):
        return x
    limits = torch.iinfo(dtype)
    return (x - limits.min) % (limits.max - limits.min + 1) + limits.min


def fits(x: Any, dtype: torch.dtype) -> bool:
    """Whether `x` is a number that an array of the dtype has beside it without a promotion."""
    if isinstance(x, float):
        return dtype.is_floating_point
    if dtype in INTEGERS and isinstance(x, int):
        return wrapped(x, dtype) == x
    return isinstance(x, bool) or (isinstance(x, int) and dtype is not torch.bool)
