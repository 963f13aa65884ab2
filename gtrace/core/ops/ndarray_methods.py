"""Diagonals, selected slices and ranges, which NumPy's arrays have as methods."""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core.base.errors import BoundsError, ShapeError, message
from gtrace.core.ops import reduce
from gtrace.core.ops.create import array
from gtrace.core.ops.declare import Array, lift
from gtrace.core.ops.elementwise import subtract
from gtrace.core.ops.gather import index_axis
from gtrace.core.ops.join_split import slice_axis, slice_bounds
from gtrace.core.ops.logic import not_equal
from gtrace.core.ops.shape import as_int, moveaxis, normalize_axis, reshape, with_axis
from gtrace.core.ops.unique import filled, places_where
from gtrace.core.trace.force import whole
from gtrace.core.trace.replayable import replayable


def diagonal_bounds(rows: int, columns: int, offset: int) -> tuple[int, int, int]:
    """Return start, stop and step of a diagonal in a flattened matrix."""
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    start = offset if offset >= 0 else -offset * columns
    return (start, start + (count - 1) * (columns + 1) + 1, columns + 1) if count else (0, 0, 1)


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Return the diagonals over two axes, as the last axis of the result.

    Args:
        offset: the distance above the main diagonal; negative: below.

    Raises:
        ShapeError: there are fewer than two dimensions, or the axes are equal.

    >>> gnp.diagonal(gnp.array([[1, 2], [3, 4]]))
    Array([1, 4], dtype=int64)
    """
    x, k = lift("diagonal", x), as_int("diagonal", "offset", offset)
    if x.ndim < 2:
        raise ShapeError(message("diagonal", "at least two dimensions", repr(x.aval), "Use gtrace.numpy.diag."))
    first, second = normalize_axis("diagonal", axis1, x.ndim), normalize_axis("diagonal", axis2, x.ndim)
    if first == second:
        raise ShapeError(message("diagonal", "two axes", f"axis {first} twice", "Name two."))
    x = moveaxis(x, (first, second), (-2, -1))
    *rest, rows, columns = x.shape
    flat = reshape(x, (*rest, rows * columns))
    return slice_bounds(flat, (*((0, n, 1) for n in rest), diagonal_bounds(rows, columns, k)))


@replayable
def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Array:
    """Return the sums of the diagonals over two axes; see `diagonal`.

    >>> gnp.trace(gnp.array([[1, 2], [3, 4]]))
    Array(5, dtype=int64)
    """
    return reduce.sum(diagonal(x, offset, axis1, axis2), -1, dtype)


def ptp(x: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """Return the largest minus the smallest element over `axis`.

    >>> gnp.ptp(gnp.array([3., 1., 2.]))
    Array(2., dtype=float32)
    """
    return subtract(reduce.max(x, axis, keepdims), reduce.min(x, axis, keepdims))


def compress(condition: Any, x: Any, axis: int | None = None, *, size: int | None = None, fill_value: Any = 0) -> Array:
    """Return the slices of x along `axis` (None: the elements of the flattened array) where `condition` holds.

    Args:
        condition: a one-dimensional mask. Places of the axis beyond it are left out; it holds nowhere beyond the axis.
        size: the number of slices to return, which tracing needs; None: as many as `condition` selects.
        fill_value: the value of missing slices.

    Raises:
        ShapeError: the condition has more dimensions.
        BoundsError: it holds at a place beyond the axis.
        ConcretizationError: there is no size while tracing.

    >>> gnp.compress(gnp.array([True, False, True]), gnp.array([1, 2, 3]))
    Array([1, 3], dtype=int64)
    """
    x, axis = with_axis("compress", x, axis)
    mask = array(condition)
    if mask.ndim != 1:
        got = f"{mask.aval!r} for axis {axis} of {x.aval!r}"
        raise ShapeError(message("compress", "a mask of one dimension", got, "Use gt.ravel."))
    mask = mask if mask.aval.dtype is torch.bool else not_equal(mask, 0)
    count = min(mask.shape[0], x.shape[axis])
    if size is None and mask.shape[0] > count and whole(mask[count:], "size").any():
        got = f"{mask.aval!r} for axis {axis} of {x.aval!r}"
        raise BoundsError(message("compress", "a mask that holds nowhere beyond the axis", got, "Check its shape."))
    mask = mask[:count]
    x = moveaxis(slice_axis(x, axis, 0, count), axis, 0)
    out = index_axis(x, places_where("compress", mask, size), 0)
    return moveaxis(out if size is None else filled(out, mask, fill_value), 0, axis)
