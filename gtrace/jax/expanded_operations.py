"""Operations of gtrace's that JAX has not, computed by operations that it has; see `equations`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gtrace import lax as ours
from gtrace.extend import FLOATS, cast, ops
from gtrace.ir import DTYPES


def _refuse() -> Any:
    raise NotImplementedError


def _softmax(x: Any, axis: int) -> Any:
    shifted = ops.exp(x - ops.stop_gradient(ops.max(x, axis=axis, keepdims=True)))
    return shifted / ops.sum(shifted, axis=axis, keepdims=True)


def _log_softmax(x: Any, axis: int) -> Any:
    shifted = x - ops.stop_gradient(ops.max(x, axis=axis, keepdims=True))
    return shifted - ops.log(ops.sum(ops.exp(shifted), axis=axis, keepdims=True))


def _logaddexp(x: Any, y: Any) -> Any:
    difference = x - y
    sum_of_both = ops.maximum(x, y) + ops.log1p(ops.exp(-ops.abs(difference)))
    return ops.where(ops.not_equal(difference, difference), x + y, sum_of_both)


def _remainder(x: Any, y: Any) -> Any:
    if x.aval.dtype not in FLOATS:
        _refuse()
    rest = ours.rem(x, y)
    turned = ops.logical_and(ops.not_equal(ops.less(rest, 0), ops.less(y, 0)), ops.not_equal(rest, 0))
    return ops.where(turned, rest + y, rest)


def _gelu(x: Any, approximate: Any) -> Any:
    if approximate in (True, "tanh"):
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
        return x * (0.5 * (1.0 + ops.tanh(inner)))
    return 0.5 * x * ours.erfc(-x * math.sqrt(0.5))


def _one_hot(x: Any, num_classes: int, axis: int, dtype: str) -> Any:
    places = ops.reshape(ops.arange(num_classes, dtype=x.aval.dtype), [
        num_classes if k == axis else 1 for k in range(x.ndim + 1)
    ])  # fmt: skip
    return cast(ops.equal(ops.expand_dims(x, axis), places), DTYPES[dtype])


def _triangle(keep_lower: bool) -> Callable[..., Any]:
    def function(x: Any, k: int) -> Any:
        rows, columns = x.shape[-2:]
        row = ops.reshape(ops.arange(rows), (rows, 1)) + (k if keep_lower else k - 1)
        lower = ops.greater_equal(row, ops.reshape(ops.arange(columns), (1, columns)))
        zeros = ops.zeros_like(x)
        return ops.where(lower, x, zeros) if keep_lower else ops.where(lower, zeros, x)

    return function


def _roll(x: Any, shifts: Sequence[int], axes: Sequence[int]) -> Any:
    for shift, axis in zip(shifts, axes, strict=True):
        size = x.shape[axis]
        at = -shift % size if size else 0
        if at:
            before = ours.slice_in_dim(x, 0, at, axis=axis)
            x = ops.concat([ours.slice_in_dim(x, at, size, axis=axis), before], axis)
    return x


def _linspace(start: Any, stop: Any, num: int, endpoint: bool, dtype: str, device: str) -> Any:
    kind = DTYPES[dtype]
    if kind not in FLOATS or num < 2:
        _refuse()
    step = ops.arange(num, dtype=kind) / float(num - 1 if endpoint else num)
    return start * (1.0 - step) + stop * step


EXPANDED: dict[str, Callable[..., Any]] = {
    "relu": lambda x: ops.maximum(x, 0), "silu": lambda x: x * ours.logistic(x), "gelu": _gelu,
    "softplus": lambda x: _logaddexp(x, ops.zeros_like(x)), "logaddexp": _logaddexp,
    "softmax": _softmax, "log_softmax": _log_softmax, "one_hot": _one_hot,
    "isnan": lambda x: ops.not_equal(x, x), "isinf": lambda x: ops.equal(ops.abs(x), math.inf),
    "reciprocal": lambda x: 1 / x, "log2": lambda x: ops.log(x) / math.log(2), "log10": lambda x: (
        ops.log(x) / math.log(10)
    ),
    "trunc": lambda x: ops.where(ops.less(x, 0), ops.ceil(x), ops.floor(x)), "remainder": _remainder,
    "tril": _triangle(True), "triu": _triangle(False), "roll": _roll, "linspace": _linspace,
}  # fmt: skip
"""Functions that compute an operation by others that JAX has. NotImplementedError if they do not apply."""
