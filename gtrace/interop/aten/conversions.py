"""Dtype conversions as in torch."""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.dtypes import COMPLEX
from gtrace.core.base.errors import user_location, warn_at
from gtrace.core.trace.array import Array
from gtrace.core.trace.promotion import as_dtype

__all__ = ["real_if_needed"]


def real_if_needed(x: Array, dtype: Any) -> Array:
    """Return the real part of complex numbers if the dtype is real, with torch's warning; other arrays unchanged."""
    if x.aval.dtype not in COMPLEX or as_dtype(dtype) in (*COMPLEX, torch.bool):
        return x
    warn_at("Casting complex values to real discards the imaginary part", user_location(), UserWarning)
    return ops.real(x)
