"""Logarithms of sums and means of exponentials."""

from __future__ import annotations

import math
from typing import Any

from gtrace.core.ops import logic, reduce
from gtrace.core.ops.complex_parts import real
from gtrace.core.ops.counts import unshortened
from gtrace.core.ops.declare import Array, lift
from gtrace.core.ops.elementwise import (
    absolute,
    add,
    exp,
    expm1,
    log,
    log1p,
    multiply,
    neg,
    sign,
    stop_gradient,
    subtract,
)
from gtrace.core.ops.logic import isfinite, less, not_equal
from gtrace.core.ops.operands import cast, promote, promote_arrays
from gtrace.core.ops.reduce import count_nonzero, logsumexp_op, resolve_floating
from gtrace.core.ops.shape import broadcast_to, normalize_axes, squeeze
from gtrace.core.trace.fast import bind_met

__all__ = ["logsumexp"]


def logsumexp(
    x: Any, axis: Any = None, keepdims: bool = False, *, b: Any = None, return_sign: bool = False, where: Any = None
) -> Any:
    """Return log(sum(b * exp(x))) over `axis`, without overflow.

    Args:
        x: floating array; integers become float32.
        axis: an axis, several, or None for all.
        b: factors: a number, or an array that broadcasts with x. Where it is 0, x is ignored, even if infinite.
        return_sign: return the logarithm of the sum's magnitude, and its sign. Otherwise a negative sum gives NaN.
        where: a mask that broadcasts to x; other elements are ignored.

    Raises:
        ShapeError: there is no such axis, or shapes do not broadcast.

    >>> gt.logsumexp(gt.array([1000., -1000.]))
    Array(1000., dtype=float32)
    """
    if b is None and where is None and not return_sign:
        return bind_met(logsumexp_op, x, (axis, keepdims), resolve_floating)
    if b is None:
        (x,) = promote("logsumexp", lift("logsumexp", x), floating=True)
    else:
        x, factors = promote_arrays("logsumexp", x, b, floating=True)
        x = logic.where(not_equal(factors, 0), x, -math.inf)
    if where is not None:
        x = logic.where(where, x, -math.inf)
    dtype, x = x.aval.dtype, unshortened(x)
    axes = normalize_axes("logsumexp", axis, x.ndim)
    most = reduce.max(real(x) if x.aval.complex else x, axes, True)
    most = stop_gradient(logic.where(isfinite(most), most, 0.0))
    terms = exp(subtract(x, most))
    total = reduce.sum(terms if b is None else multiply(unshortened(factors), terms), axes, keepdims=True)
    out = add(log(absolute(total) if return_sign else total), most)
    results = [cast(y, dtype) for y in ([out, sign(total)] if return_sign else [out])]
    if not keepdims:
        results = [squeeze(y, axes) for y in results]
    return tuple(results) if return_sign else results[0]


def logmeanexp(x: Any, axis: Any = None, where: Any = None, keepdims: bool = False) -> Array:
    """Return log(mean(exp(x))) over `axis`, without overflow, of the elements where the mask `where` holds.

    >>> gt.nn.logmeanexp(gt.array([1000., 1000.]))
    Array(1000., dtype=float32)
    """
    (x,) = promote("logmeanexp", lift("logmeanexp", x), floating=True)
    dtype, x = x.aval.dtype, unshortened(x)
    axes = normalize_axes("logmeanexp", axis, x.ndim)
    total = logsumexp(x, axes, keepdims, where=where)
    if where is None:
        return cast(subtract(total, math.log(math.prod(x.shape[k] for k in axes))), dtype)
    count = count_nonzero(broadcast_to(where, x.shape), axes, keepdims=keepdims)
    return cast(subtract(total, cast(log(count), total.aval.dtype)), dtype)


def log1mexp(x: Any) -> Array:
    """Return log(1 - exp(-x)) for x > 0, without cancellation.

    >>> gt.nn.log1mexp(1e-10) < -23
    Array(True, dtype=bool)
    """
    (x,) = promote("log1mexp", lift("log1mexp", x), floating=True)
    near = less(x, math.log(2))
    # each branch gets only values in its domain, so that derivatives are finite
    return logic.where(
        near, log(neg(expm1(neg(logic.where(near, x, 1.0))))), log1p(neg(exp(neg(logic.where(near, 1.0, x)))))
    )
