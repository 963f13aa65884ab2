"""Reductions that leave NaN out, under NumPy's names. Integers have none, and reduce as usual."""

from __future__ import annotations

import math
from typing import Any

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops.operands import counting
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift

__all__ = [
    "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum",
    "nanvar",
]  # fmt: skip


def _without(op: str, x: Any, otherwise: float) -> Array:
    x = lift(op, x)
    return ops.where(ops.isnan(x), otherwise, x) if x.aval.floating else x


def nansum(
    x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Array:
    """Return the sum over `axis` of the elements that are not NaN; the arguments are those of `sum`.

    >>> gnp.nansum(gnp.array([1., gnp.nan]))
    Array(1., dtype=float32)
    """
    return ops.sum(_without("nansum", x, 0.0), axis, dtype, keepdims=keepdims, where=where, initial=initial)


def nanprod(
    x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Array:
    """Return the product over `axis` of the elements that are not NaN; the arguments are those of `prod`.

    >>> gnp.nanprod(gnp.array([2., gnp.nan]))
    Array(2., dtype=float32)
    """
    return ops.prod(_without("nanprod", x, 1.0), axis, dtype, keepdims=keepdims, where=where, initial=initial)


def nancumsum(x: Any, axis: int | None = None, dtype: Any = None) -> Array:
    """Return the running sums along `axis`, with NaN as 0.

    >>> gnp.nancumsum(gnp.array([1., gnp.nan, 2.]))
    Array([1., 1., 3.], dtype=float32)
    """
    return ops.cumsum(_without("nancumsum", x, 0.0), axis, dtype)


def nancumprod(x: Any, axis: int | None = None, dtype: Any = None) -> Array:
    """Return the running products along `axis`, with NaN as 1.

    >>> gnp.nancumprod(gnp.array([3., gnp.nan, 2.]))
    Array([3., 3., 6.], dtype=float32)
    """
    return ops.cumprod(_without("nancumprod", x, 1.0), axis, dtype)


def _extreme(
    op: str, over: Any, worst: float, x: Any, axis: Any, keepdims: bool, initial: Any, kept: Any
) -> Array:  # fmt: skip
    x = lift(op, x)
    if not x.aval.floating:
        return over(x, axis, keepdims, initial=initial, where=kept)
    out = over(_without(op, x, worst), axis, keepdims, initial=initial, where=kept)
    if initial is not None:
        return out
    return ops.where(ops.all(ops.isnan(x), axis, keepdims), math.nan, out)


def nanmax(x: Any, axis: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None) -> Array:
    """Return the largest element over `axis` that is not NaN; NaN if all are. The arguments are those of `max`.

    >>> gnp.nanmax(gnp.array([1., gnp.nan]))
    Array(1., dtype=float32)
    """
    return _extreme("nanmax", ops.max, -math.inf, x, axis, keepdims, initial, where)


def nanmin(x: Any, axis: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None) -> Array:
    """Return the smallest element over `axis` that is not NaN; NaN if all are. The arguments are those of `min`.

    >>> gnp.nanmin(gnp.array([1., gnp.nan]))
    Array(1., dtype=float32)
    """
    return _extreme("nanmin", ops.min, math.inf, x, axis, keepdims, initial, where)


def _place(op: str, of: Any, worst: float, x: Any, axis: int | None, keepdims: bool) -> Array:
    x = lift(op, x)
    out = of(_without(op, x, worst), axis, keepdims)
    return ops.where(ops.all(ops.isnan(x), axis, keepdims), -1, out) if x.aval.floating else out


@counting
def nanargmax(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Return the place of the largest element along `axis` that is not NaN; -1 if all are, as in JAX.

    >>> gnp.nanargmax(gnp.array([gnp.nan, 1., 2.]))
    Array(2, dtype=int64)
    """
    return _place("nanargmax", ops.argmax, -math.inf, x, axis, keepdims)


@counting
def nanargmin(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Return the place of the smallest element along `axis` that is not NaN; -1 if all are, as in JAX.

    >>> gnp.nanargmin(gnp.array([gnp.nan, 1., 2.]))
    Array(1, dtype=int64)
    """
    return _place("nanargmin", ops.argmin, math.inf, x, axis, keepdims)


def _counted(op: str, x: Any, kept: Any) -> tuple[Array, Array]:
    """Return x as an array, and the mask of the elements that count."""
    x = lift(op, x)
    mask = ops.logical_not(ops.isnan(x))
    return x, mask if kept is None else ops.logical_and(mask, ops.not_equal(lift(op, kept), 0))


def nanmean(x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, where: Any = None) -> Array:
    """Return the mean over `axis` of the elements that are not NaN; NaN if all are.

    Args:
        dtype: as in `mean`: x is cast to it first, and the mean is cast to an integer one as well.
        where: a mask that broadcasts to x; only elements where it holds count.

    >>> gnp.nanmean(gnp.array([1., gnp.nan, 3.]))
    Array(2., dtype=float32)
    """
    x, mask = _counted("nanmean", x, where)
    return ops.mean(x, axis, keepdims, dtype=dtype, where=mask)


def nanvar(
    x: Any, axis: Any = None, dtype: Any = None, *, ddof: float = 0, keepdims: bool = False, where: Any = None,
    mean: Any = None, correction: float | None = None,
) -> Array:  # fmt: skip
    """Return the variance over `axis` of the elements that are not NaN: squares over their count minus `ddof`.

    Args:
        where: a mask that broadcasts to x; only elements where it holds count.
        mean: what the deviations are from, with the reduced axes; None: the mean.
        correction: another name of `ddof`.

    >>> gnp.nanvar(gnp.array([1., gnp.nan, 3.]))
    Array(1., dtype=float32)
    """
    if correction is not None:
        if ddof:
            raise ArgumentError(message("nanvar", "correction or ddof", "both", "They are one number: pass one."))
        ddof = correction
    x, mask = _counted("nanvar", x, where)
    out = ops.var(x, axis, ddof, keepdims, dtype=dtype, where=mask, mean=mean)
    return ops.where(ops.sum(mask, axis, keepdims=keepdims) > ddof, out, math.nan)


def nanstd(
    x: Any, axis: Any = None, dtype: Any = None, *, ddof: float = 0, keepdims: bool = False, where: Any = None,
    mean: Any = None, correction: float | None = None,
) -> Array:  # fmt: skip
    """Return the standard deviation over `axis`, the square root of `nanvar`, whose arguments it takes.

    >>> gnp.nanstd(gnp.array([1., gnp.nan, 3.]))
    Array(1., dtype=float32)
    """
    return ops.sqrt(nanvar(x, axis, dtype, ddof=ddof, keepdims=keepdims, where=where, mean=mean, correction=correction))
