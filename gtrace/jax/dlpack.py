"""The names of ``jax.dlpack``."""

from __future__ import annotations

from typing import Any

from gtrace.extend import as_dtype
from gtrace.numpy import from_dlpack

__all__ = ["from_dlpack", "is_supported_dtype"]


def is_supported_dtype(dtype: Any) -> bool:
    """Return whether arrays of a dtype are exchanged by DLPack.

    >>> is_supported_dtype("float32")
    True
    """
    return as_dtype(dtype).itemsize > 0
