"""Statistics of samples under SciPy's names: modes, ranks, the standard error of the mean."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gtrace.extend import ArgumentError, Array, ShapeError, message, ops
from gtrace.numpy.functional import apply_along_axis
from gtrace.numpy.nan_reductions import nanstd

__all__ = ["ModeResult", "mode", "rankdata", "sem"]


class ModeResult(NamedTuple):
    """The result of `mode`."""

    mode: Array
    count: Array  # type: ignore[assignment] # SciPy's name, which hides the tuple's method


def mode(a: Any, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False) -> ModeResult:
    """Return the most frequent value along an axis, of equally frequent ones the smallest, and how often it comes.

    NaN is the mode wherever there is one, as in SciPy.

    >>> from gtrace.scipy.stats import mode
    >>> mode(gt.array([3., 1., 3., 1.])).mode
    Array(1., dtype=float32)
    """
    if nan_policy != "propagate":
        raise ArgumentError(message("mode", "propagate as nan_policy", repr(nan_policy), "Remove NaN before."))
    x = ops.array(a)
    shape = x.shape
    if axis is None:
        x, axis = ops.ravel(x), 0
    x = x.swapaxes(axis, -1).sort(-1) if x.ndim > 1 else x.sort(-1)
    if not x.shape[-1]:
        raise ShapeError(message("mode", "at least one element along the axis", repr(x.aval), "Leave it out."))
    counts = _ends(x) - _starts(x)
    place = ops.argmax(counts, -1, keepdims=True)
    if x.aval.floating:
        place = ops.where(ops.isnan(x[..., -1:]), x.shape[-1] - 1, place)
    from_sorted = [ops.take_along_axis(y, place, -1) for y in (x, counts)]
    if not keepdims:
        return ModeResult(*[y[..., 0] for y in from_sorted])
    if len(shape) != x.ndim:
        return ModeResult(*[y.reshape((1,) * len(shape)) for y in from_sorted])
    return ModeResult(*[y.swapaxes(axis, -1) for y in from_sorted])


def _fresh(x: Array) -> Array:
    """Return where sorted numbers differ from the one before them; NaN are equal."""
    last, here = x[..., :-1], x[..., 1:]
    differs = ops.not_equal(last, here)
    if x.aval.floating:
        differs = ops.logical_and(differs, ops.logical_not(ops.logical_and(ops.isnan(last), ops.isnan(here))))
    return ops.concat([ops.ones((*x.shape[:-1], 1), dtype="bool"), differs], -1)


def _starts(x: Array) -> Array:
    """Return for each of sorted numbers how many are less."""
    places = ops.where(_fresh(x), ops.arange(x.shape[-1]), 0)
    return ops.cummax(places, -1)


def _ends(x: Array) -> Array:
    """Return for each of sorted numbers how many are not greater."""
    count = x.shape[-1]
    last = ops.concat([_fresh(x)[..., 1:], ops.ones((*x.shape[:-1], 1), dtype="bool")], -1)
    places = ops.where(last, ops.arange(1, count + 1), count)
    return ops.flip(ops.cummin(ops.flip(places, -1), -1), -1)


def rankdata(a: Any, method: str = "average", *, axis: int | None = None) -> Array:
    """Return the ranks of the elements, from 1. Equal ones share the average, least or most of theirs.

    Beside a NaN all ranks are NaN, as in SciPy; so floats have floating ranks.

    Args:
        method: "average", "min", "max", "dense" (ranks without gaps) or "ordinal" (in the order of their places).

    >>> from gtrace.scipy.stats import rankdata
    >>> rankdata(gt.array([0., 2., 3., 2.]))
    Array([1. , 2.5, 4. , 2.5], dtype=float32)
    """
    x = ops.array(a)
    if axis is None:
        x, axis = ops.ravel(x), 0
    if method not in ("average", "min", "max", "dense", "ordinal"):
        expected = "average, min, max, dense or ordinal as method"
        raise ArgumentError(message("rankdata", expected, repr(method), "Pass one of them."))
    return apply_along_axis(lambda row: _ranks(row, method), axis, x)


def _ranks(row: Array, method: str) -> Array:
    ranks = _ranks_by(row, method)
    if not row.aval.floating:
        return ranks
    return ops.where(ops.any(ops.isnan(row)), math.nan, ranks.astype("float32"))


def _ranks_by(row: Array, method: str) -> Array:
    order = row.argsort()
    place = order.argsort()
    if method == "ordinal":
        return place + 1
    sorted_ = row[order]
    if method == "dense":
        return ops.cumsum(_fresh(sorted_).astype("int32"))[place]
    least, most = _starts(sorted_)[place] + 1, _ends(sorted_)[place]
    return least if method == "min" else most if method == "max" else (least + most) * 0.5


def sem(a: Any, axis: int | None = 0, ddof: int = 1, nan_policy: str = "propagate", *, keepdims: bool = False) -> Array:
    """Return the standard error of the mean along an axis.

    Args:
        nan_policy: "propagate": beside a NaN it is NaN; "omit": the mean of the other elements.

    >>> from gtrace.scipy.stats import sem
    >>> sem(gt.array([1., 3.]))
    Array(1., dtype=float32)
    """
    if nan_policy not in ("propagate", "omit"):
        expected = "propagate or omit as nan_policy"
        raise ArgumentError(message("sem", expected, repr(nan_policy), "Pass one of them."))
    x = ops.array(a)
    if nan_policy == "omit" and x.aval.floating:
        count = ops.sum(ops.logical_not(ops.isnan(x)), axis, keepdims=keepdims)
        return nanstd(x, axis, ddof=ddof, keepdims=keepdims) / ops.sqrt(count)
    size = x.size if axis is None else x.shape[axis]
    return x.std(axis, ddof=ddof, keepdims=keepdims) / math.sqrt(size)


"""Distributions beside those of `stats`, ranks, modes and kernel densities."""
