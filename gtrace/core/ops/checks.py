"""Checks before an operation is recorded, with clearer errors than torch's, and shape rules."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace.core.base.dtypes import INEXACT
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.core.ir.aval import Aval, aval


def broadcasts(op: str, avals: tuple[Aval, ...], **_: Any) -> None:
    """Raise if shapes do not broadcast.

    Raises:
        ShapeError: names the shapes.
    """
    if avals[0].shape == avals[-1].shape and len(avals) == 2:
        return  # the common case
    try:
        numpy.broadcast_shapes(*[a.shape for a in avals])
    except ValueError:
        got = " and ".join(map(repr, avals))
        raise ShapeError(
            message(op, "shapes that broadcast", got, "Sizes must be equal or 1, counted from the right.")
        ) from None


def integers_only(op: str, avals: tuple[Aval, ...], **_: Any) -> None:
    """Raise for floating and complex operands.

    Raises:
        DtypeError: names the operands.
    """
    if any(a.dtype in INEXACT for a in avals):
        got = " and ".join(map(repr, avals))
        raise DtypeError(message(op, "integer or boolean operands", got, "Use x.astype(gt.int64)."))


def complex_only(op: str, avals: tuple[Aval, ...], **_: Any) -> None:
    """Raise for operands that are not complex.

    Raises:
        DtypeError: names the operands.
    """
    if not all(a.complex for a in avals):
        got = " and ".join(map(repr, avals))
        raise DtypeError(message(op, "complex operands", got, "Use x.astype(gt.complex64)."))


def real_only(op: str, avals: tuple[Aval, ...], **_: Any) -> None:
    """Raise for complex operands, and for shapes that do not broadcast.

    Raises:
        DtypeError, ShapeError: name the operands.
    """
    if any(a.complex for a in avals):
        got = " and ".join(map(repr, avals))
        raise DtypeError(message(op, "real operands", got, "Use x.real, x.imag or gt.abs(x)."))
    broadcasts(op, avals)


def no_booleans(op: str, avals: tuple[Aval, ...], **_: Any) -> None:
    """Raise for boolean operands.

    Raises:
        DtypeError: names the operands.
    """
    if any(a.dtype is torch.bool for a in avals):
        got = " and ".join(map(repr, avals))
        raise DtypeError(message(op, "numbers, not booleans", got, "Use x.astype(gt.int64), or & | ^ ~."))


def numbers_only(op: str, avals: tuple[Aval, ...], **_: Any) -> None:
    """Raise for boolean operands, and for shapes that do not broadcast.

    Raises:
        DtypeError, ShapeError: name the operands.
    """
    no_booleans(op, avals)
    broadcasts(op, avals)


def as_flag(op: str, name: str, value: Any) -> bool:
    """Return an argument that must be true or false; another value, such as a dtype passed by mistake, raises.

    Raises:
        ArgumentError: it is neither.
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
    """Return the aval of the first operand, for operations that permute its elements or replace some."""
    return reshaped(avals[0], avals[0].shape)


def reshaped(a: Aval, shape: tuple[int, ...]) -> Aval:
    """Return a strong aval with another shape."""
    return aval(shape, a.dtype, a.device)
