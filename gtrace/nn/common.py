"""Shared helpers: floating operands, equal shapes, norms and reductions of losses."""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.extend import ArgumentError, Array, ShapeError, cast, message, ops, promote_arrays, real_scalar

HALVES = (torch.float16, torch.bfloat16)
"""Dtypes that are too narrow for sums: statistics are computed in float32."""


def floating(name: str, x: Any) -> Array:
    """Return an operand as a floating Array; integers and booleans become float32."""
    return promote_arrays(name, x, floating=True)[0]


def widened(x: Array) -> Array:
    """Return x; in float32 if its dtype has 16 bits."""
    return cast(x, torch.float32) if x.aval.dtype in HALVES else x


def like_shapes(name: str, *operands: Any) -> list[Array]:
    """Return the floating operands of a loss in their common dtype, at least float32; 0-d operands fit any shape.

    Raises:
        ShapeError: shapes differ. Broadcasting would hide mistakes, such as (n, 1) beside (n,).
    """
    arrays = promote_arrays(name, *operands, floating=True)
    if len({x.shape for x in arrays if x.shape}) > 1:
        got = " and ".join(repr(x.aval) for x in arrays)
        raise ShapeError(message(name, "arrays of one shape", got, "Reshape or broadcast one of them first."))
    return [widened(x) for x in arrays]


def check_reduction(name: str, reduction: Any, allowed: tuple[str, ...] = ("none", "mean", "sum")) -> None:
    """Raise for an unknown reduction.

    Raises:
        ArgumentError: it is not allowed.
    """
    if reduction not in allowed:
        expected = f"a reduction among {', '.join(map(repr, allowed))}"
        raise ArgumentError(message(name, expected, repr(reduction), "Pass one of them."))


def reduced(name: str, values: Array, reduction: str) -> Array:
    """Return the losses, their mean or their sum.

    Raises:
        ArgumentError: the reduction is unknown.
    """
    check_reduction(name, reduction)
    return values if reduction == "none" else ops.mean(values) if reduction == "mean" else ops.sum(values)


def check_number(name: str, what: str, value: Any, low: float, high: float = math.inf) -> float:
    """Return a Python number in [low, high].

    Raises:
        ArgumentError: it is not a number in this range.
    """
    number = real_scalar(value)
    if number is None or not low <= number <= high:
        interval = f">= {low:g}" if high == math.inf else f"in [{low:g}, {high:g}]"
        raise ArgumentError(message(name, f"a number {interval} as {what}", repr(value), "Pass such a number."))
    return number


def vector_norm(name: str, x: Array, p: Any, axis: int, keepdims: bool = False) -> Array:
    """Return the p-norm over `axis`, with derivative 0 at zero vectors.

    Raises:
        ArgumentError: p is not a number above 0.
    """
    number = check_number(name, "p", p, 0.0)
    if number == 0:
        raise ArgumentError(message(name, "a number above 0 as p", repr(p), "Pass 1, 2 or math.inf."))
    if number == math.inf:
        return ops.max(ops.absolute(x), axis, keepdims=keepdims)
    if number == 1:
        return ops.sum(ops.absolute(x), axis, keepdims=keepdims)
    if number == 2:
        total = ops.sum(ops.square(x), axis, keepdims=keepdims)
        zero = total == 0
        return ops.where(zero, 0.0, ops.sqrt(ops.where(zero, 1.0, total)))
    size = ops.absolute(x)
    none = size == 0  # for p < 1 the derivative of the power is infinite there
    total = ops.sum(ops.where(none, 0.0, ops.where(none, 1.0, size) ** float(number)), axis, keepdims=keepdims)
    zero = total == 0
    return ops.where(zero, 0.0, ops.where(zero, 1.0, total) ** (1.0 / number))
