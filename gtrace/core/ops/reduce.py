"""Reductions along axes."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core.base.config import config
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops import logic
from gtrace.core.ops.batching import shifted
from gtrace.core.ops.checks import as_flag, reduced_shape
from gtrace.core.ops.counts import accumulator, is_short, over_count, unshortened
from gtrace.core.ops.declare import ORDER, Array, Aval, BadSample, Op, Params, Sample, bind, define, lift
from gtrace.core.ops.elementwise import add, divide, exp, maximum, minimum, multiply, subtract
from gtrace.core.ops.join_split import concat, slice_axis
from gtrace.core.ops.logic import equal, logical_not, not_equal
from gtrace.core.ops.operands import accumulating, cast, counted, promote, promote_arrays
from gtrace.core.ops.samples import scipy_special, uniform
from gtrace.core.ops.shape import (
    broadcast_op,
    constant,
    expand_dims,
    full_like_scalar,
    normalize_axes,
    normalize_axis,
    permute_dims,
    reshape,
    reshape_op,
)
from gtrace.core.ops.sharding_rules import reduction
from gtrace.core.trace.fast import bind_met
from gtrace.core.trace.promotion import as_dtype

__all__ = ["sum", "mean", "max", "min", "any", "all", "prod", "count_nonzero"]

_PARAMS = ("axes", "keepdims")
_TRUTH = "the result is a truth value"


def _over(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a torch reduction in which an empty tuple of axes means no axis; torch reduces all axes."""

    def reduce(x: torch.Tensor, axes: tuple[int, ...], keepdims: bool) -> torch.Tensor:
        if axes:
            return function(x, axes, keepdim=keepdims)
        # reduce a new axis of size 1, so that integers are promoted as usual
        return function(x.unsqueeze(0), (0,), keepdim=False)

    return reduce


def _axis_samples() -> list[Sample]:
    x = uniform(-2, 2, 2, 3, 4)
    return [Sample((x,)), Sample((x,), {"axis": 1}), Sample((x,), {"axis": (0, 2), "keepdims": True}),
            Sample((x,), {"axis": ()})]  # fmt: skip


def bad_axis() -> list[BadSample]:
    return [BadSample((numpy.ones((2, 3)),), {"axis": 2}, ShapeError, r"axis in \[-2, 2\)")]


