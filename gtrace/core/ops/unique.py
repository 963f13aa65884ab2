"""Indices of nonzero elements, and distinct elements: results whose sizes depend on values.

With ``size=`` the result has that size, which tracing needs. Without it these functions read values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from gtrace.core.base.errors import ShapeError, message
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ops import reduce
from gtrace.core.ops.complex_parts import imag, real
from gtrace.core.ops.create import arange, full
from gtrace.core.ops.cumulative import cumsum
from gtrace.core.ops.elementwise import floor_divide, minimum, remainder, subtract
from gtrace.core.ops.gather import index_axis
from gtrace.core.ops.join_split import concat, slice_axis
from gtrace.core.ops.logic import isnan, less, logical_and, logical_not, not_equal, where
from gtrace.core.ops.operands import cast, counting
from gtrace.core.ops.shape import as_size, moveaxis, ravel, reshape
from gtrace.core.ops.sorting import argsort
from gtrace.core.trace.array import Array, wrap
from gtrace.core.trace.convert import lift
from gtrace.core.trace.force import whole

__all__ = ["nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"]


@without_modes
def _places_of(mask: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(mask).squeeze(1)


def places_where(op: str, mask: Array, size: Any, fill: int = 0) -> Array:
    """Return the int64 indices where a one-dimensional mask holds.

    Args:
        size: the number of indices to return, with `fill` for missing ones; None: all.
    """
    if size is None:
        return wrap(_places_of(whole(mask, "size")))
    count = as_size(op, "size", size)
    # each index is written at its rank; false elements, and those beyond the size, go to one extra slot
    number = where(mask, minimum(subtract(cumsum(mask), 1), count), count)
    out = full((count + 1,), fill, torch.int64, device=mask.aval.device)
    written = out.at[number].set(arange(mask.shape[0], device=mask.aval.device), mode="promise_in_bounds")
    return slice_axis(written, 0, 0, count)


def filled(x: Array, mask: Array, fill: Any) -> Array:
    """Return x, which was taken where `mask` holds, with `fill` (an array or a number) beyond its count."""
    present = less(arange(x.shape[0], device=x.aval.device), reduce.sum(mask))
    present = reshape(present, (x.shape[0], *(1,) * (x.ndim - 1)))
    return where(present, x, cast(lift("fill_value", fill), x.aval.dtype))


@counting
def nonzero(x: Any, *, size: int | None = None, fill_value: Any = None) -> tuple[Array, ...]:
    """Return the int64 indices of nonzero elements in row-major order, one array per axis.

    Args:
        size: the number of indices to return, which tracing needs; None: all.
        fill_value: a number, or one per axis, for missing indices; None: 0.

    Raises:
        ShapeError: x is 0-d.
        ConcretizationError: there is no size while tracing.

    >>> gt.nonzero(gt.array([0., 3., 0., 5.]))
    (Array([1, 3], dtype=int64),)
    """
    x = lift("nonzero", x)
    if not x.ndim:
        raise ShapeError(message("nonzero", "an array with a dimension", "a 0-d array", "Use x != 0."))
    flat = ravel(x)
    mask = flat if x.aval.dtype is torch.bool else not_equal(flat, 0)
    places = places_where("nonzero", mask, size)
    fills = fill_value if isinstance(fill_value, (tuple, list)) else (fill_value,) * x.ndim
    if len(fills) != x.ndim:
        raise ShapeError(message("nonzero", f"{x.ndim} fill values", str(len(fills)), "Pass one for each axis."))
    out = []
    for axis in range(x.ndim):
        inner = math.prod(x.shape[axis + 1 :])
        place = places if x.ndim == 1 else remainder(floor_divide(places, max(inner, 1)), max(x.shape[axis], 1))
        out.append(place if size is None or fills[axis] in (None, 0) else filled(place, mask, fills[axis]))
    return tuple(out)


# -- distinct elements


class UniqueAllResult(NamedTuple):
    """The distinct elements, their first indices, the inverse indices, and their counts."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCountsResult(NamedTuple):
    """The distinct elements, and their counts."""

    values: Array
    counts: Array


class UniqueInverseResult(NamedTuple):
    """The distinct elements, and for each element of the array the index of its value."""

    values: Array
    inverse_indices: Array


def lexicographic(keys: Sequence[Array]) -> Array:
    """Return the indices that sort one-dimensional keys lexicographically; the last key counts most."""
    order = argsort(keys[0])
    for key in keys[1:]:
        order = index_axis(order, argsort(index_axis(key, order, 0)), 0)
    return order


