"""Variances and standard deviations."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy
import torch

from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops import reduce
from gtrace.core.ops.counts import is_short
from gtrace.core.ops.declare import Array, lift
from gtrace.core.ops.elementwise import divide, maximum, sqrt, squared_magnitude, subtract
from gtrace.core.ops.operands import cast, promote
from gtrace.core.ops.shape import normalize_axes
from gtrace.core.trace.promotion import as_dtype
from gtrace.core.trace.replayable import replayable

__all__ = ["std", "var"]


@replayable
def var(
    x: Any, axis: Any = None, correction: float = 0.0, keepdims: bool = False, *, dtype: Any = None,
    ddof: float | None = None, where: Any = None, mean: Any = None,
) -> Array:  # fmt: skip
    """Return the variance over `axis`: squared magnitudes of deviations, summed, over the count minus `correction`.

    Args:
        ddof: NumPy's name of `correction`.
        where: a mask that broadcasts to x; only elements where it holds count.
        mean: what the deviations are from, with the reduced axes; None: the mean.

    >>> gt.var(gt.array([1., 2., 3.]), correction=1)
    Array(1., dtype=float32)
    """
    x = lift("var", x)
    (x,) = promote("var", x if dtype is None else cast(x, as_dtype(dtype)), floating=True)
    if ddof is not None:
        if correction:
            raise ArgumentError(message("var", "correction or ddof", "both", "They are one number: pass one."))
        correction = ddof
    if not isinstance(correction, (int, float, numpy.number)):
        raise ArgumentError(message("var", "a number as correction", repr(correction), "Pass the rest by name."))
    if is_short(x.aval.dtype):  # its sums of squares overflow
        return cast(var(cast(x, torch.float32), axis, correction, keepdims, where=where, mean=mean), x.aval.dtype)
    axes = normalize_axes("var", axis, x.ndim)
    center = reduce.mean(x, axes, True, where=where) if mean is None else mean
    deviation = subtract(x, center)
    if where is None:
        count: Any = builtins.max(float(math.prod(x.shape[k] for k in axes) - correction), 0.0)
    else:
        deviation = reduce.keeping("var", deviation, where, 0)
        kept = reduce.count_kept(squared_magnitude(deviation), where, axes, keepdims)
        count = maximum(subtract(kept, float(correction)), 0.0)
    return divide(reduce.sum(squared_magnitude(deviation), axes, keepdims=keepdims), count)


@replayable
def std(
    x: Any, axis: Any = None, correction: float = 0.0, keepdims: bool = False, *, dtype: Any = None,
    ddof: float | None = None, where: Any = None, mean: Any = None,
) -> Array:  # fmt: skip
    """Return the standard deviation over `axis`, the square root of `var`, whose arguments it takes.

    >>> gt.std(gt.array([1., 3.]))
    Array(1., dtype=float32)
    """
    return sqrt(var(x, axis, correction, keepdims, dtype=dtype, ddof=ddof, where=where, mean=mean))
