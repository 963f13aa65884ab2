"""Reductions and running sums with JAX's parameters, dtypes and checks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gtrace import numpy as ours
from gtrace.extend import INEXACT, ArgumentError, Array, DtypeError, as_dtype, lift, message, ops
from gtrace.jax import complex_order
from gtrace.jax.adapt import JAX_NAMES, adapted, documented
from gtrace.jax.operand_checks import check_mask

__all__ = [
    "all", "amax", "amin", "any", "corrcoef", "cov", "cumprod", "cumsum", "cumulative_prod", "max", "mean", "min",
    "minmax", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar",
    "prod", "ptp", "std", "sum", "var",
]  # fmt: skip


def _check_inexact(name: str, dtype: Any) -> None:
    """Raise if a dtype is given in which results would be cut to whole numbers."""
    if dtype is not None and as_dtype(dtype) not in INEXACT:
        raise DtypeError(message(name, "a floating or complex dtype", str(dtype), "Cast the result."))


def _masked(name: str) -> Callable[..., Any]:
    text = JAX_NAMES["jax.numpy"][name] or ""
    words = text.split()
    place = words.index("where") if "where" in words else len(words)
    function = adapted(f"jax.numpy.{name}", getattr(ours, name), text)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        check_mask(name, args[place] if len(args) > place else options.get("where"))
        return function(*args, **options)

    call.__doc__ = f"``gt.numpy.{name}``, which takes only booleans as `where`."
    return call


amax = max = complex_order.max  # noqa: A001 - JAX's name
amin = min = complex_order.min  # noqa: A001 - JAX's name
nanmax, nanmin = complex_order.nanmax, complex_order.nanmin


def ptp(a: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Array:
    """``gt.numpy.ptp``, of complex numbers too."""
    return ops.subtract(max(a, axis, out, keepdims), min(a, axis, out, keepdims))


def minmax(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Return the least and the greatest elements along axes; `initial` may be a pair, with one start for each.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.minmax(jnp.array([3.0, 1.0, 2.0]))
    (Array(1., dtype=float32), Array(3., dtype=float32))
    """
    low, high = initial if isinstance(initial, tuple) else (initial, initial)
    return min(a, axis, out, keepdims, low, where), max(a, axis, out, keepdims, high, where)


all, any, mean = _masked("all"), _masked("any"), _masked("mean")  # noqa: A001 - JAX's names
nanmean, nanprod, nansum = _masked("nanmean"), _masked("nanprod"), _masked("nansum")


def _total(name: str) -> Callable[..., Array]:
    function = getattr(ours, name)

    def call(
        a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
        where: Any = None, promote_integers: bool = True,
    ) -> Array:  # fmt: skip
        check_mask(name, where, out)
        x = lift(name, a)
        if dtype is None and not promote_integers:
            dtype = int if x.dtype == "bool" else x.dtype
        return function(x, axis, dtype, keepdims=keepdims, where=where, initial=initial)

    return documented(
        call, name, f"``gt.numpy.{name}``, in the dtype of short integers too without `promote_integers`."
    )


sum, prod = _total("sum"), _total("prod")  # noqa: A001 - JAX's names


def _running(name: str) -> Callable[..., Array]:
    function = getattr(ours, name)

    def call(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
        check_mask(name, None, out)
        x = lift(name, a)
        kind = dtype or (int if x.dtype == "bool" else x.dtype)
        return function(ops.reshape(x, (-1,)), 0, dtype=kind) if axis is None else function(x, axis, dtype=kind)

    return documented(call, name, f"``gt.numpy.{name}`` in the dtype of the elements.")


cumprod, cumsum = _running("cumprod"), _running("cumsum")
nancumprod, nancumsum = _running("nancumprod"), _running("nancumsum")


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """``gt.numpy.cumulative_prod`` in the dtype of the elements."""
    x = lift("cumulative_prod", x)
    return ours.cumulative_prod(x, axis, dtype or (int if x.dtype == "bool" else x.dtype), include_initial)


def _deviation(name: str) -> Callable[..., Array]:
    function = getattr(ours, name)

    def call(
        a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: Any = 0, keepdims: bool = False,
        where: Any = None, mean: Any = None, correction: Any = None,
    ) -> Array:  # fmt: skip
        check_mask(name, where, out)
        x = lift(name, a)
        if correction is not None:
            if ddof:
                raise ArgumentError(message(name, "correction or ddof", "both", "They are one number: pass one."))
            ddof = correction
        _check_inexact(name, dtype)
        if dtype is not None and x.aval.complex and not as_dtype(dtype).is_complex:
            got = f"{dtype} for {x.aval!r}"
            raise DtypeError(message(name, "a complex dtype for complex numbers", got, "Pass their absolute values."))
        found = function(x, axis, dtype, ddof=ddof, keepdims=keepdims, where=where, mean=mean)
        if ddof:
            found = _of_freedom(name, found, x, axis, ddof, keepdims, where)
        return found if dtype is None else found.astype(dtype)

    return documented(
        call, name, f"``gt.numpy.{name}``, in the dtype that is given. Without degrees of freedom it is NaN, as in JAX."
    )


def _of_freedom(name: str, out: Array, x: Array, axis: Any, ddof: Any, keepdims: bool, where: Any) -> Array:
    """Return a deviation, NaN where the number of elements does not exceed `ddof`."""
    counted = ops.logical_not(ops.isnan(x)) if name.startswith("nan") else ops.ones(x.shape, "bool")
    if where is not None:
        counted = ops.logical_and(counted, where)
    count = ops.sum(counted.astype("int64"), axis, keepdims=keepdims)
    return ops.where(ops.greater(count, ddof), out, float("nan"))


var, std, nanvar, nanstd = _deviation("var"), _deviation("std"), _deviation("nanvar"), _deviation("nanstd")


def with_dtype(name: str, function: Callable[..., Any], inexact: bool) -> Callable[..., Any]:
    """Return a function whose results may be cast to a dtype, one of floats or complex numbers if it is `inexact`."""

    @functools.wraps(function)
    def call(*args: Any, dtype: Any = None, **options: Any) -> Any:
        if inexact:
            _check_inexact(name, dtype)
        out = function(*args, **options)
        return out if dtype is None else out.astype(dtype)

    vars(call).pop("__wrapped__")  # its parameters are not those of this one
    return documented(call, name, f"``gt.numpy.{name}``, with the result as a dtype.")


corrcoef, cov = [
    with_dtype(name, adapted(f"jax.numpy.{name}", getattr(ours, name), JAX_NAMES["jax.numpy"][name]), True)
    for name in ("corrcoef", "cov")
]