def first_of_runs(rows: Array, equal_nan: bool) -> Array:
    """Return where a new value begins in sorted elements, or sorted rows of two dimensions."""
    after, before = slice_axis(rows, 0, 1, rows.shape[0]), slice_axis(rows, 0, 0, max(rows.shape[0] - 1, 0))
    if not rows.shape[0]:
        return full((0,), False, torch.bool, device=rows.aval.device)
    changed = not_equal(after, before)
    if equal_nan and rows.aval.floating:
        changed = logical_and(changed, logical_not(logical_and(isnan(after), isnan(before))))
    if rows.ndim > 1:
        changed = reduce.any(changed, 1)
    return concat([full((1,), True, torch.bool, device=rows.aval.device), changed])


def distinct(
    op: str, x: Array, axis: int | None = None, equal_nan: bool = False, size: int | None = None, fill: Any = None
) -> UniqueAllResult:
    """Return the distinct elements of x, or its slices along an axis, in order, with indices and counts.

    Args:
        equal_nan: NaNs are one value.
        size: the number of values to return; None: all.
        fill: the value of missing elements; None: the smallest value. Their counts are 0.
    """
    shape = x.shape if axis is None else (x.shape[axis],)
    if axis is None:
        rows = ravel(x)
        order = lexicographic([imag(rows), real(rows)]) if rows.aval.complex else argsort(rows)
    else:
        rows = moveaxis(x, axis, 0)
        flat = reshape(rows, (shape[0], math.prod(rows.shape[1:])))
        columns = [reshape(slice_axis(flat, 1, k, k + 1), (shape[0],)) for k in reversed(range(flat.shape[1]))]
        if x.aval.complex:
            columns = [part(column) for column in columns for part in (imag, real)]
        order = lexicographic(columns) if columns else arange(shape[0], device=x.aval.device)
    ordered = index_axis(rows, order, 0)
    first = first_of_runs(ordered if axis is None else index_axis(flat, order, 0), equal_nan)
    places = places_where(op, first, size)
    total = rows.shape[0]
    if size is None:
        bounds = concat([places, full((1,), total, torch.int64, device=x.aval.device)])
    else:
        bounds = places_where(op, first, size + 1, total)
    counts = subtract(bounds[1:], bounds[:-1])
    inverse = full((total,), 0, torch.int64, device=x.aval.device)
    inverse = inverse.at[order].set(subtract(cumsum(first), 1), mode="promise_in_bounds")
    if size and not total:
        if fill is None:
            raise ShapeError(message(op, "elements, or a fill_value", repr(x.aval), "There is no smallest element."))
        ordered, order = (
            full((1, *ordered.shape[1:]), 0, x.aval.dtype, device=x.aval.device),
            full((1,), 0, torch.int64, device=x.aval.device),
        )
    values = index_axis(ordered, places, 0)
    if size is not None and fill is not None:
        values = filled(values, first, fill)
    values = values if axis is None else moveaxis(values, 0, axis)
    return UniqueAllResult(values, index_axis(order, places, 0), reshape(inverse, shape), counts)


@counting
def unique_all(x: Any) -> UniqueAllResult:
    """Return the distinct elements of x in order, with their first indices, inverse indices, and counts.

    Indices refer to the flattened array, and every NaN is distinct.

    Raises:
        ConcretizationError: while tracing; use ``gtrace.numpy.unique`` with ``size=``.

    >>> gt.unique_all(gt.array([3, 1, 3])).indices
    Array([1, 0], dtype=int64)
    """
    return distinct("unique_all", lift("unique_all", x))


@counting
def unique_counts(x: Any) -> UniqueCountsResult:
    """Return the distinct elements of x in order, and their counts. Every NaN is distinct.

    Raises:
        ConcretizationError: while tracing; use ``gtrace.numpy.unique`` with ``size=``.

    >>> gt.unique_counts(gt.array([3, 1, 3])).counts
    Array([1, 2], dtype=int64)
    """
    values, _, _, counts = distinct("unique_counts", lift("unique_counts", x))
    return UniqueCountsResult(values, counts)


@counting
def unique_inverse(x: Any) -> UniqueInverseResult:
    """Return the distinct elements of x in order, and for each element of x the index of its value.

    Raises:
        ConcretizationError: while tracing; use ``gtrace.numpy.unique`` with ``size=``.

    >>> gt.unique_inverse(gt.array([3, 1, 3])).inverse_indices
    Array([1, 0, 1], dtype=int64)
    """
    values, _, inverse, _ = distinct("unique_inverse", lift("unique_inverse", x))
    return UniqueInverseResult(values, inverse)


def unique_values(x: Any) -> Array:
    """Return the distinct elements of x in order. Every NaN is distinct.

    Raises:
        ConcretizationError: while tracing; use ``gtrace.numpy.unique`` with ``size=``.

    >>> gt.unique_values(gt.array([3, 1, 3]))
    Array([1, 3], dtype=int64)
    """
    return distinct("unique_values", lift("unique_values", x)).values
