"""one_hot: classes as vectors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core.backends.interpreter.tuned import LEAST_ONE_HOT
from gtrace.core.base.dtypes import DTYPES, LONG, SHORT
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops.batching import shifted
from gtrace.core.ops.declare import Array, Aval, Op, Params, Sample, aval, define, lift
from gtrace.core.ops.shape import as_size, normalize_axis
from gtrace.core.ops.sharding_rules import placed_codes
from gtrace.core.trace.fast import bind_met
from gtrace.core.trace.promotion import as_dtype, default_dtype

__all__ = ["one_hot"]


def _one_hot_impl(x: torch.Tensor, num_classes: int, axis: int, dtype: str) -> torch.Tensor:
    classes = torch.arange(num_classes, device=x.device)
    spread = classes.reshape([-1 if k == axis else 1 for k in range(x.ndim + 1)])
    return (x.unsqueeze(axis) == spread).to(DTYPES[dtype])


def _one_hot_direct(
    avals: tuple[Aval, ...], num_classes: int, axis: int, dtype: str
) -> Callable[[torch.Tensor], torch.Tensor]:
    to, ndim = DTYPES[dtype], len(avals[0].shape) + 1
    if avals[0].size * num_classes >= LEAST_ONE_HOT:
        return functools.partial(_scattered, num_classes=num_classes, axis=axis, dtype=to)
    classes = torch.arange(num_classes, device=avals[0].device).reshape([-1 if k == axis else 1 for k in range(ndim)])
    return lambda x: torch.eq(x.unsqueeze(axis), classes).to(to)


def _scattered(x: torch.Tensor, num_classes: int, axis: int, dtype: torch.dtype) -> torch.Tensor:
    """Write ones into zeros: one pass over memory instead of three."""
    out = torch.zeros(*x.shape[:axis], num_classes, *x.shape[axis:], dtype=dtype, device=x.device)
    places = x.to(torch.int64)
    inside = (places >= 0) & (places < num_classes)
    return out.scatter_(axis, torch.where(inside, places, 0).unsqueeze(axis), inside.unsqueeze(axis).to(dtype))


_one_hot = define(
    "one_hot", _one_hot_impl, direct=_one_hot_direct, params=("num_classes", "axis", "dtype"),
    shape=lambda avals, num_classes, axis, dtype: aval(
        (*avals[0].shape[:axis], num_classes, *avals[0].shape[axis:]), DTYPES[dtype], avals[0].device
    ),
    batch=shifted("axis"), factors=placed_codes, nondiff="its operand is an integer",
    samples=lambda: [Sample((numpy.array([[1, 0, 5], [-1, 2, 3]]), 4), {"axis": k}) for k in (-1, 0, 1)],
    reference=lambda x, num_classes, axis: numpy.moveaxis(
        (x[..., None] == numpy.arange(num_classes)).astype(numpy.float32), -1, axis
    ),
    user=lambda *args, **kw: one_hot(*args, **kw),
)  # fmt: skip


def _resolve_one_hot(op: Op, x: Any, num_classes: int, dtype: Any, axis: int) -> tuple[Array, Params]:
    x = lift("one_hot", x)
    if x.aval.floating:
        raise ArgumentError(message("one_hot", "integers", f"{LONG[x.aval.dtype]}", "Use x.astype(gt.int64)."))
    count = as_size("one_hot", "num_classes", num_classes)
    return x, (count, normalize_axis("one_hot", axis, x.ndim + 1), SHORT[as_dtype(dtype)])


def one_hot(x: Any, num_classes: int, dtype: Any = None, axis: int = -1) -> Array:
    """Return a vector with a one at index x for each integer of x, and zeros for out-of-range integers.

    >>> gt.one_hot(gt.array([0, 2]), 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    kind = default_dtype(float) if dtype is None else dtype
    return bind_met(_one_hot, x, (num_classes, kind, axis), _resolve_one_hot)