def _expand(ct: Array, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Return a reduction's result or cotangent, broadcast to the shape of its operand."""
    shape = x.aval.shape
    kept = ct.aval.shape if keepdims else tuple([1 if k in axes else n for k, n in enumerate(shape)])
    if kept != ct.aval.shape:
        ct = bind(reshape_op, (ct,), (kept,))
    return ct if kept == shape else bind(broadcast_op, (ct,), (shape,))


def _check_nonempty(op: str, avals: tuple[Aval, ...], axes: tuple[int, ...], keepdims: bool) -> None:
    a = avals[0]
    if 0 in [a.shape[k] for k in axes]:
        raise ShapeError(message(op, "a non-empty axis", repr(a), "Pass initial=, the result over no elements."))


def _extremum_vjp(ct: Array, needed: Any, x: Array, out: Array, **over: Any) -> tuple[Array]:
    # elements that attain the extremum share the derivative equally
    params = tuple(over.values())
    hit = equal(x, _expand(out, x, *params))
    share = over_count(ct, _ties(hit, x, params))
    return (multiply(cast(hit, x.aval.dtype), _expand(share, x, *params)),)


def _extremum_jvp(ts: Any, x: Array, out: Array, **over: Any) -> Array:
    params = tuple(over.values())
    hit = equal(x, _expand(out, x, *params))
    total = bind(sum_op, (multiply(cast(hit, accumulator(x)), unshortened(ts[0])),), params)
    return cast(divide(total, _ties(hit, x, params)), x.aval.dtype)


def _ties(hit: Array, x: Array, params: Params) -> Array:
    """Return how many elements attain the extremum, in the dtype in which those of x are summed."""
    return bind(sum_op, (cast(hit, accumulator(x)),), params)


def _mean_vjp(ct: Array, needed: Any, x: Array, out: Array, axes: tuple[int, ...], keepdims: bool) -> tuple[Array]:
    count = math.prod(x.aval.shape[k] for k in axes)
    return (_expand(over_count(ct, float(count)) if count else ct, x, axes, keepdims),)


sum_op = define(
    "sum", accumulating(_over(torch.sum)), params=_PARAMS, fresh=True,
    shape=reduced_shape, linear=True, factors=reduction("sum"), batch=shifted("axes"),
    vjp=lambda ct, needed, x, out, axes, keepdims: (_expand(ct, x, axes, keepdims),),
    samples=_axis_samples, errors=bad_axis, reference=numpy.sum, user=lambda x, **kw: sum(x, **kw),
)  # fmt: skip
_mean = define(
    "mean", _over(torch.mean), params=_PARAMS,
    shape=reduced_shape, vjp=_mean_vjp, linear=True, batch=shifted("axes"), factors=reduction("mean"),
    samples=_axis_samples, errors=bad_axis, reference=numpy.mean, user=lambda x, **kw: mean(x, **kw),
)  # fmt: skip
_EXTREMUM: dict[str, Any] = {
    "params": _PARAMS, "unsigned": ORDER, "shape": reduced_shape, "vjp": _extremum_vjp, "jvp": _extremum_jvp,
    "batch": shifted("axes"), "check": _check_nonempty, "samples": _axis_samples,
    "errors": lambda: [*bad_axis(), BadSample((numpy.ones((0, 3)),), {"axis": 0}, ShapeError, r"non-empty")],
}  # fmt: skip
_max = define("max", _over(torch.amax), factors=reduction("max"), reference=numpy.max,
              user=lambda x, **kw: max(x, **kw), **_EXTREMUM)  # fmt: skip
_min = define("min", _over(torch.amin), factors=reduction("min"), reference=numpy.min,
              user=lambda x, **kw: min(x, **kw), **_EXTREMUM)  # fmt: skip


_LOGIC: dict[str, Any] = {"params": _PARAMS, "shape": reduced_shape, "nondiff": _TRUTH, "batch": shifted("axes"),
                          "samples": lambda: [Sample((s.args[0] > 0,), s.kwargs) for s in _axis_samples()[:3]],
                          "errors": bad_axis}  # fmt: skip
_any = define("any", _over(torch.any), factors=reduction("max"), reference=numpy.any,
              user=lambda x, **kw: any(x, **kw), **_LOGIC)  # fmt: skip
_all = define("all", _over(torch.all), factors=reduction("min"), reference=numpy.all,
              user=lambda x, **kw: all(x, **kw), **_LOGIC)  # fmt: skip


def _logsumexp(x: torch.Tensor, axes: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    """Return torch's result, of 16-bit numbers rounded once: torch adds their powers in their own dtype."""
    return torch.logsumexp(x.float() if is_short(x.dtype) else x, axes, keepdim=keepdim).to(x.dtype)


def _softmax_weights(x: Array, out: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Return exp(x - logsumexp(x)), in float32 for 16 bits.

    It is normalized: far from 0, `out` is rounded, and the sum is not 1.
    """
    weights = exp(subtract(unshortened(x), unshortened(_expand(out, x, axes, keepdims))))
    total = bind(sum_op, (weights,), (axes, True))
    # beside an infinite element, whose weight is NaN, the other weights are zero
    return divide(weights, logic.where(equal(total, total), total, 1.0))


logsumexp_op = define(
    "logsumexp", _over(_logsumexp), params=_PARAMS, shape=reduced_shape,
    vjp=lambda ct, needed, x, out, **over: (
        cast(multiply(unshortened(_expand(ct, x, **over)), _softmax_weights(x, out, **over)), x.aval.dtype),
    ),
    jvp=lambda ts, x, out, **over: cast(
        bind(sum_op, (multiply(unshortened(ts[0]), _softmax_weights(x, out, **over)),), tuple(over.values())),
        x.aval.dtype,
    ),
    factors=reduction(), batch=shifted("axes"),
    samples=_axis_samples, errors=bad_axis, reference=scipy_special("logsumexp"),
    user=lambda x, axis=None, keepdims=False: bind_met(logsumexp_op, x, (axis, keepdims), resolve_floating),
)  # fmt: skip


def _resolve(op: Op, x: Any, axis: Any, keepdims: bool) -> tuple[Array, Params]:
    x = lift(op.name, x)
    return x, (normalize_axes(op.name, axis, x.ndim), as_flag(op.name, "keepdims", keepdims))


def resolve_floating(op: Op, x: Any, axis: Any, keepdims: bool) -> tuple[Array, Params]:
    return _resolve(op, promote_arrays(op.name, x, floating=True)[0], axis, keepdims)


def keeping(op: str, x: Array, where: Any, otherwise: Any) -> Array:
    """Return x where the mask `where` holds, and `otherwise` elsewhere. The mask must broadcast to x."""
    mask = _truth(op, where)
    padded = (1,) * (x.ndim - mask.ndim) + mask.shape
    if len(padded) != x.ndim or builtins.any(m not in (1, n) for m, n in zip(padded, x.shape, strict=True)):
        got = f"{mask.aval!r} for {x.aval!r}"
        raise ShapeError(message(op, "a mask `where` that broadcasts to the array", got, "Check its shape."))
    return _joined(functools.partial(logic.where, mask), x, otherwise)


def _joined(combine: Callable[[Any, Any], Array], x: Array, number: Any) -> Array:
    """Return ``combine(x, number)``; with the setting `jax_results` the number does not change the dtype."""
    if numpy.ndim(number):
        got = f"an array of shape {numpy.shape(number)}"
        raise ShapeError(message("reduce", "a number as `initial`", got, "Combine the result with the array."))
    out = combine(x, number)
    if out.aval.dtype is x.aval.dtype or not config.current.jax_results:
        return out
    return combine(x, cast(lift("reduce", number), x.aval.dtype))


def sum(  # noqa: A001
    x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, where: Any = None, initial: Any = None
) -> Array:
    """Return the sum over `axis` (None: all; an int or several); of integers as int64, of unsigned ones as uint64.

    Args:
        where: a mask that broadcasts to x; other elements are ignored.
        initial: a number to add.

    >>> gt.sum(gt.ones((2, 3)), axis=1)
    Array([3., 3.], dtype=float32)
    """
    x = lift("sum", x)
    if dtype is not None:
        kind = as_dtype(dtype)
        return cast(sum(cast(x, kind), axis, keepdims=keepdims, where=where, initial=initial), kind)
    out = bind_met(sum_op, x if where is None else keeping("sum", x, where, 0), (axis, keepdims), _resolve)
    if not out.aval.floating:
        out = counted(out, x)
    return out if initial is None else _joined(add, out, initial)


def mean(x: Any, axis: Any = None, keepdims: bool = False, *, dtype: Any = None, where: Any = None) -> Array:
    """Return the mean over `axis`. Integers become float32.

    Args:
        dtype: x is cast to it first; the mean is cast to an integer one as well, as in NumPy.
        where: a mask that broadcasts to x; other elements are ignored.

    >>> gt.mean(gt.array([1., 3.]))
    Array(2., dtype=float32)
    """
    if dtype is None and where is None:
        return bind_met(_mean, x, (axis, keepdims), resolve_floating)
    x = lift("mean", x)
    kind = None if dtype is None else as_dtype(dtype)
    if kind is not None and not (kind.is_floating_point or kind.is_complex):
        return cast(mean(cast(x, kind), axis, keepdims, where=where), kind)
    (x,) = promote("mean", x if kind is None else cast(x, kind), floating=True)
    if where is None:
        return mean(x, axis, keepdims)
    if is_short(x.aval.dtype):  # its sums overflow, and so do counts
        return cast(mean(cast(x, torch.float32), axis, keepdims, where=where), x.aval.dtype)
    return divide(sum(x, axis, keepdims=keepdims, where=where), count_kept(x, where, axis, keepdims))


def count_kept(x: Array, where: Any, axis: Any, keepdims: bool) -> Array:
    """Return how many elements a mask keeps, in the dtype of x."""
    ones = full_like_scalar(1, x.aval.dtype, x.shape, x.aval.device)
    return sum(ones, axis, keepdims=keepdims, where=where)


def _extremum(op: Op, x: Any, axis: Any, keepdims: bool, where: Any, initial: Any) -> Array:
    x = lift(op.name, x)
    combine = maximum if op is _max else minimum
    if initial is None:
        fix = "Pass initial=, which the result is at least or at most."
        raise ArgumentError(message(op.name, "`initial` beside a mask", "none", fix))
    if where is not None:
        x = keeping(op.name, x, where, initial)
    axes = normalize_axes(op.name, axis, x.ndim)
    if 0 in [x.shape[k] for k in axes]:
        return full_like_scalar(initial, x.aval.dtype, reduced_shape((x.aval,), axes, keepdims), x.aval.device)
    return _joined(combine, bind(op, (x,), (axes, as_flag(op.name, "keepdims", keepdims))), initial)


def max(  # noqa: A001
    x: Any, axis: Any = None, keepdims: bool = False, *, initial: Any = None, where: Any = None
) -> Array:
    """Return the largest element over `axis`; NaN if there is one. Ties share the derivative.

    Args:
        initial: a lower bound of the result, and the result over no elements.
        where: a mask that broadcasts to x; other elements are ignored. It needs `initial`.

    >>> gt.max(gt.array([[1., 5.], [3., 2.]]), axis=0)
    Array([3., 5.], dtype=float32)
    """
    if initial is None and where is None:
        return bind_met(_max, x, (axis, keepdims), _resolve)
    return _extremum(_max, x, axis, keepdims, where, initial)


def min(  # noqa: A001
    x: Any, axis: Any = None, keepdims: bool = False, *, initial: Any = None, where: Any = None
) -> Array:
    """Return the smallest element over `axis`; NaN if there is one. Ties share the derivative.

    Args:
        initial: an upper bound of the result, and the result over no elements.
        where: a mask that broadcasts to x; other elements are ignored. It needs `initial`.

    >>> gt.min(gt.array([[1., 5.], [3., 2.]]), axis=0)
    Array([1., 2.], dtype=float32)
    """
    if initial is None and where is None:
        return bind_met(_min, x, (axis, keepdims), _resolve)
    return _extremum(_min, x, axis, keepdims, where, initial)


def any(x: Any, axis: Any = None, keepdims: bool = False, *, where: Any = None) -> Array:  # noqa: A001
    """Return whether any element over `axis` (and where the mask `where` holds) is nonzero.

    >>> gt.any(gt.array([[True, False], [False, False]]), axis=1)
    Array([ True, False], dtype=bool)
    """
    x = _truth("any", x) if where is None else keeping("any", _truth("any", x), where, False)
    return bind_met(_any, x, (axis, keepdims), _resolve)


def all(x: Any, axis: Any = None, keepdims: bool = False, *, where: Any = None) -> Array:  # noqa: A001
    """Return whether all elements over `axis` (and where the mask `where` holds) are nonzero.

    >>> gt.all(gt.array([[True, False], [True, True]]), axis=1)
    Array([False,  True], dtype=bool)
    """
    x = _truth("all", x) if where is None else keeping("all", _truth("all", x), where, True)
    return bind_met(_all, x, (axis, keepdims), _resolve)


def _truth(op: str, x: Any) -> Array:
    x = lift(op, x)
    return x if x.aval.dtype is torch.bool else not_equal(x, 0)


# -- products


@accumulating
def _prod_impl(x: torch.Tensor, axis: int, keepdims: bool) -> torch.Tensor:
    return torch.prod(x, axis, keepdim=keepdims)


def _prod_vjp(ct: Array, needed: Any, x: Array, out: Array, axis: int, keepdims: bool) -> tuple[Array]:
    """Multiply halves pairwise in a tree and differentiate that. It needs no division, so zeros are fine."""
    levels: list[tuple[Array, Array, Array | None]] = []
    while x.aval.shape[axis] > 1:
        size = x.aval.shape[axis]
        half = size // 2
        left, right = slice_axis(x, axis, 0, half), slice_axis(x, axis, half, 2 * half)
        odd = slice_axis(x, axis, 2 * half, size) if size % 2 else None
        levels.append((left, right, odd))
        product = multiply(left, right)
        x = product if odd is None else concat([product, odd], axis)
    g = ct if keepdims else expand_dims(ct, axis)
    if x.aval.shape[axis] == 0:
        return (constant(0.0, x.aval),)
    for left, right, odd in reversed(levels):
        half = left.aval.shape[axis]
        inner = slice_axis(g, axis, 0, half)
        parts = [multiply(inner, right), multiply(inner, left)]
        if odd is not None:
            parts.append(slice_axis(g, axis, half, half + 1))
        g = concat(parts, axis)
    return (g,)


def _prod_samples() -> list[Sample]:
    x = uniform(-2, 2, 2, 5)
    x[0, 1] = 0.0
    return [Sample((x,), {"axis": 1}), Sample((x,), {"axis": 0, "keepdims": True}), Sample((x,))]


_prod = define(
    "prod", _prod_impl, params=("axis", "keepdims"), vjp=_prod_vjp, factors=reduction(), batch=shifted("axis"),
    shape=lambda avals, axis, keepdims: reduced_shape(avals, (axis,), keepdims),
    samples=_prod_samples, errors=bad_axis,
    reference=numpy.prod, user=lambda x, **kw: prod(x, **kw),
)  # fmt: skip


def to_last(name: str, x: Array, axis: Any, keepdims: bool) -> tuple[Array, tuple[int, ...]]:
    """Return x with the reduced axes flattened into the last one, and the shape of the result."""
    axes = normalize_axes(name, axis, x.ndim)
    kept = [k for k in range(x.ndim) if k not in axes]
    moved = permute_dims(x, (*kept, *axes))
    count = math.prod(x.shape[k] for k in axes)
    return reshape(moved, (*(x.shape[k] for k in kept), count)), reduced_shape((x.aval,), axes, keepdims)


def prod(
    x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, where: Any = None, initial: Any = None
) -> Array:
    """Return the product over `axis`; of integers and booleans as int64, of unsigned integers as uint64.

    Args:
        where: a mask that broadcasts to x; other elements are ignored.
        initial: a factor of the result.

    >>> gt.prod(gt.array([2., 3., 4.]))
    Array(24., dtype=float32)
    """
    x = lift("prod", x)
    if dtype is not None:
        kind = as_dtype(dtype)
        return cast(prod(cast(x, kind), axis, keepdims=keepdims, where=where, initial=initial), kind)
    if where is not None:
        x = keeping("prod", x, where, 1)
    if isinstance(axis, (tuple, list)) or axis is None:
        x, shape = to_last("prod", x, axis, keepdims)
        out = reshape(bind(_prod, (x,), (x.ndim - 1, False)), shape)
    else:
        out = bind(_prod, (x,), (normalize_axis("prod", axis, x.ndim), as_flag("prod", "keepdims", keepdims)))
    if not out.aval.floating:
        out = counted(out, x)
    return out if initial is None else _joined(multiply, out, initial)


# -- counts


def count_nonzero(x: Any, axis: Any = None, keepdims: bool = False) -> Array:
    """Return the number of nonzero elements over `axis`, as int64.

    >>> gt.count_nonzero(gt.array([0., 1., 2.]))
    Array(2, dtype=int64)
    """
    return sum(logical_not(equal(x, 0)), axis, keepdims=keepdims)
