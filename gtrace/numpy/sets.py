"""Distinct elements, and sets of them. With ``size=`` the functions work while tracing."""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops.gather import index_axis
from gtrace.core.ops.operands import beside, cast, counting, promote_arrays
from gtrace.core.ops.shape import constant, normalize_axis
from gtrace.core.ops.unique import distinct, filled, first_of_runs, places_where
from gtrace.core.trace.array import Array

__all__ = ["intersect1d", "isin", "setdiff1d", "setxor1d", "union1d", "unique"]


@counting
def unique(
    x: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,  # noqa: A002 - NumPy's name
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """Return the distinct elements of x, or slices along `axis`, in order; or a tuple with what else is asked for.

    Args:
        return_index: also the first place of each.
        return_inverse: also for each element of x the number of its value.
        return_counts: also how often each comes.
        equal_nan: NaNs are one value.
        sorted: ignored; the values are always in order.
        size: how many values to return, so that the function works while tracing; None: as many as there are.
        fill_value: in place of values that are missing; None: the smallest. Their counts are 0.

    Raises:
        ConcretizationError: no size, while tracing.

    >>> gnp.unique(gnp.array([3, 1, 3]), return_counts=True)
    (Array([1, 3], dtype=int64), Array([1, 2], dtype=int64))
    """
    x = ops.array(x)
    place = None if axis is None else normalize_axis("unique", axis, x.ndim)
    values, index, inverse, counts = distinct("unique", x, place, equal_nan, size, fill_value)
    asked = ((return_index, index), (return_inverse, inverse), (return_counts, counts))
    more = [part for wanted, part in asked if wanted]
    return (values, *more) if more else values


def _member(x: Array, ordered: Array) -> Array:
    """Return where the elements of x are among those of `ordered`, which is sorted; NaN is among none."""
    if not ordered.size:
        return ops.full(x.shape, False, device=x.aval.device)
    usable: Array | None = None
    if ordered.aval.floating:
        # NaNs would mislead the search: they become another of the elements, if there is one
        missing = ops.isnan(ordered)
        usable = ops.any(ops.logical_not(missing))
        ordered = ops.sort(ops.where(missing, ops.min(ops.where(missing, math.inf, ordered)), ordered))
    places = ops.clip(ops.searchsorted(ordered, x), 0, ordered.size - 1)
    found = ops.equal(index_axis(ordered, places, 0), x)
    return found if usable is None else ops.logical_and(found, usable)


def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, kind: str | None = None
) -> Array:
    """Return where an element is among the test elements. NaN is among none.

    Args:
        assume_unique, kind: ignored; NumPy's names for ways to search.
        invert: return where it is not.

    >>> gnp.isin(gnp.array([1, 2, 3]), [3, 1])
    Array([ True, False,  True], dtype=bool)
    """
    if kind not in (None, "sort", "table"):
        raise ArgumentError(message("isin", "sort or table as kind", repr(kind), "Leave it out."))
    x, tests = _same_kind("isin", element, test_elements)
    out = _member(x, ops.sort(ops.ravel(tests)))
    return ops.logical_not(out) if invert else out


def _same_kind(op: str, x: Any, y: Any) -> tuple[Array, Array]:
    """Return two arrays in one dtype; booleans become uint8, which can be searched."""
    a, b = ops.array(x), ops.array(y)
    x, y = promote_arrays(op, beside(b.aval.device, x, a), beside(a.aval.device, y, b))
    return (cast(x, torch.uint8), cast(y, torch.uint8)) if x.aval.dtype is torch.bool else (x, y)


def _chosen(op: str, ordered: Array, mask: Array, size: int | None, fill: Any, dtype: torch.dtype) -> Array:
    """Return the elements where the mask holds; with a size, and beyond their count, `fill`.

    Without it the first element stands there, and 0 where there is none.
    """
    if size and not ordered.size:
        return ops.full((size,), 0 if fill is None else fill, dtype, device=ordered.aval.device)
    out = cast(index_axis(ordered, places_where(op, mask, size), 0), dtype)
    if size is None or not size:
        return out
    return filled(out, mask, ops.where(ops.any(mask), out[0], constant(0, out[0].aval)) if fill is None else fill)


