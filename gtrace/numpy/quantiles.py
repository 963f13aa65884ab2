"""Quantiles, percentiles and medians, by sorting."""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.config import config
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.gather import index_axis
from gtrace.core.ops.join_split import slice_axis
from gtrace.core.ops.operands import beside, cast, promote
from gtrace.core.ops.reduce import to_last
from gtrace.core.ops.shape import normalize_axis
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.transform.vmap import vmap

__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]

# (alpha, beta) of R. Hyndman and Y. Fan, "Sample Quantiles in Statistical Packages" (1996)
_CONTINUOUS = {
    "linear": (1.0, 1.0),
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
_INVERTED = ("inverted_cdf", "averaged_inverted_cdf", "closest_observation")
_METHODS = (*_CONTINUOUS, *_INVERTED, "lower", "higher", "midpoint", "nearest")


def _quantile(
    op: str, x: Any, q: Any, axis: Any, method: str, keepdims: bool, skip: bool, weights: Any = None
) -> Array:  # fmt: skip
    """Return quantiles; `skip`: of the elements that are not NaN."""
    if method not in _METHODS:
        raise ArgumentError(message(op, f"a method among {', '.join(_METHODS)}", repr(method), "Use one of them."))
    (x,) = promote(op, lift(op, x), floating=True)
    if not isinstance(q, (Array, torch.Tensor)) and not config.current.jax_results:
        parts = numpy.asarray(q)
        if not ((parts >= 0) & (parts <= 1)).all():
            raise ArgumentError(
                message(op, "a q within its range", repr(q), "It is from 0 to 1, of percentiles to 100.")
            )
    # 0.3 in float32 is another place
    q = beside(x.aval.device, q, ops.array(q, None if hasattr(q, "dtype") else torch.float64))
    rows, shape = to_last(op, x, axis, keepdims)
    *rest, size = rows.shape
    if not size:
        raise ArgumentError(message(op, "elements", repr(x.aval), "A quantile of nothing does not exist."))
    if weights is not None:
        if method != "inverted_cdf":
            raise ArgumentError(message(op, "inverted_cdf as the method beside weights", repr(method), "Pass it."))
        return _weighted(op, x, q, weights, axis, keepdims, skip)
    ordered = ops.sort(rows)  # NaNs come last
    wanted = cast(ops.ravel(q), torch.float64)  # float32 cannot number all elements
    count: Any = size
    if skip:
        count = cast(ops.sum(ops.logical_not(ops.isnan(rows)), -1, keepdims=True), torch.float64)
    low, weight = _place(wanted, count, method)
    high = ops.clip(ops.add(low, 1), 0, ops.subtract(count, 1) if skip else size - 1)

    def at(places: Array) -> Array:
        places = cast(ops.clip(places, 0, size - 1), torch.int64)
        return ops.take_along_axis(ordered, places, -1) if skip else index_axis(ordered, places, rows.ndim - 1)

    below, above, weight = at(low), at(high), cast(weight, rows.aval.dtype)
    gap = ops.subtract(above, below)
    # between equal infinities, and before an infinity without weight, there is nothing to add
    nothing = ops.logical_and(
        ops.logical_not(ops.isfinite(gap)), ops.logical_or(ops.equal(below, above), ops.equal(weight, 0.0))
    )
    out = below + ops.where(nothing, 0.0, gap) * weight
    if not skip:
        last = slice_axis(ordered, rows.ndim - 1, size - 1, size)
        out = ops.where(ops.isnan(last), math.nan, out)
    out = ops.moveaxis(ops.broadcast_to(out, (*rest, q.size)), -1, 0)
    return ops.reshape(out, (*q.shape, *shape))


def _weighted(op: str, x: Array, q: Array, weights: Any, axis: Any, keepdims: bool, skip: bool) -> Array:
    """Return the least elements up to which the weights make a part q of all; `skip`: without elements that are NaN."""
    w = beside(x.aval.device, weights, ops.array(weights))
    if w.shape != x.shape:
        if w.ndim != 1 or not isinstance(axis, int) or w.shape[0] != x.shape[axis]:
            got = f"{w.aval!r} for {x.aval!r}"
            raise ShapeError(message(op, "weights with the shape of the array or of the axis", got, "Check it."))
        place = normalize_axis(op, axis, x.ndim)
        w = ops.broadcast_to(ops.reshape(w, tuple(n if k == place else 1 for k, n in enumerate(x.shape))), x.shape)
    w = cast(w, torch.float64)
    w = ops.where(ops.isnan(x), 0.0, w) if skip else w
    (rows, shape), (parts, _) = to_last(op, x, axis, keepdims), to_last(op, w, axis, keepdims)
    order = ops.argsort(rows)
    rows = ops.take_along_axis(rows, order, -1)
    below = ops.cumsum(ops.take_along_axis(parts, order, -1), -1)
    below = ops.divide(below, slice_axis(below, below.ndim - 1, below.shape[-1] - 1, below.shape[-1]))
    # elements of no weight are passed over at the start too
    below = ops.where(ops.equal(below, 0.0), -1.0, below)
    kind = q.aval.dtype if q.aval.floating else torch.float64
    below, wanted = cast(below, kind), cast(ops.ravel(q), kind)
    places = vmap(lambda row: ops.searchsorted(row, wanted))(ops.reshape(below, (-1, below.shape[-1])))
    places = ops.minimum(ops.reshape(places, (*rows.shape[:-1], q.size)), rows.shape[-1] - 1)
    out = ops.take_along_axis(rows, places, -1)
    if not skip:
        out = ops.where(ops.any(ops.isnan(rows), -1, True), math.nan, out)
    return ops.reshape(ops.moveaxis(out, -1, 0), (*q.shape, *shape))


def _place(q: Array, count: Any, method: str) -> tuple[Array, Array]:
    """Return the place of the element below each quantile, and the weight of the next one."""
    if method in _CONTINUOUS:
        alpha, beta = _CONTINUOUS[method]
        place = ops.multiply(q, count) + (q * (1.0 - alpha - beta) + alpha - 1.0)
    elif method in _INVERTED:
        place = ops.multiply(q, count) - (1.5 if method == "closest_observation" else 1.0)
        low = ops.floor(place)
        whole = ops.equal(place, low)
        if method == "averaged_inverted_cdf":
            return ops.maximum(low, 0.0), ops.where(low < 0, 0.0, ops.where(whole, 0.5, 1.0))
        keep = whole if method == "inverted_cdf" else ops.logical_and(whole, ops.equal(low % 2.0, 1.0))
        return ops.maximum(ops.where(keep, low, low + 1.0), 0.0), ops.multiply(place, 0.0)
    else:
        place = q * (ops.subtract(count, 1) if isinstance(count, Array) else count - 1)
        place = {"lower": ops.floor, "higher": ops.ceil, "nearest": ops.round}.get(method, lambda p: p)(place)
    place = ops.clip(place, 0.0, ops.subtract(count, 1) if isinstance(count, Array) else count - 1)
    low = ops.floor(place)
    fraction = place - low
    return low, ops.where(fraction > 0, 0.5, 0.0) if method == "midpoint" else fraction


def quantile(
    x: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False, weights: Any = None
) -> Array:
    """Return the values below which the fractions q of the elements over `axis` lie; NaN if there is one.

    Args:
        q: numbers from 0 to 1; their axes come first in the result.
        method: what to do between two elements: ``"linear"``, ``"lower"``, ``"higher"``, ``"midpoint"``,
            ``"nearest"``, or another method of NumPy's.
        weights: how much each element counts, with the shape of x or of the axis; for ``"inverted_cdf"`` alone.

    Raises:
        ArgumentError: another method, no elements, or numbers q outside of their range. Elements of an Array q are not
            looked at: outside of it they are the least or the greatest element.

    >>> gnp.quantile(gnp.array([1., 2., 3., 4.]), 0.5)
    Array(2.5, dtype=float32)
    """
    return _quantile("quantile", x, q, axis, method, keepdims, False, weights)


def percentile(
    x: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False, weights: Any = None
) -> Array:
    """Return quantiles as `quantile` does, for q from 0 to 100.

    >>> gnp.percentile(gnp.array([1., 2., 3., 4.]), gnp.array([0, 50]))
    Array([1. , 2.5], dtype=float32)
    """
    return _quantile("percentile", x, _hundredths(q), axis, method, keepdims, False, weights)


def median(x: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """Return the median over `axis`: the middle element, or the mean of the two in the middle; NaN if there is one.

    >>> gnp.median(gnp.array([1., 5., 2.]))
    Array(2., dtype=float32)
    """
    return _quantile("median", x, 0.5, axis, "linear", keepdims, False)


def nanquantile(
    x: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False, weights: Any = None
) -> Array:
    """Return the quantiles of the elements that are not NaN; the arguments are those of `quantile`.

    >>> gnp.nanquantile(gnp.array([1., gnp.nan, 3.]), 0.5)
    Array(2., dtype=float32)
    """
    return _quantile("nanquantile", x, q, axis, method, keepdims, True, weights)


def nanpercentile(
    x: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False, weights: Any = None
) -> Array:
    """Return the percentiles of the elements that are not NaN; the arguments are those of `percentile`.

    >>> gnp.nanpercentile(gnp.array([1., gnp.nan, 3.]), 50)
    Array(2., dtype=float32)
    """
    return _quantile("nanpercentile", x, _hundredths(q), axis, method, keepdims, True, weights)


def nanmedian(x: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """Return the median over `axis` of the elements that are not NaN; NaN if all are.

    >>> gnp.nanmedian(gnp.array([1., gnp.nan, 3.]))
    Array(2., dtype=float32)
    """
    return _quantile("nanmedian", x, 0.5, axis, "linear", keepdims, True)


def _hundredths(q: Any) -> Any:
    # in double precision: 0.3 of ten elements is a place, 0.30000001 is between two
    if isinstance(q, (Array, torch.Tensor)):
        return ops.array(q, dtype=torch.float64) / 100.0
    return numpy.asarray(q, numpy.float64) / 100.0
