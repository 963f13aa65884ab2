"""The arguments of linear algebra."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.errors import DtypeError, ShapeError, message
from gtrace.core.ops.operands import promote_arrays
from gtrace.core.trace.array import Array


def matrices(name: str, x: Any, square: bool = False, narrow: bool = False) -> Array:
    """Return an argument as a floating array of matrices.

    Args:
        narrow: allow floats of 16 bits, which torch has no decompositions for.

    Raises:
        ShapeError: it has fewer than two axes, or matrices that are not square.
        DtypeError: it is narrow.
    """
    a = promote_arrays(name, x, floating=True)[0]
    if a.ndim < 2 or (square and a.shape[-1] != a.shape[-2]):
        kind = "square matrices" if square else "matrices"
        raise ShapeError(message(name, f"{kind} in the last two axes", repr(a.aval), "Use gt.reshape."))
    if not narrow and a.aval.dtype in (torch.float16, torch.bfloat16):
        raise DtypeError(message(name, "matrices of float32 or float64", repr(a.aval), "Use x.astype(gt.float32)."))
    return a


def pair(name: str, a: Any, b: Any, square: bool = True) -> tuple[Array, Array]:
    """Return matrices and a right side in one floating dtype.

    Raises:
        ShapeError, DtypeError: as `matrices`, of the first.
    """
    x, y = promote_arrays(name, a, b, floating=True)
    return matrices(name, x, square), y


def finite_alone(function: Callable[[Array], Sequence[Array]], x: Array, read: Array | None = None) -> list[Array]:
    """Return the results of a function for each matrix; NaN for matrices with NaN or infinities, which torch refuses.

    So one such matrix leaves the others of a batch as they are.

    Args:
        read: the elements that the function reads, with finite values for the others; None: all of x.
    """
    known = ops.all(ops.isfinite(x if read is None else read), (-2, -1), keepdims=True)
    results = function(ops.where(known, x, 0.0))
    axes = x.ndim - 2
    return [
        ops.where(known if y.ndim == x.ndim else known[..., 0] if y.ndim > axes else known[..., 0, 0], y, math.nan)
        for y in results
    ]
