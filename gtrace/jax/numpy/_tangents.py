"""Arrays of the dtype ``float0``: tangents of integers, which have no values. They are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy

from gtrace.core import ops
from gtrace.jax.dtypes import float0

__all__ = ["zeros"]


def zeros(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """``gt.zeros``; of the dtype ``float0`` an array of NumPy's.

    >>> import gtrace.jax as jax
    >>> jax.numpy.zeros(2, jax.float0).shape, jax.numpy.zeros(2)
    ((2,), Array([0., 0.], dtype=float32))
    """
    if isinstance(dtype, numpy.dtype) and dtype == float0:
        return numpy.zeros(shape, float0)
    return ops.zeros(shape, dtype, device=device)
