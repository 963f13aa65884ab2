"""Running sums, products and extremes along an axis, and differences of neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.batching import shifted
from gtrace.core.ops.checks import same_kind, same_shape
from gtrace.core.ops.complex_parts import real
from gtrace.core.ops.counts import unshortened
from gtrace.core.ops.declare import ORDER, Array, Op, Sample, bind, define, lift
from gtrace.core.ops.elementwise import add, divide, exp, multiply, stop_gradient, subtract
from gtrace.core.ops.gather import gather_op, scatter_add_op
from gtrace.core.ops.join_split import concat, flip, neighbours, slice_axis
from gtrace.core.ops.logic import equal, isinf, not_equal, where
from gtrace.core.ops.operands import accumulating, cast, counted, promote, promote_arrays
from gtrace.core.ops.reduce import bad_axis
from gtrace.core.ops.samples import uniform
from gtrace.core.ops.shape import as_int, broadcast_to, constant, full_like_scalar, normalize_axis, with_axis
from gtrace.core.ops.sharding_rules import along
from gtrace.core.trace.bind import distinct
from gtrace.core.trace.promotion import as_dtype

__all__ = ["cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "diff"]


_LINE: dict[str, Any] = {"params": ("axis",), "factors": along("axis"), "batch": shifted("axis")}
"""What the operations along one axis share."""

_cumsum = define(
    "cumsum", accumulating(torch.cumsum), shape=same_shape, linear=True,
    vjp=lambda ct, needed, x, out, axis: (flip(bind(_cumsum, (flip(ct, axis),), (axis,)), axis),),
    samples=lambda: [Sample((uniform(-2, 2, 3, 4),), {"axis": k}) for k in (0, 1)], errors=bad_axis,
    reference=numpy.cumsum, user=lambda x, **kw: cumsum(x, **kw), **_LINE,
)  # fmt: skip


def cumsum(x: Any, axis: int | None = None, dtype: Any = None) -> Array:
    """Return the running sums along `axis` (None: of the flattened array), in the dtype that `sum` has.

    >>> gt.cumsum(gt.array([1., 2., 3.]))
    Array([1., 3., 6.], dtype=float32)
    """
    return _accumulated(_cumsum, x, axis, dtype)


def _accumulated(op: Op, x: Any, axis: int | None, dtype: Any) -> Array:
    x, place = with_axis(op.name, x, axis)
    out = bind(op, (x if dtype is None else cast(x, as_dtype(dtype)),), (place,))
    return counted(out, x) if dtype is None else cast(out, as_dtype(dtype))


def _samples() -> list[Sample]:
    return [Sample((uniform(-2, 2, 3, 4),), {"axis": k}) for k in (0, 1)] + [Sample((uniform(-2, 2, 1),), {"axis": 0})]


def _recurrence(factors: Array, values: Array, axis: int) -> Array:
    """Return y with y[i] = values[i] + factors[i] * y[i + 1], by doubling: log2(n) steps, and no division."""
    places, size = 1, values.shape[axis]
    while places < size:
        values = add(values, multiply(factors, neighbours(values, axis, -places, 0.0)))
        factors = multiply(factors, neighbours(factors, axis, -places, 0.0))
        places *= 2
    return values


def _cumprod_vjp(ct: Array, needed: Any, x: Array, out: Array, axis: int) -> tuple[Array]:
    if not x.size:
        return (constant(0.0, x.aval),)
    return (multiply(_recurrence(neighbours(x, axis, -1, 0.0), ct, axis), neighbours(out, axis, 1, 1.0)),)


_cumprod = define(
    "cumprod", accumulating(torch.cumprod), shape=same_shape, vjp=_cumprod_vjp,
    samples=lambda: [*_samples(), Sample((numpy.array([2.0, 0.0, -3.0, 0.0, 4.0]),), {"axis": 0}),
                     Sample((numpy.zeros((2, 0)),), {"axis": 1})],
    errors=bad_axis, reference=numpy.cumprod, user=lambda x, **kw: cumprod(x, **kw), **_LINE,
)  # fmt: skip


def _last_place(accumulate: Callable[..., numpy.ndarray]) -> Callable[..., numpy.ndarray]:
    """Return the reference for the index of a running extreme: the last index so far whose element is the extreme."""

    def reference(x: numpy.ndarray, axis: int) -> numpy.ndarray:
        places = numpy.arange(x.shape[axis]).reshape([-1 if k == axis % x.ndim else 1 for k in range(x.ndim)])
        return numpy.maximum.accumulate(numpy.where(x == accumulate(x, axis), places, 0), axis)

    return reference


def _running_extreme(name: str, function: Any, accumulate: Any, user: Any) -> Op:
    index = define(
        f"{name}_index", lambda x, axis: function(x, axis).indices, nondiff="the result is an index", unsigned=ORDER,
        samples=_samples, reference=_last_place(accumulate),
        user=lambda x, axis: bind(index, (lift(name, x),), (axis,)), **_LINE,
    )  # fmt: skip
    return define(
        name, lambda x, axis: function(x, axis).values, shape=same_kind, unsigned=ORDER,
        vjp=lambda ct, needed, x, out, axis: (
            bind(scatter_add_op, (constant(0.0, x.aval), bind(index, (x,), (axis,)), ct), (axis,)),
        ),
        jvp=lambda ts, x, out, axis: bind(gather_op, (ts[0], bind(index, (x,), (axis,))), (axis,)),
        samples=_samples, errors=bad_axis, reference=accumulate, user=user, **_LINE,
    )  # fmt: skip


_cummax = _running_extreme("cummax", torch.cummax, numpy.maximum.accumulate, lambda x, **kw: cummax(x, **kw))
_cummin = _running_extreme("cummin", torch.cummin, numpy.minimum.accumulate, lambda x, **kw: cummin(x, **kw))


def _cumlogsumexp_vjp(ct: Array, needed: Any, x: Array, out: Array, axis: int) -> tuple[Array]:
    """Compute the cotangent from the shares of each element, and of the earlier sum, in the sum so far.

    Far from 0, `out` is rounded, so exp(x - out) is not a share. So the sums are relative to the running maximum.
    """
    if not x.size:
        return (constant(0.0, x.aval),)
    dtype, x, ct = x.aval.dtype, unshortened(x), unshortened(ct)
    most = stop_gradient(bind(_cummax, (real(x) if x.aval.complex else x,), (axis,)))
    before = neighbours(most, axis, 1, -math.inf)
    lost = exp(where(equal(before, most), 0.0, subtract(before, most)))  # the difference of equal infinities is NaN
    infinite = isinf(most)
    # only finite differences have derivatives
    below = exp(where(infinite, 0.0, subtract(x, where(infinite, 0.0, most))))
    terms = where(infinite, cast(equal(x, most), x.aval.dtype), below)
    sums = flip(_recurrence(flip(cast(lost, x.aval.dtype), axis), flip(terms, axis), axis), axis)
    kept = divide(multiply(neighbours(sums, axis, 1, 0.0), lost), sums)
    later = _recurrence(neighbours(kept, axis, -1, 0.0), ct, axis)
    return (cast(multiply(later, divide(terms, sums)), dtype),)


_cumlogsumexp = define(
    "cumlogsumexp", lambda x, axis: torch.logcumsumexp(x, axis), shape=same_kind, unsigned=ORDER,
    vjp=_cumlogsumexp_vjp, samples=_samples, errors=bad_axis, reference=numpy.logaddexp.accumulate,
    user=lambda x, **kw: cumlogsumexp(x, **kw), **_LINE,
)  # fmt: skip


def _scan(op: Any, x: Any, axis: int | None, reverse: bool) -> Array:
    x, place = with_axis(op.name, x, axis)
    return flip(bind(op, (flip(x, place),), (place,)), place) if reverse else bind(op, (x,), (place,))


def cumprod(x: Any, axis: int | None = None, dtype: Any = None) -> Array:
    """Return the running products along `axis` (None: of the flattened array), in the dtype that `prod` has.

    >>> gt.cumprod(gt.array([1., 2., 3.]))
    Array([1., 2., 6.], dtype=float32)
    """
    return _accumulated(_cumprod, x, axis, dtype)


def cummax(x: Any, axis: int | None = None, *, reverse: bool = False) -> Array:
    """Return the running maximum along `axis` (None: of the flattened array); NaN from the first NaN on.

    Args:
        reverse: start at the end.

    >>> gt.cummax(gt.array([1., 3., 2.]))
    Array([1., 3., 3.], dtype=float32)
    """
    return _scan(_cummax, x, axis, reverse)


def cummin(x: Any, axis: int | None = None, *, reverse: bool = False) -> Array:
    """Return the running minimum along `axis` (None: of the flattened array); NaN from the first NaN on.

    Args:
        reverse: start at the end.

    >>> gt.cummin(gt.array([3., 1., 2.]))
    Array([3., 1., 1.], dtype=float32)
    """
    return _scan(_cummin, x, axis, reverse)


def cumlogsumexp(x: Any, axis: int | None = None, *, reverse: bool = False) -> Array:
    """Return log(cumsum(exp(x))) along `axis` (None: of the flattened array), without overflow.

    Args:
        reverse: start at the end.

    >>> gt.cumlogsumexp(gt.array([1000., 0.]))
    Array([1000., 1000.], dtype=float32)
    """
    (x,) = promote("cumlogsumexp", lift("cumlogsumexp", x), floating=True)
    return _scan(_cumlogsumexp, x, axis, reverse)


def _cumulative(name: str, x: Any, axis: int | None, include_initial: bool, first: int) -> tuple[Array, int]:
    x = lift(name, x)
    if axis is None and x.ndim != 1:
        raise ArgumentError(message(name, "an axis for an array of more or no dimensions", "None", "Pass axis."))
    place = normalize_axis(name, 0 if axis is None else axis, x.ndim)
    if not include_initial:
        return x, place
    sizes = (*x.shape[:place], 1, *x.shape[place + 1 :])
    return concat([full_like_scalar(first, x.aval.dtype, sizes, x.aval.device), x], place), place


def cumulative_sum(x: Any, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Return the running sums along `axis`; it is optional for a one-dimensional array.

    Args:
        include_initial: begin with 0, so the result has one more element.

    Raises:
        ArgumentError: there is no axis, and the array is not one-dimensional.

    >>> gt.cumulative_sum(gt.array([1., 2.]), include_initial=True)
    Array([0., 1., 3.], dtype=float32)
    """
    x, place = _cumulative("cumulative_sum", x, axis, include_initial, 0)
    return cumsum(x, place, dtype)


