"""Matrix factorizations and Hermitian eigenvalues without tracing; see `handwritten_layers`.

Formulas: I. Murray, Differentiation of the Cholesky decomposition, 2016; M. Giles, Collected matrix derivative results
for forward and reverse mode algorithmic differentiation, 2008; for QR factors, S. Walter and L. Lehmann, Algorithmic
differentiation of linear algebra functions with application in optimum experimental design, 2010. For complex matrices,
the adjoint replaces the transpose, and diagonals are real where the factor's are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.ir.aval import Aval, Bundle, aval, bundle
from gtrace.core.ops.operands import cast
from gtrace.core.trace.array import Array
from gtrace.interop.aten.handwritten_layers import Tangent
from gtrace.interop.aten.linear_systems import SOLVE, SVD
from gtrace.interop.aten.matrix_common import (
    REAL,
    adjoint,
    called,
    conjugate,
    diagonal_matrices,
    diagonals,
    gaps,
    of_batch,
    on_diagonal,
    one,
    real_part,
    retyped,
    square,
    turning,
)
from gtrace.interop.aten.overloads import OPERAND
from gtrace.interop.aten.translate import call_aten

CHOLESKY = "aten.linalg_cholesky_ex.default"
EIGH = "aten._linalg_eigh.default"
QR = "aten.linalg_qr.default"


def cholesky(x: Array) -> Array | None:
    """Return lower Cholesky factors, NaN where the factorization failed; None: no rule applies."""
    found = called(CHOLESKY, (OPERAND,), x)
    if found is None:
        return None
    factor, failed = found
    return ops.where(ops.expand_dims(ops.expand_dims(failed == 0, -1), -1), factor, math.nan)


def eigh(x: Array, half: str) -> Sequence[Array] | None:
    """Return eigenvalues and eigenvectors of symmetric matrices; None: no rule applies."""
    found: Sequence[Array] | None = called(EIGH, (OPERAND,) if half == "L" else (OPERAND, f"str:{half}"), x)
    return found


def qr(x: Array, mode: str) -> Sequence[Array] | None:
    """Return orthonormal and upper triangular factors; None: no rule applies."""
    found: Sequence[Array] | None = called(QR, (OPERAND,) if mode == "reduced" else (OPERAND, f"str:{mode}"), x)
    return found


def svd(x: Array, full_matrices: bool) -> Sequence[Array] | None:
    """Return left singular vectors, singular values and right singular vectors; None: no rule applies."""
    found: Sequence[Array] | None = called(SVD, (OPERAND, True) if full_matrices else (OPERAND,), x)
    return found


def _cholesky_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    if args != (OPERAND,):
        return None
    factor = one(CHOLESKY, args, *operands)
    half = ops.matmul(adjoint(factor), conjugate(cts[0]))
    inner = (ops.tril(half, k=-1) + adjoint(ops.tril(half, k=-1)) + diagonal_matrices(_real_diagonals(half))) * 0.5
    left = one(SOLVE, (OPERAND, OPERAND, True), adjoint(factor), inner)
    return [conjugate(one(SOLVE, (OPERAND, OPERAND, False, False), factor, left))]


def _cholesky_tangent(
    tangents: Sequence[Array | None], operands: Sequence[Array], out: Array, overload: str, args: tuple[Any, ...]
) -> list[Array | None] | None:
    if args != (OPERAND,) or tangents[0] is None:
        return None
    factor = one(CHOLESKY, args, *operands)
    inner = one(SOLVE, (OPERAND, OPERAND, False), factor, _hermitian(tangents[0]))
    inner = one(SOLVE, (OPERAND, OPERAND, True, False), adjoint(factor), inner)
    return [ops.matmul(factor, ops.tril(inner, k=-1) + diagonal_matrices(_real_diagonals(inner) * 0.5)), None]


def _hermitian(x: Array) -> Array:
    return (x + adjoint(x)) * 0.5


def _real_diagonals(x: Array) -> Array:
    """Return the real parts of diagonals, in the dtype of the matrices."""
    found = diagonals(x)
    return cast(ops.real(found), x.aval.dtype) if x.aval.complex else found


def _eigh_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    """Return the cotangent of Hermitian matrices, whose halves count alike."""
    of_values, of_vectors = cts
    values, vectors = call_aten(EIGH, args, operands)
    if of_vectors is None:
        return [conjugate(ops.matmul(vectors * ops.expand_dims(of_values, -2), adjoint(vectors)))]
    turned = ops.matmul(adjoint(vectors), conjugate(of_vectors))
    # vectors of length 1 rotate, and keep their length
    turned = (turned - adjoint(turned)) * 0.5 / gaps(values)
    diagonal = 0 if of_values is None else cast(ops.expand_dims(of_values, -1), turned.aval.dtype)
    inner = ops.where(on_diagonal(turned), diagonal, turned)
    return [conjugate(ops.matmul(vectors, ops.matmul(inner, adjoint(vectors))))]


def _eigh_tangent(
    tangents: Sequence[Array | None], operands: Sequence[Array], out: Array, overload: str, args: tuple[Any, ...]
) -> list[Array | None] | None:
    if tangents[0] is None:
        return None
    values, vectors = call_aten(EIGH, args, operands)
    inner = ops.matmul(adjoint(vectors), ops.matmul(_hermitian(tangents[0]), vectors))
    turned = ops.where(on_diagonal(inner), 0, inner / gaps(values))
    return [real_part(diagonals(inner)), ops.matmul(vectors, turned)]


def _svd_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    """Return the cotangent of matrices with distinct singular values."""
    of_left, of_values, of_right = (None if ct is None else conjugate(ct) for ct in cts)
    (x,) = operands
    if x.shape[-2] != x.shape[-1] and args != (OPERAND,) and not (of_left is None and of_right is None):
        return None
    left, values, right = call_aten(SVD, (OPERAND,), operands)
    columns, rows = ops.expand_dims(values, -2), ops.expand_dims(values, -1)
    if of_left is None and of_right is None:
        return [conjugate(ops.matmul(left * ops.expand_dims(of_values, -2), right))]
    distances, diagonal = gaps(values * values), on_diagonal(ops.expand_dims(values, -2))
    parts = [] if of_values is None else [cast(diagonal_matrices(of_values), x.aval.dtype)]
    if of_left is not None:
        turned = ops.matmul(adjoint(left), of_left)
        part = (turned - adjoint(turned)) / distances * columns
        parts.append(ops.where(diagonal, turning(turned) / (2 * rows), part) if x.aval.complex else part)
    if of_right is not None:
        turned = ops.matmul(right, adjoint(of_right))
        part = rows * ((turned - adjoint(turned)) / distances)
        parts.append(ops.where(diagonal, -turning(turned) / (2 * rows), part) if x.aval.complex else part)
    found = ops.matmul(left, ops.matmul(functools.reduce(ops.add, parts), right))
    if of_left is not None and x.shape[-2] > x.shape[-1]:  # the part outside of the vectors' space
        beyond = of_left / columns
        found = found + ops.matmul(beyond - ops.matmul(left, ops.matmul(adjoint(left), beyond)), right)
    if of_right is not None and x.shape[-1] > x.shape[-2]:
        beyond = of_right / rows
        found = found + ops.matmul(left, beyond - ops.matmul(ops.matmul(beyond, adjoint(right)), right))
    return [conjugate(found)]


def _svd_tangent(
    tangents: Sequence[Array | None], operands: Sequence[Array], out: Array, overload: str, args: tuple[Any, ...]
) -> list[Array | None] | None:
    (x,), (change,) = operands, tangents
    if change is None or (x.shape[-2] != x.shape[-1] and args != (OPERAND,)):
        return None
    left, values, right = call_aten(SVD, (OPERAND,), operands)
    columns, rows = ops.expand_dims(values, -2), ops.expand_dims(values, -1)
    inner = ops.matmul(adjoint(left), ops.matmul(change, adjoint(right)))
    back, distances = adjoint(inner), gaps(values * values)
    diagonal = on_diagonal(inner)
    of_left = ops.where(diagonal, 0, (inner * columns + rows * back) / distances)
    of_right = ops.where(diagonal, 0, (rows * inner + back * columns) / distances)
    if x.aval.complex:  # the part that rotates both vectors of a value alike is free
        apart = diagonal_matrices(turning(diagonals(inner)) / (2 * values))
        of_left, of_right = of_left + apart, of_right - apart
    left_change, right_change = ops.matmul(left, of_left), ops.matmul(adjoint(right), of_right)
    if x.shape[-2] > x.shape[-1]:
        left_change = left_change + (ops.matmul(change, adjoint(right)) - ops.matmul(left, inner)) / columns
    if x.shape[-1] > x.shape[-2]:
        right_change = right_change + (ops.matmul(adjoint(change), left) - ops.matmul(adjoint(right), back)) / columns
    return [left_change, real_part(diagonals(inner)), adjoint(right_change)]


def _rotation(inner: Array) -> Array:
    """Return the rotation of Q for dA = Q @ inner @ R with square inner; it keeps R upper triangular."""
    below = ops.tril(inner, k=-1)
    found = below - adjoint(below)
    return found + diagonal_matrices(turning(diagonals(inner))) if inner.aval.complex else found


def _qr_tangent(
    tangents: Sequence[Array | None], operands: Sequence[Array], out: Array, overload: str, args: tuple[Any, ...]
) -> list[Array | None] | None:
    if args != (OPERAND,) or tangents[0] is None:
        return None
    change, k = tangents[0], min(operands[0].shape[-2:])
    q, r = call_aten(QR, args, operands)
    solved = one(SOLVE, (OPERAND, OPERAND, True, False), r[..., :, :k], change[..., :, :k])
    inner = ops.matmul(adjoint(q), solved)
    turned = _rotation(inner)
    of_q = ops.matmul(q, turned)
    if q.shape[-2] > k:
        of_q = of_q + solved - ops.matmul(q, inner)
    return [of_q, ops.triu(ops.matmul(adjoint(q), change) - ops.matmul(turned, r))]


def _qr_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    """Return the cotangent of matrices: the transpose of `_qr_tangent`."""
    if args != (OPERAND,):
        return None
    of_q, of_r = (None if ct is None else conjugate(ct) for ct in cts)
    q, r = call_aten(QR, args, operands)
    k = q.shape[-1]
    parts = [] if of_q is None else [ops.matmul(adjoint(q), of_q)]
    of_r = None if of_r is None else ops.triu(of_r)
    parts += [] if of_r is None else [-ops.matmul(of_r, adjoint(r))]
    turned = functools.reduce(ops.add, parts)
    inner = ops.tril(turned - adjoint(turned), k=-1)
    if inner.aval.complex:
        inner = inner + diagonal_matrices(turning(diagonals(turned)))
    found = ops.matmul(q, inner)
    if of_q is not None and q.shape[-2] > k:
        found = found + of_q - ops.matmul(q, ops.matmul(adjoint(q), of_q))
    found = one(SOLVE, (OPERAND, OPERAND, False, False), adjoint(r[..., :, :k]), found)
    if r.shape[-1] > k:
        rest = ops.zeros((*found.shape[:-1], r.shape[-1] - k), found.aval.dtype, device=found.aval.device)
        found = ops.concat([found, rest], -1)
    return [conjugate(found if of_r is None else found + ops.matmul(q, of_r))]


def _type_of_cholesky(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    (x,) = avals
    if args != (OPERAND,) or not square(x):
        return None
    return bundle((x, aval(x.shape[:-2], torch.int32, x.device)))


def _type_of_eigh(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    (x,) = avals
    if len(args) > 2 or not square(x):
        return None
    return bundle((retyped(x, x.shape[:-1]), x))


def _type_of_qr(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    (x,) = avals
    if args != (OPERAND,) or x.dtype not in REAL or len(x.shape) < 2:
        return None
    *batch, rows, columns = x.shape
    inner = min(rows, columns)
    return bundle((aval((*batch, rows, inner), x.dtype, x.device), aval((*batch, inner, columns), x.dtype, x.device)))


def _type_of_svd(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    (x,) = avals
    if args not in ((OPERAND,), (OPERAND, True)) or x.dtype not in REAL or len(x.shape) < 2:
        return None
    *batch, rows, columns = x.shape
    inner = min(rows, columns)
    shapes = (rows, inner), (inner,), (inner, columns)
    if len(args) > 1:
        shapes = (rows, rows), (inner,), (columns, columns)
    left, values, right = ((*batch, *shape) for shape in shapes)
    return bundle((aval(left, x.dtype, x.device), retyped(x, values), aval(right, x.dtype, x.device)))


TYPES = {CHOLESKY: _type_of_cholesky, EIGH: _type_of_eigh, QR: _type_of_qr, SVD: _type_of_svd}
PULLBACKS = {CHOLESKY: _cholesky_pullback, EIGH: _eigh_pullback, QR: _qr_pullback, SVD: _svd_pullback}
TANGENTS: dict[str, Tangent] = {
    CHOLESKY: _cholesky_tangent, EIGH: _eigh_tangent, QR: _qr_tangent, SVD: _svd_tangent,
}  # fmt: skip
BATCHES = dict.fromkeys(TYPES, of_batch)
