"""Checks before an operation is recorded, with clearer errors than torch's, and shape rules.

A check is called as ``check(op, avals, **params)``. Its error names the operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core.base.dtypes import FLOATS, INEXACT
from gtrace.core.base.errors import ArgumentError, DtypeError, message
from gtrace.core.ir.aval import Aval, aval

Check = Callable[..., None]


def together(*checks: Check) -> Check:
    """Return a check that makes these checks in order."""

    def check(op: str, avals: tuple[Aval, ...], **params: Any) -> None:
        for one in checks:
            one(op, avals, **params)

    return check


def refusing(refused: Callable[[Aval], bool], expected: str, fix: str) -> Check:
    """Return a check that raises a DtypeError if any operand is refused."""

    def check(op: str, avals: tuple[Aval, ...], **_: Any) -> None:
        if any(map(refused, avals)):
            raise DtypeError(message(op, expected, avals, fix))

    return check


integers_only = refusing(lambda a: a.dtype in INEXACT, "integer or boolean operands", "Use x.astype(gt.int64).")
floats_only = refusing(lambda a: a.dtype not in FLOATS, "floating operands", "Use x.astype(gt.float32).")
complex_only = refusing(lambda a: not a.complex, "complex operands", "Use x.astype(gt.complex64).")
no_booleans = refusing(lambda a: a.dtype is torch.bool, "numbers, not booleans", "Use x.astype(gt.int64), or & | ^ ~.")
real_only = refusing(lambda a: a.complex, "real operands", "Use x.real, x.imag or gt.abs(x).")
counts_only = together(integers_only, no_booleans)


def as_flag(op: str, name: str, value: Any) -> bool:
    """Return the truth of a flag: a bool, an integer or None. Another value, such as a dtype passed by mistake, raises.

    Raises:
        ArgumentError: it is none of these.
    """
    if value is None or isinstance(value, (int, numpy.bool_)):
        return bool(value)
    raise ArgumentError(message(op, f"{name} to be True or False", repr(value), "Pass it by name."))


def reduced_shape(avals: tuple[Aval, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """Return the shape of a reduction's result."""
    return tuple(1 if k in axes else n for k, n in enumerate(avals[0].shape) if keepdims or k not in axes)


def same_shape(avals: tuple[Aval, ...], **_: Any) -> tuple[int, ...]:
    """Return the shape of the operand, for operations that keep it."""
    return avals[0].shape


def of_operand(avals: tuple[Aval, ...], spans: list[tuple[int, int] | None], **_: Any) -> tuple[int, int] | None:
    """Return the range of the first operand, for operations that select or move elements."""
    return spans[0]


def same_kind(avals: tuple[Aval, ...], **_: Any) -> Aval:
    """Return the first operand's aval, not weak, for operations that permute its elements or replace some."""
    return reshaped(avals[0], avals[0].shape)


def reshaped(a: Aval, shape: tuple[int, ...]) -> Aval:
    """Return a strong aval with another shape."""
    return aval(shape, a.dtype, a.device)
