"""Indices of extremes along an axis."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace.core.base.errors import ShapeError, message
from gtrace.core.ops.batching import shifted
from gtrace.core.ops.checks import as_flag, reduced_shape
from gtrace.core.ops.declare import ORDER, Array, Aval, Op, Sample, aval, bind, define, lift
from gtrace.core.ops.operands import cast, counted
from gtrace.core.ops.reduce import bad_axis
from gtrace.core.ops.samples import uniform
from gtrace.core.ops.shape import normalize_axis, ravel, reshape
from gtrace.core.ops.sharding_rules import reduction

__all__ = ["argmax", "argmin"]


def _place_samples() -> list[Sample]:
    x = uniform(-2, 2, 3, 4)
    return [Sample((x,)), Sample((x,), {"axis": 1}), Sample((x,), {"axis": 0, "keepdims": True})]


def _check_place(op: str, avals: tuple[Aval, ...], axis: int, keepdims: bool) -> None:
    if avals[0].shape[axis] == 0:
        raise ShapeError(message(op, "a non-empty axis", repr(avals[0]), "Check the size first."))


def _place_aval(avals: tuple[Aval, ...], axis: int, keepdims: bool) -> Aval:
    return aval(reduced_shape(avals, (axis,), keepdims), torch.int64, avals[0].device)


def _extreme_place(name: str, function: Any, reference: Any, user: Any) -> Op:
    return define(
        name, lambda x, axis, keepdims: function(x, axis, keepdim=keepdims), params=("axis", "keepdims"),
        unsigned=ORDER, shape=_place_aval, check=_check_place, nondiff="the result is an index",
        factors=reduction(), batch=shifted("axis"), samples=_place_samples, errors=bad_axis, reference=reference,
        span=lambda avals, spans, axis, keepdims: (0, avals[0].shape[axis] - 1), user=user,
    )  # fmt: skip


_argmax = _extreme_place("argmax", torch.argmax, numpy.argmax, lambda x, **kw: argmax(x, **kw))
_argmin = _extreme_place("argmin", torch.argmin, numpy.argmin, lambda x, **kw: argmin(x, **kw))


def _place(op: Any, x: Any, axis: int | None, keepdims: bool) -> Array:
    x = lift(op.name, x)
    if x.aval.dtype is torch.bool:
        x = cast(x, torch.uint8)
    if axis is None:
        out = bind(op, (ravel(x),), (0, False))
        return counted(reshape(out, (1,) * x.ndim) if as_flag(op.name, "keepdims", keepdims) else out)
    return counted(bind(op, (x,), (normalize_axis(op.name, axis, x.ndim), as_flag(op.name, "keepdims", keepdims))))


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the int64 index of the largest element along `axis` (None: in the flattened array).

    >>> gt.argmax(gt.array([1., 3., 2.]))
    Array(1, dtype=int64)
    """
    return _place(_argmax, x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the int64 index of the smallest element along `axis` (None: in the flattened array).

    >>> gt.argmin(gt.array([2., 1., 3.]))
    Array(1, dtype=int64)
    """
    return _place(_argmin, x, axis, keepdims)
