"""Shared parts of the rules of matrices: calls, types, batches, triangles and diagonals.

Rules written with transposes also hold for complex matrices, because gtrace does not conjugate cotangents of
holomorphic functions. The other rules take and return conjugated cotangents, as torch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.ops.ndarray_methods import diagonal
from gtrace.core.trace.array import Array
from gtrace.interop.aten.translate import call_aten

REAL = {
    torch.float32: torch.float32, torch.float64: torch.float64,
    torch.complex64: torch.float32, torch.complex128: torch.float64,
}  # fmt: skip
"""The dtypes of matrices, with those of their absolute values."""


def called(overload: str, args: tuple[Any, ...], *operands: Array) -> Any:
    """Record a call on matrices of one dtype; return its results, or None if no rule applies."""
    dtype = operands[0].aval.dtype
    if dtype not in REAL or any(x.aval.dtype is not dtype or not x.size for x in operands):
        return None
    return call_aten(overload, args, operands)


def one(overload: str, args: tuple[Any, ...], *operands: Array) -> Array:
    """Record a call; return its result, or the first of its results."""
    found = call_aten(overload, args, operands)
    first: Array = found[0] if isinstance(found, list) else found
    return first


def adjoint(x: Array) -> Array:
    """Return conjugate transposes."""
    return conjugate(ops.matrix_transpose(x))


def conjugate(x: Array) -> Array:
    """Return conjugates; real numbers are unchanged."""
    return ops.conj(x) if x.aval.complex else x


def turning(x: Array) -> Array:
    """Return the imaginary parts of complex numbers as imaginary numbers."""
    return ops.multiply(ops.imag(x), 1j)


def on_diagonal(x: Array) -> Array:
    """Return whether an element is on the diagonal of square matrices."""
    return ops.eye(x.shape[-1], dtype=bool, device=x.aval.device)


def gaps(values: Array) -> Array:
    """Return the differences between the numbers of columns and of rows, with ones on the diagonal."""
    differences = ops.expand_dims(values, -2) - ops.expand_dims(values, -1)
    return ops.where(on_diagonal(differences), 1, differences)


def diagonals(x: Array) -> Array:
    """Return the diagonals of matrices."""
    return diagonal(x, 0, -2, -1)


def diagonal_matrices(x: Array) -> Array:
    """Return diagonal matrices with these diagonals."""
    return ops.where(on_diagonal(x), ops.expand_dims(x, -1), 0)


def scaled(numbers: Array, x: Array) -> Array:
    """Return matrices, each times a number."""
    return ops.multiply(ops.reshape(numbers, (*numbers.shape, 1, 1)), x)


def unbroadcast(x: Array, shape: tuple[int, ...]) -> Array:
    """Return the sums over the axes along which an array of this shape was repeated."""
    more = x.ndim - len(shape)
    repeated = [k for k, n in enumerate(x.shape) if k < more or (shape[k - more] == 1 and n != 1)]
    return ops.reshape(ops.sum(x, axis=tuple(repeated)), shape) if repeated else x


def of_batch(overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]) -> Any:
    """Record a call for a batch on axis 0, for an operator that takes matrices with leading axes."""
    if operands[0].aval.dtype not in REAL or any(not x.size for x in operands):
        return None
    ndim = max(x.ndim - flag for x, flag in zip(operands, batched, strict=True))
    count = operands[batched.index(True)].shape[0]
    whole = []
    for x, flag in zip(operands, batched, strict=True):
        if len(operands) > 1 and x.ndim - flag != ndim:
            return None
        whole.append(x if flag else ops.broadcast_to(x, (count, *x.shape)))
    found = call_aten(overload, args, whole)
    return [(x, True) for x in found] if isinstance(found, list) else found
