"""Softmax and its logarithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core.ops import logic, reduce
from gtrace.core.ops.batching import shifted
from gtrace.core.ops.checks import same_shape
from gtrace.core.ops.counts import unshortened
from gtrace.core.ops.declare import Array, Op, Params, Sample, bind, define, lift
from gtrace.core.ops.elementwise import exp, multiply, neg, subtract
from gtrace.core.ops.logic import not_equal
from gtrace.core.ops.operands import cast, promote_arrays
from gtrace.core.ops.reduce import bad_axis, sum_op
from gtrace.core.ops.samples import scipy_special, uniform
from gtrace.core.ops.shape import (
    broadcast_to,
    full_like_scalar,
    inverse,
    normalize_axes,
    normalize_axis,
    permute_dims,
    reshape,
)
from gtrace.core.ops.sharding_rules import along
from gtrace.core.trace.fast import bind_met

__all__ = ["softmax", "log_softmax"]


def _softmax_vjp(ct: Array, needed: Any, x: Array, out: Array, axis: int) -> tuple[Array]:
    dtype = out.aval.dtype
    ct, out = unshortened(ct), unshortened(out)  # the differences cancel; torch rounds once
    weighted = multiply(ct, out)
    total = bind(sum_op, (weighted,), ((axis,), True))
    return (cast(subtract(weighted, multiply(out, total)), dtype),)


def _log_softmax_grad_vjp(
    ct: Array, needed: Any, g: Array, out: Array, result: Array, axis: int
) -> tuple[Array | None, Array | None]:
    # the operation is g - exp(out) * sum(g)
    dtype = out.aval.dtype
    ct, g, out = map(unshortened, (ct, g, out))
    weighted = multiply(exp(out), ct)
    by_g = subtract(ct, bind(sum_op, (weighted,), ((axis,), True))) if needed[0] else None
    by_out = neg(multiply(weighted, bind(sum_op, (g,), ((axis,), True)))) if needed[1] else None
    return tuple(None if found is None else cast(found, dtype) for found in (by_g, by_out))  # type: ignore[return-value]


def _log_softmax_jvp(ts: Any, x: Array, out: Array, axis: int) -> Array:
    moved = unshortened(ts[0])
    mean = bind(sum_op, (multiply(exp(unshortened(out)), moved),), ((axis,), True))
    return cast(subtract(moved, mean), out.aval.dtype)


def _normal_samples() -> list[Sample]:
    return [Sample((uniform(-2, 2, 3, 4),)), Sample((uniform(-2, 2, 3, 4),), {"axis": 0})]


def _along_last_axis(name: str) -> Callable[..., Any]:
    """Return a function of scipy.special with gtrace's default axis."""
    return lambda x, axis=-1: scipy_special(name)(x, axis=axis)


_LINE: dict[str, Any] = {"params": ("axis",), "shape": same_shape, "factors": along("axis"), "batch": shifted("axis")}
_softmax = define(
    "softmax", lambda x, axis: torch.softmax(x, axis), vjp=_softmax_vjp,
    jvp=lambda ts, x, out, axis: _softmax_vjp(ts[0], None, x, out, axis)[0],  # its Jacobian is symmetric
    samples=_normal_samples, errors=bad_axis, reference=_along_last_axis("softmax"), exponential=True,
    user=lambda x, **kw: softmax(x, **kw), **_LINE,
)  # fmt: skip
_log_softmax_grad = define(
    "log_softmax_grad", lambda ct, out, axis: torch._log_softmax_backward_data(ct, out, axis, out.dtype), arity=2,
    vjp=_log_softmax_grad_vjp, fresh=True,
    samples=lambda: [Sample((uniform(-2, 2, 3, 4, seed=1), *s.args), {"axis": s.kwargs.get("axis", 1)})
                     for s in _normal_samples()],
    reference=lambda g, out, axis: g - numpy.exp(out) * g.sum(axis, keepdims=True),
    user=lambda g, out, axis: bind(_log_softmax_grad, (lift("log_softmax", g), lift("log_softmax", out)), (axis,)),
    **_LINE,
)  # fmt: skip
_log_softmax = define(
    "log_softmax", lambda x, axis: torch.log_softmax(x, axis),
    vjp=lambda ct, needed, x, out, axis: (bind(_log_softmax_grad, (ct, out), (axis,)),),
    jvp=_log_softmax_jvp, samples=_normal_samples, errors=bad_axis, reference=_along_last_axis("log_softmax"),
    user=lambda x, **kw: log_softmax(x, **kw), **_LINE,
)  # fmt: skip


def _normalize(op: Op, x: Any, axis: Any) -> Array:
    if not isinstance(axis, (tuple, list)) and axis is not None:
        return bind_met(op, x, (axis,), _resolve)
    (x,) = promote_arrays(op.name, x, floating=True)
    axes = normalize_axes(op.name, axis, x.ndim)
    rest = [k for k in range(x.ndim) if k not in axes]
    order = (*rest, *axes)
    moved = permute_dims(x, order)
    flat = reshape(moved, (*(x.shape[k] for k in rest), math.prod(x.shape[k] for k in axes)))
    out = reshape(bind(op, (flat,), (flat.ndim - 1,)), moved.shape)
    return permute_dims(out, inverse(order))


def _resolve(op: Op, x: Any, axis: Any) -> tuple[Array, Params]:
    (x,) = promote_arrays(op.name, x, floating=True)
    return x, (normalize_axis(op.name, axis, x.ndim),)


def _normalize_where(op: Op, x: Any, axis: Any, where: Any, outside: float) -> Array:
    """Return the normalized elements of x where `where` holds, and `outside` elsewhere."""
    (x,) = promote_arrays(op.name, x, floating=True)
    keep = lift(op.name, where)
    keep = keep if keep.aval.dtype is torch.bool else not_equal(keep, 0)
    broadcast_to(keep, x.shape)  # raises if they do not broadcast; the mask itself stays small
    keep = reshape(keep, ((1,) * (x.ndim - keep.ndim) + keep.shape))
    # normalize zeros where nothing is kept: a row of -inf would give NaN
    least = full_like_scalar(-math.inf, x.aval.dtype, (), x.aval.device)
    filler = logic.where(reduce.any(keep, axis, keepdims=True), least, 0.0)
    return logic.where(keep, _normalize(op, logic.where(keep, x, filler), axis), outside)


def softmax(x: Any, axis: Any = -1, where: Any = None) -> Array:
    """Return exp(x) / sum(exp(x)) over `axis`, without overflow.

    Args:
        x: floating array; integers become float32.
        axis: an axis, several, or None for all.
        where: a mask that broadcasts to x. Other elements are ignored, and their result is 0.

    Raises:
        ShapeError: there is no such axis, or `where` does not broadcast to x.

    >>> gt.softmax(gt.zeros(3), where=gt.array([True, True, False]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """
    return _normalize(_softmax, x, axis) if where is None else _normalize_where(_softmax, x, axis, where, 0.0)


def log_softmax(x: Any, axis: Any = -1, where: Any = None) -> Array:
    """Return x - logsumexp(x) over `axis`.

    Args:
        x: floating array; integers become float32.
        axis: an axis, several, or None for all.
        where: a mask that broadcasts to x. Other elements are ignored, and their result is -inf.

    Raises:
        ShapeError: there is no such axis, or `where` does not broadcast to x.

    >>> gt.round(gt.log_softmax(gt.zeros(2)), 4)
    Array([-0.6931, -0.6931], dtype=float32)
    """
    if where is None:
        return _normalize(_log_softmax, x, axis)
    return _normalize_where(_log_softmax, x, axis, where, -math.inf)
