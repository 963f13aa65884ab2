"""Factors of matrices, linear systems and eigenvalues of symmetric matrices without tracing; see `written`.

Formulas: I. Murray, Differentiation of the Cholesky decomposition, 2016; M. Giles, Collected matrix derivative results
for forward and reverse mode algorithmic differentiation, 2008.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from gtrace.aten.overloads import OPERAND
from gtrace.aten.translate import call_aten
from gtrace.ir.aval import Aval, Bundle, aval, bundle
from gtrace.ops.arrange import tril, triu
from gtrace.ops.create import eye
from gtrace.ops.linalg import matmul
from gtrace.ops.logic import where
from gtrace.ops.shape import broadcast_to, expand_dims, matrix_transpose, reshape
from gtrace.trace.array import Array

CHOLESKY = "aten.linalg_cholesky_ex.default"
EIGH = "aten._linalg_eigh.default"
SOLVE = "aten.linalg_solve_triangular.default"
GENERAL_SOLVE = "aten._linalg_solve_ex.default"
SLOGDET = "aten._linalg_slogdet.default"
INVERSE = "aten.linalg_inv_ex.default"
QR = "aten.linalg_qr.default"
SVD = "aten._linalg_svd.default"

_DTYPES = (torch.float32, torch.float64)


def _called(overload: str, args: tuple[Any, ...], *operands: Array) -> Any:
    """Record a call on matrices of floats of one dtype; returns its results, or None where torch has to say."""
    dtype = operands[0].aval.dtype
    if dtype not in _DTYPES or any(x.aval.dtype is not dtype or not x.size for x in operands):
        return None
    return call_aten(overload, args, operands)


def cholesky(x: Array) -> Array | None:
    """Return lower factors of matrices, NaN where an elimination failed; None: torch has to say."""
    found = _called(CHOLESKY, (OPERAND,), x)
    if found is None:
        return None
    factor, failed = found
    return where(expand_dims(expand_dims(failed == 0, -1), -1), factor, math.nan)


def eigh(x: Array, half: str) -> Sequence[Array] | None:
    """Return eigenvalues and eigenvectors of symmetric matrices; None: torch has to say."""
    found: Sequence[Array] | None = _called(EIGH, (OPERAND,) if half == "L" else (OPERAND, f"str:{half}"), x)
    return found


def solve_triangular(a: Array, b: Array, upper: bool) -> Array | None:
    """Return x with a @ x == b for triangular matrices; None: torch has to say."""
    found: Array | None = _called(SOLVE, (OPERAND, OPERAND, upper), a, b)
    return found


def solve(a: Array, b: Array) -> Array | None:
    """Return x with a @ x == b for matrices with equal leading axes; None: torch has to say."""
    found = _called(GENERAL_SOLVE, (OPERAND, OPERAND), a, b)
    return None if found is None else found[0]


def slogdet(x: Array) -> Sequence[Array] | None:
    """Return signs and logarithms of determinants; None: torch has to say."""
    found = _called(SLOGDET, (OPERAND,), x)
    return None if found is None else found[:2]


def inverse(x: Array) -> Array | None:
    """Return inverses of matrices; None: torch has to say."""
    found = _called(INVERSE, (OPERAND,), x)
    return None if found is None else found[0]


def qr(x: Array, mode: str) -> Sequence[Array] | None:
    """Return orthonormal and upper triangular factors; None: torch has to say."""
    found: Sequence[Array] | None = _called(QR, (OPERAND,) if mode == "reduced" else (OPERAND, f"str:{mode}"), x)
    return found


def svd(x: Array, full_matrices: bool) -> Sequence[Array] | None:
    """Return left singular vectors, singular values and right singular vectors; None: torch has to say."""
    found: Sequence[Array] | None = _called(SVD, (OPERAND, True) if full_matrices else (OPERAND,), x)
    return found


def _cholesky_pullback(
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


def _solve_pullback(
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


def _eigh_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    """Return the cotangent of symmetric matrices, of which both halves count alike."""
    of_values, of_vectors = cts
    values, vectors = call_aten(EIGH, args, operands)
    if of_vectors is None:
        return [matmul(vectors * expand_dims(of_values, -2), matrix_transpose(vectors))]
    diagonal = eye(values.shape[-1], dtype=bool, device=values.aval.device)
    gaps = where(diagonal, 1, expand_dims(values, -2) - expand_dims(values, -1))
    turned = matmul(matrix_transpose(vectors), of_vectors)
    # vectors of length 1 turn, and do not grow
    turned = (turned - matrix_transpose(turned)) * 0.5
    inner = where(diagonal, 0 if of_values is None else expand_dims(of_values, -1), turned / gaps)
    return [matmul(vectors, matmul(inner, matrix_transpose(vectors)))]


def _svd_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    """Return the cotangent of matrices whose singular values differ."""
    of_left, of_values, of_right = cts
    (x,) = operands
    if x.shape[-2] != x.shape[-1] and args != (OPERAND,) and not (of_left is None and of_right is None):
        return None
    left, values, right = call_aten(SVD, (OPERAND,), operands)
    adjoint, columns, rows = matrix_transpose(left), expand_dims(values, -2), expand_dims(values, -1)
    if of_left is None and of_right is None:
        return [matmul(left * expand_dims(of_values, -2), right)]
    diagonal = eye(values.shape[-1], dtype=bool, device=values.aval.device)
    gaps = where(diagonal, 1, columns * columns - rows * rows)
    inner = where(diagonal, 0 if of_values is None else expand_dims(of_values, -1), 0)
    if of_left is not None:
        turned = matmul(adjoint, of_left)
        inner = inner + (turned - matrix_transpose(turned)) / gaps * columns
    if of_right is not None:
        turned = matmul(right, matrix_transpose(of_right))
        inner = inner + rows * ((turned - matrix_transpose(turned)) / gaps)
    found = matmul(left, matmul(inner, right))
    if of_left is not None and x.shape[-2] > x.shape[-1]:  # out of the space of the vectors
        beyond = of_left / columns
        found = found + matmul(beyond - matmul(left, matmul(adjoint, beyond)), right)
    if of_right is not None and x.shape[-1] > x.shape[-2]:
        beyond = of_right / rows
        found = found + matmul(left, beyond - matmul(matmul(beyond, matrix_transpose(right)), right))
    return [found]


def _general_solve_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    """Return the cotangents of matrices and right sides."""
    a, b = operands
    if args != (OPERAND, OPERAND) or a.shape[:-2] != b.shape[:-2]:
        return None
    right = call_aten(GENERAL_SOLVE, args, [matrix_transpose(a), cts[0]])[0]
    if not needed[0]:
        return [None, right]
    x = call_aten(GENERAL_SOLVE, args, operands)[0]
    return [-matmul(right, matrix_transpose(x)), right if needed[1] else None]


def _slogdet_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    """Return the cotangent of matrices. The sign is constant."""
    (x,) = operands
    if cts[1] is None:
        return [None]
    scale = reshape(cts[1], (*x.shape[:-2], 1, 1))
    right = where(eye(x.shape[-1], dtype=bool, device=x.aval.device), scale, 0)
    return [call_aten(GENERAL_SOLVE, (OPERAND, OPERAND), [matrix_transpose(x), right])[0]]


def _inverse_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    """Return the cotangent of matrices that are inverted."""
    if args != (OPERAND,):
        return None
    adjoint = matrix_transpose(call_aten(INVERSE, args, operands)[0])
    return [-matmul(adjoint, matmul(cts[0], adjoint))]


def _qr_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    """Return the cotangent of matrices that have at least as many rows as columns, and as many in Q."""
    (x,) = operands
    if args != (OPERAND,) or x.shape[-2] < x.shape[-1]:
        return None
    of_q, of_r = cts
    q, r = call_aten(QR, args, operands)
    parts = [matmul(of_r, matrix_transpose(r))] if of_r is not None else []
    parts += [-matmul(matrix_transpose(q), of_q)] if of_q is not None else []
    inner = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    product = matmul(q, triu(inner) + matrix_transpose(triu(inner, k=1)))
    whole = product if of_q is None else of_q + product
    return [call_aten(SOLVE, (OPERAND, OPERAND, False, False), [matrix_transpose(r), whole])]


def _type_of_cholesky(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    """Return the types of factors and failures; None: torch has to say."""
    (x,) = avals
    if args != (OPERAND,) or not _square(x):
        return None
    return bundle((x, aval(x.shape[:-2], torch.int32, x.device)))


def _type_of_eigh(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    """Return the types of eigenvalues and eigenvectors; None: torch has to say."""
    (x,) = avals
    if len(args) > 2 or not _square(x):
        return None
    return bundle((aval(x.shape[:-1], x.dtype, x.device), x))


def _type_of_solution(avals: Sequence[Aval], args: tuple[Any, ...]) -> Aval | None:
    """Return the type of the solution of a triangular system; None: torch has to say."""
    a, b = avals
    if not _square(a) or b.dtype is not a.dtype or b.shape[-2:-1] != a.shape[-1:]:
        return None
    try:
        batch = numpy.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        return None
    return aval((*batch, *b.shape[-2:]), b.dtype, b.device)


def _type_of_general_solution(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    """Return the types of the solution of a linear system and of its elimination; None: torch has to say."""
    a, b = avals
    if args != (OPERAND, OPERAND) or not _square(a) or b.dtype is not a.dtype or b.shape[:-1] != a.shape[:-1]:
        return None
    if len(a.shape) != len(b.shape):
        return None
    return bundle((b, a, _pivots(a), aval(a.shape[:-2], torch.int32, a.device)))


def _type_of_slogdet(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    """Return the types of signs, logarithms and eliminations; None: torch has to say."""
    (x,) = avals
    if not _square(x):
        return None
    numbers = aval(x.shape[:-2], x.dtype, x.device)
    return bundle((numbers, numbers, x, _pivots(x)))


def _type_of_inverse(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    """Return the types of inverses and failures; None: torch has to say."""
    (x,) = avals
    if args != (OPERAND,) or not _square(x):
        return None
    return bundle((x, aval(x.shape[:-2], torch.int32, x.device)))


def _type_of_qr(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    """Return the types of orthonormal and upper triangular factors; None: torch has to say."""
    (x,) = avals
    if args != (OPERAND,) or x.dtype not in _DTYPES or len(x.shape) < 2:
        return None
    *batch, rows, columns = x.shape
    inner = min(rows, columns)
    return bundle((aval((*batch, rows, inner), x.dtype, x.device), aval((*batch, inner, columns), x.dtype, x.device)))


def _type_of_svd(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    """Return the types of singular vectors, values and vectors; None: torch has to say."""
    (x,) = avals
    if args not in ((OPERAND,), (OPERAND, True)) or x.dtype not in _DTYPES or len(x.shape) < 2:
        return None
    *batch, rows, columns = x.shape
    inner = min(rows, columns)
    shapes = (rows, inner), (inner,), (inner, columns)
    if len(args) > 1:
        shapes = (rows, rows), (inner,), (columns, columns)
    return bundle(tuple(aval((*batch, *shape), x.dtype, x.device) for shape in shapes))


def _pivots(x: Aval) -> Aval:
    return aval(x.shape[:-1], torch.int32, x.device)


def _square(x: Aval) -> bool:
    return x.dtype in _DTYPES and len(x.shape) >= 2 and x.shape[-1] == x.shape[-2]


def _of_batch(overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]) -> Any:
    if any(x.aval.dtype not in _DTYPES or not x.size for x in operands):
        return None
    if len(operands) == 1:
        return [(x, True) for x in call_aten(overload, args, operands)]
    # torch broadcasts the axes before the matrices: an operand without the batch has to have fewer
    sizes = [x.ndim - flag for x, flag in zip(operands, batched, strict=True)]
    if len(set(sizes)) > 1:
        return None
    if overload == SOLVE:
        return call_aten(overload, args, operands)
    # a right side with one axis fewer would be a stack of vectors
    count = operands[batched.index(True)].shape[0]
    whole = [x if flag else broadcast_to(x, (count, *x.shape)) for x, flag in zip(operands, batched, strict=True)]
    return [(x, True) for x in call_aten(overload, args, whole)]


TYPES = {
    CHOLESKY: _type_of_cholesky, EIGH: _type_of_eigh, SOLVE: _type_of_solution, SLOGDET: _type_of_slogdet,
    GENERAL_SOLVE: _type_of_general_solution, INVERSE: _type_of_inverse, QR: _type_of_qr, SVD: _type_of_svd,
}  # fmt: skip
PULLBACKS = {
    CHOLESKY: _cholesky_pullback, EIGH: _eigh_pullback, SOLVE: _solve_pullback, GENERAL_SOLVE: _general_solve_pullback,
    SLOGDET: _slogdet_pullback, INVERSE: _inverse_pullback, QR: _qr_pullback, SVD: _svd_pullback,
}  # fmt: skip
BATCHES = dict.fromkeys(TYPES, _of_batch)
