"""Matrix exponentials, pseudo-inverses and eigenvalues without tracing; see `handwritten_layers`.

Formulas: for exponentials, I. Najfeld and T. Havel, Derivatives of the matrix exponential and their computation, 1995;
for pseudo-inverses, G. Golub and V. Pereyra, The differentiation of pseudo-inverses and nonlinear least squares
problems whose variables separate, 1973; for eigenvalues, C. Boeddeker et al., On the computation of complex-valued
gradients with application to statistically optimum beamforming, 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import full_like_scalar
from gtrace.core.trace.array import Array
from gtrace.interop.aten.handwritten_layers import Tangent
from gtrace.interop.aten.linear_systems import GENERAL_SOLVE
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
)
from gtrace.interop.aten.overloads import OPERAND
from gtrace.interop.aten.translate import call_aten

EXPM = "aten.linalg_matrix_exp.default"
PINV = "aten.linalg_pinv.atol_rtol_tensor"
EIG = "aten.linalg_eig.default"


def expm(x: Array) -> Array | None:
    """Return matrix exponentials; None: no rule applies."""
    found: Array | None = called(EXPM, (OPERAND,), x)
    return found


def eig(x: Array) -> Sequence[Array] | None:
    """Return eigenvalues and eigenvectors; None: no rule applies."""
    found: Sequence[Array] | None = called(EIG, (OPERAND,), x)
    return found


def pinv(x: Array, bound: float | None, hermitian: bool) -> Array | None:
    """Return pseudo-inverses; None: no rule applies.

    Args:
        bound: singular values up to this fraction of the largest count as zero.
    """
    if hermitian and x.shape[-1] != x.shape[-2]:
        return None
    last = (True,) if hermitian else ()
    if bound is None:
        found: Array | None = called(PINV, (OPERAND, None, None, *last) if hermitian else (OPERAND,), x)
        return found
    if x.aval.dtype not in REAL or not x.size:
        return None
    bounds = [full_like_scalar(float(n), torch.float64, (), x.aval.device) for n in (0.0, bound)]
    return one(PINV, (OPERAND, OPERAND, OPERAND, *last), x, *bounds)


# -- exponentials


def _direction(x: Array, change: Array) -> Array:
    """Return the derivative of exponentials in a direction: a block of the exponential of [[x, change], [0, x]]."""
    n = x.shape[-1]
    nothing = ops.zeros(x.shape, x.aval.dtype, device=x.aval.device)
    whole = ops.concat([ops.concat([x, change], -1), ops.concat([nothing, x], -1)], -2)
    return one(EXPM, (OPERAND,), whole)[..., :n, n:]


def _expm_pullback(
    ct: Array, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    return [_direction(ops.matrix_transpose(operands[0]), ct)]


def _expm_tangent(
    tangents: Sequence[Array | None], operands: Sequence[Array], out: Array, overload: str, args: tuple[Any, ...]
) -> Array | None:
    return None if tangents[0] is None else _direction(operands[0], tangents[0])


# -- pseudo-inverses


def _residuals(x: Array, inverse: Array) -> tuple[Array, Array]:
    """Return the projections onto the complements of the row spaces of pseudo-inverses and of matrices."""
    return _identity(x, -2) - ops.matmul(x, inverse), _identity(x, -1) - ops.matmul(inverse, x)


def _identity(x: Array, axis: int) -> Array:
    """Return the identity matrix of the size of an axis."""
    n = x.shape[axis]
    return diagonal_matrices(full_like_scalar(1, x.aval.dtype, (n,), x.aval.device))


def _pinv_pullback(
    ct: Array, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    """Return the cotangent of matrices of constant rank."""
    x, ct = operands[0], conjugate(ct)
    inverse = one(PINV, args, *operands)
    left, right = _residuals(x, inverse)
    back, turned = adjoint(inverse), adjoint(ct)
    found = ops.matmul(left, ops.matmul(turned, ops.matmul(inverse, back))) - ops.matmul(back, ops.matmul(ct, back))
    found = found + ops.matmul(back, ops.matmul(inverse, ops.matmul(turned, right)))
    return [conjugate(found), *(None for _ in operands[1:])]


def _pinv_batch(overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]) -> Any:
    x, *bounds = operands
    if x.aval.dtype not in REAL or not x.size:
        return None
    if not batched[0]:
        x = ops.broadcast_to(x, (operands[batched.index(True)].shape[0], *x.shape))
    # bounds broadcast to the leading axes
    aligned = [
        ops.reshape(n, (n.shape[0], *(1 for _ in range(x.ndim - 2 - n.ndim)), *n.shape[1:])) if flag else n
        for n, flag in zip(bounds, batched[1:], strict=True)
    ]
    return call_aten(overload, args, [x, *aligned])


# -- eigenvalues


def _solved(a: Array, b: Array) -> Array:
    return one(GENERAL_SOLVE, (OPERAND, OPERAND), a, b)


def _eig_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    """Return the cotangent of matrices with distinct eigenvalues."""
    of_values, of_vectors = cts
    values, vectors = call_aten(EIG, args, operands)
    transposed = ops.matrix_transpose(vectors)
    inner = None if of_values is None else diagonal_matrices(of_values)
    if of_vectors is not None:
        turned = ops.matmul(transposed, of_vectors)
        growth = cast(ops.real(diagonals(turned)), vectors.aval.dtype)
        turned = turned - ops.matmul(transposed, conjugate(vectors)) * ops.expand_dims(growth, -2)
        inner = ops.where(on_diagonal(turned), 0 if inner is None else inner, turned / gaps(values))
    found = _solved(transposed, ops.matmul(inner, transposed))
    return [found if operands[0].aval.complex else ops.real(found)]


PULLBACKS = {EXPM: _expm_pullback, PINV: _pinv_pullback, EIG: _eig_pullback}
TANGENTS: dict[str, Tangent] = {EXPM: _expm_tangent}
BATCHES = {EXPM: of_batch, PINV: _pinv_batch, EIG: of_batch}