def union1d(x: Any, y: Any, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Return the distinct elements of two arrays, in order.

    Args:
        size, fill_value: as in `unique`.

    >>> gnp.union1d(gnp.array([3, 1]), gnp.array([1, 2]))
    Array([1, 2, 3], dtype=int64)
    """
    both = ops.concat([ops.ravel(ops.array(x)), ops.ravel(ops.array(y))])
    return distinct("union1d", both, None, True, size, fill_value).values


def intersect1d(
    x: Any,
    y: Any,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """Return the distinct elements that are in both arrays, in order.

    Args:
        assume_unique: ignored; a promise of NumPy's that saves work there.
        return_indices: return (the elements, their first places in x, and in y).
        size: how many to return, so that the function works while tracing; None: as many as there are.
        fill_value: in place of elements that are missing; None: the smallest, or 0. Their places are the
            lengths of x and y.

    >>> gnp.intersect1d(gnp.array([3, 1, 2]), gnp.array([2, 3, 5]))
    Array([2, 3], dtype=int64)
    """
    a, b = (ops.ravel(z) for z in _same_kind("intersect1d", x, y))
    dtype = promote_arrays("intersect1d", ops.array(x), ops.array(y))[0].aval.dtype
    orders = ops.argsort(a), ops.argsort(b)
    first, second = index_axis(a, orders[0], 0), index_axis(b, orders[1], 0)
    mask = ops.logical_and(first_of_runs(first, True), _member(first, second))
    out = _chosen("intersect1d", first, mask, size, fill_value, dtype)
    if not return_indices:
        return out
    if size and not a.size:
        return out, *[cast(ops.full((size,), z.size, device=a.aval.device), orders[0].aval.dtype) for z in (a, b)]
    places = places_where("intersect1d", mask, size)
    there = ops.clip(ops.searchsorted(second, index_axis(first, places, 0)), 0, max(b.size - 1, 0))
    found = index_axis(orders[0], places, 0), index_axis(orders[1], there, 0)
    if size is not None:
        missing = ops.arange(size, device=a.aval.device) >= ops.sum(mask)
        found = ops.where(missing, a.size, found[0]), ops.where(missing, b.size, found[1])
    return out, *found


def setdiff1d(
    x: Any, y: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = 0
) -> Array:  # fmt: skip
    """Return the distinct elements of x that are not in y, in order.

    Args:
        assume_unique: the elements of x are distinct, and stay in their order.
        size: how many to return, so that the function works while tracing; None: as many as there are.
        fill_value: in place of elements that are missing.

    >>> gnp.setdiff1d(gnp.array([3, 1, 2]), gnp.array([2]))
    Array([1, 3], dtype=int64)
    """
    a, b = (ops.ravel(z) for z in _same_kind("setdiff1d", x, y))
    a = a if assume_unique else ops.sort(a)
    mask = ops.logical_not(_member(a, ops.sort(b)))
    if not assume_unique:
        mask = ops.logical_and(mask, first_of_runs(a, True))
    return _chosen("setdiff1d", a, mask, size, fill_value, ops.array(x).aval.dtype)


def setxor1d(
    x: Any, y: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Array:  # fmt: skip
    """Return the distinct elements that are in exactly one of two arrays, in order.

    Args:
        assume_unique: ignored; a promise of NumPy's that saves work there.
        size: how many to return, so that the function works while tracing; None: as many as there are.
        fill_value: in place of elements that are missing; None: the smallest, or 0.

    >>> gnp.setxor1d(gnp.array([3, 1, 2]), gnp.array([2, 5]))
    Array([1, 3, 5], dtype=int64)
    """
    a, b = (ops.sort(ops.ravel(z)) for z in _same_kind("setxor1d", x, y))
    dtype = promote_arrays("setxor1d", ops.array(x), ops.array(y))[0].aval.dtype
    masks = [ops.logical_and(first_of_runs(s, True), ops.logical_not(_member(s, t))) for s, t in ((a, b), (b, a))]
    both, mask = ops.concat([a, b]), ops.concat(masks)
    order = ops.argsort(both)
    return _chosen("setxor1d", index_axis(both, order, 0), index_axis(mask, order, 0), size, fill_value, dtype)