def cumulative_prod(x: Any, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Return the running products along `axis`; it is optional for a one-dimensional array.

    Args:
        include_initial: begin with 1, so the result has one more element.

    Raises:
        ArgumentError: there is no axis, and the array is not one-dimensional.

    >>> gt.cumulative_prod(gt.array([2., 3.]), include_initial=True)
    Array([1., 2., 6.], dtype=float32)
    """
    x, place = _cumulative("cumulative_prod", x, axis, include_initial, 1)
    return cumprod(x, place, dtype)


def diff(x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Array:
    """Return the n-th differences x[1:] - x[:-1] along `axis`. For booleans, they show where neighbours differ.

    Args:
        prepend, append: arrays or numbers to add before and after x first.

    Raises:
        ShapeError: n < 0, or x is 0-d.

    >>> gt.diff(gt.array([1, 4, 9]))
    Array([3, 5], dtype=int64)
    """
    x, count = lift("diff", x), as_int("diff", "n", n)
    if count < 0 or not x.ndim:
        raise ShapeError(message("diff", "n >= 0 and a dimension", f"n={count} for {x.aval!r}", "Check both."))
    if not count:
        return distinct(x)
    place = normalize_axis("diff", axis, x.ndim)
    edge = (*x.shape[:place], 1, *x.shape[place + 1 :])

    def widened(end: Any) -> Array:
        end = promote_arrays("diff", end, x)[0] if isinstance(end, int) else lift("diff", end)
        return broadcast_to(end, edge) if not end.ndim else end

    parts = [*([] if prepend is None else [widened(prepend)]), x, *([] if append is None else [widened(append)])]
    x = concat(parts, place) if len(parts) > 1 else x
    for _ in range(count):
        size = x.shape[place]
        after, before = slice_axis(x, place, min(1, size), size), slice_axis(x, place, 0, max(size - 1, 0))
        x = not_equal(after, before) if x.aval.dtype is torch.bool else subtract(after, before)
    return x
