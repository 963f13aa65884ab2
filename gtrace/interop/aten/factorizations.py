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

from gtrace.core import ops
from gtrace.core.ops.operands import cast
from gtrace.core.trace.array import Array
from gtrace.interop.aten.linear_systems import SOLVE, SVD
from gtrace.interop.aten.matrix_common import (
    adjoint,
    called,
    conjugate,
    diagonal_matrices,
    diagonals,
    gaps,
    of_batch,
    on_diagonal,
    one,
    turning,
)
from gtrace.interop.aten.overloads import OPERAND
from gtrace.interop.aten.translate import call_aten

CHOLESKY = "aten.linalg_cholesky_ex.default"
EIGH = "aten._linalg_eigh.default"
QR = "aten.linalg_qr.default"


def cholesky(x: Array) -> Array | None:
    """Return lower Cholesky factors, with NaN in their lower halves where that failed; None: no rule applies."""
    found = called(CHOLESKY, (OPERAND,), x)
    if found is None:
        return None
    factor, failed = found
    none = ops.tril(ops.full(factor.shape[-2:], math.nan, dtype=factor.aval.dtype, device=factor.aval.device))
    return ops.where(ops.expand_dims(ops.expand_dims(failed == 0, -1), -1), factor, none)


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


def _qr_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    """Return the cotangent of matrices."""
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


PULLBACKS = {CHOLESKY: _cholesky_pullback, EIGH: _eigh_pullback, QR: _qr_pullback, SVD: _svd_pullback}
BATCHES = dict.fromkeys(PULLBACKS, of_batch)
