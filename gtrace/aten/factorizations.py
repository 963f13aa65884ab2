"""Cholesky factors, triangular systems and eigenvalues of symmetric matrices without tracing; see `written`.

Formulas: I. Murray, Differentiation of the Cholesky decomposition, 2016; M. Giles, Collected matrix derivative results
for forward and reverse mode algorithmic differentiation, 2008.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch

from gtrace.aten.overloads import OPERAND
from gtrace.aten.translate import call_aten
from gtrace.ir.aval import Aval, Bundle, aval, bundle
from gtrace.ops.arrange import tril, triu
from gtrace.ops.linalg import matmul
from gtrace.ops.shape import matrix_transpose
from gtrace.trace.array import Array

CHOLESKY = "aten.linalg_cholesky_ex.default"
EIGH = "aten._linalg_eigh.default"
SOLVE = "aten.linalg_solve_triangular.default"

_DTYPES = (torch.float32, torch.float64)


def cholesky(x: Array) -> tuple[Array, Array] | None:
    """Return lower factors of matrices of floats, and whether each elimination failed; None: torch has to say."""
    if x.dtype not in _DTYPES or not x.size:
        return None
    factor, failed = call_aten(CHOLESKY, (OPERAND,), [x])
    return factor, failed


def eigh(x: Array, half: str) -> tuple[Array, Array] | None:
    """Return eigenvalues and eigenvectors of symmetric matrices of floats; None: torch has to say."""
    if x.dtype not in _DTYPES or not x.size:
        return None
    values, vectors = call_aten(EIGH, (OPERAND,) if half == "L" else (OPERAND, f"str:{half}"), [x])
    return values, vectors


def solve_triangular(a: Array, b: Array, upper: bool) -> Array | None:
    """Return x with a @ x == b for triangular matrices of floats; None: torch has to say."""
    if a.dtype not in _DTYPES or a.dtype is not b.dtype or not a.size or not b.size:
        return None
    found: Array = call_aten(SOLVE, (OPERAND, OPERAND, upper), [a, b])
    return found


def cholesky_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    """Return the cotangent of positive definite matrices."""
    if args != (OPERAND,):
        return None
    factor = call_aten(CHOLESKY, args, operands)[0]
    half = tril(matmul(matrix_transpose(factor), cts[0]))
    inner = (half + matrix_transpose(tril(half, k=-1))) * 0.5
    left = call_aten(SOLVE, (OPERAND, OPERAND, True), [matrix_transpose(factor), inner])
    return [call_aten(SOLVE, (OPERAND, OPERAND, False, False), [factor, left])]


def solve_pullback(
    ct: Array, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    """Return the cotangents of triangular matrices and right sides."""
    a, b = operands
    if args not in ((OPERAND, OPERAND, True), (OPERAND, OPERAND, False)) or a.shape[:-2] != b.shape[:-2]:
        return None
    upper = args[2]
    right = call_aten(SOLVE, (OPERAND, OPERAND, not upper), [matrix_transpose(a), ct])
    if not needed[0]:
        return [None, right]
    x = call_aten(SOLVE, args, operands)
    product = -matmul(right, matrix_transpose(x))
    return [triu(product) if upper else tril(product), right if needed[1] else None]


def type_of_cholesky(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    """Return the types of factors and failures; None: torch has to say."""
    (x,) = avals
    if args != (OPERAND,) or not _square(x):
        return None
    return bundle((x, aval(x.shape[:-2], torch.int32, x.device)))


def type_of_eigh(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    """Return the types of eigenvalues and eigenvectors; None: torch has to say."""
    (x,) = avals
    if len(args) > 2 or not _square(x):
        return None
    return bundle((aval(x.shape[:-1], x.dtype, x.device), x))


def type_of_solution(avals: Sequence[Aval], args: tuple[Any, ...]) -> Aval | None:
    """Return the type of the solution of a triangular system; None: torch has to say."""
    a, b = avals
    if not _square(a) or b.dtype is not a.dtype or b.shape[-2:-1] != a.shape[-1:]:
        return None
    try:
        batch = numpy.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        return None
    return aval((*batch, *b.shape[-2:]), b.dtype, b.device)


def _square(x: Aval) -> bool:
    return x.dtype in _DTYPES and len(x.shape) >= 2 and x.shape[-1] == x.shape[-2]


def of_batch(overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]) -> Any:
    """Return the results for a batch on axis 0, as rules for batches do; None: torch has to say."""
    if any(x.dtype not in _DTYPES or not x.size for x in operands):
        return None
    if overload in (CHOLESKY, EIGH):
        return [(x, True) for x in call_aten(overload, args, operands)]
    if overload != SOLVE:
        return None
    # torch broadcasts the axes before the matrices: an operand without the batch has to have fewer
    sizes = [x.ndim - flag for x, flag in zip(operands, batched, strict=True)]
    if len(set(sizes)) > 1:
        return None
    return call_aten(overload, args, operands)
