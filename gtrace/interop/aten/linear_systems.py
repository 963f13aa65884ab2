"""Linear systems, inverses, determinants and triangular factors without tracing; see `handwritten_layers`.

Formulas: M. Giles, Collected matrix derivative results for forward and reverse mode algorithmic differentiation, 2008.
The rules of LU factors follow those of M. Seeger et al., Auto-differentiating linear algebra, 2017, for other factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.ir.aval import Aval, Bundle, aval, bundle
from gtrace.core.ops.operands import cast
from gtrace.core.trace.array import Array
from gtrace.interop.aten.matrix_common import (
    REAL,
    adjoint,
    called,
    diagonal_matrices,
    diagonals,
    of_batch,
    on_diagonal,
    one,
    scaled,
    turning,
    unbroadcast,
)
from gtrace.interop.aten.overloads import OPERAND
from gtrace.interop.aten.translate import call_aten

SOLVE = "aten.linalg_solve_triangular.default"
GENERAL_SOLVE = "aten._linalg_solve_ex.default"
INVERSE = "aten.linalg_inv_ex.default"
DET = "aten._linalg_det.default"
SLOGDET = "aten._linalg_slogdet.default"
LU = "aten.linalg_lu_factor_ex.default"
UNPACK = "aten.lu_unpack.default"
SVD = "aten._linalg_svd.default"

_BOTH = OPERAND, OPERAND


def solve_triangular(a: Array, b: Array, upper: bool, unit_diagonal: bool = False) -> Array | None:
    """Return x with a @ x == b for triangular matrices; None: no rule applies."""
    found: Array | None = called(SOLVE, (*_BOTH, upper, *((True, True) if unit_diagonal else ())), a, b)
    return found


def solve(a: Array, b: Array) -> Array | None:
    """Return x with a @ x == b for matrices with equal leading axes; None: no rule applies."""
    found = called(GENERAL_SOLVE, _BOTH, a, b)
    return None if found is None else found[0]


def inverse(x: Array) -> Array | None:
    """Return inverses of matrices; None: no rule applies."""
    found = called(INVERSE, (OPERAND,), x)
    return None if found is None else found[0]


def det(x: Array) -> Array | None:
    """Return determinants; None: no rule applies."""
    found = called(DET, (OPERAND,), x)
    return None if found is None else found[0]


def slogdet(x: Array) -> Sequence[Array] | None:
    """Return signs and logarithms of determinants; None: no rule applies."""
    found = called(SLOGDET, (OPERAND,), x)
    return None if found is None else found[:2]


def lu_factor(x: Array) -> Sequence[Array] | None:
    """Return both triangular factors in one matrix, and row exchanges counted from 1; None: no rule applies."""
    found = called(LU, (OPERAND,), x)
    return None if found is None else found[:2]


def permutations(factors: Array, pivots: Array) -> Array:
    """Return the matrices that undo the row exchanges of `lu_factor`."""
    return one(UNPACK, (*_BOTH, False), ops.stop_gradient(factors), pivots)


def lu(x: Array) -> tuple[Array, Array, Array] | None:
    """Return permutations, unit lower triangular factors, and upper triangular ones; None: no rule applies."""
    found = lu_factor(x)
    if found is None:
        return None
    lower, upper = _factors(found[0])
    return permutations(*found), lower, upper


def order_of_rows(pivots: Array, rows: int) -> Array:
    """Return the order of so many rows after these exchanges, which count from 1."""
    *batch, n = pivots.shape
    shape = ops.ones((*batch, rows, n), torch.float32, device=pivots.aval.device)
    numbers = ops.expand_dims(ops.arange(rows, device=pivots.aval.device), -1)
    return ops.sum(ops.where(permutations(shape, pivots) > 0, numbers, 0), axis=-2)


def _factors(both: Array) -> tuple[Array, Array]:
    inner = min(both.shape[-2:])
    lower = ops.tril(both[..., :, :inner], -1)
    rows, columns = lower.shape[-2:]
    diagonal = ops.eye(rows, columns, dtype=both.aval.dtype, device=both.aval.device)
    return lower + diagonal, ops.triu(both[..., :inner, :])


# -- systems


def _options(args: tuple[Any, ...]) -> tuple[bool, bool, bool]:
    """Return whether matrices are upper triangular, stand on the left, and have an implicit diagonal of ones."""
    given = dict(enumerate(args[2:]))
    return given[0], given.get(1, True), given.get(2, False)


def _read_half(x: Array, upper: bool, unit: bool) -> Array:
    return ops.triu(x, int(unit)) if upper else ops.tril(x, -int(unit))


def _solve_pullback(
    ct: Array, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    a, b = operands
    upper, left, unit = _options(args)
    of_b = one(SOLVE, (*_BOTH, not upper, left, unit), ops.matrix_transpose(a), ct)
    right = unbroadcast(of_b, b.shape) if needed[1] else None
    if not needed[0]:
        return [None, right]
    x = ops.matrix_transpose(one(SOLVE, args, a, b))
    product = -(ops.matmul(of_b, x) if left else ops.matmul(x, of_b))
    return [unbroadcast(_read_half(product, upper, unit), a.shape), right]


def _general_solve_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    a, b = operands
    if args != _BOTH or a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2]:
        return None
    right = one(GENERAL_SOLVE, args, ops.matrix_transpose(a), cts[0])
    if not needed[0]:
        return [None, right]
    x = one(GENERAL_SOLVE, args, a, b)
    return [-ops.matmul(right, ops.matrix_transpose(x)), right if needed[1] else None]


def _inverse_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    transposed = ops.matrix_transpose(one(INVERSE, args, *operands))
    return [-ops.matmul(transposed, ops.matmul(cts[0], transposed))]


# -- determinants


def _adjugate(x: Array) -> Array:
    """Return det(x) * inv(x), which exists for singular matrices too, with its derivatives.

    For fixed unitary u and v, adj(x) is v @ adj(b) @ u.H times a number of modulus 1, with b = u.H @ x @ v. The
    singular value decomposition makes b diagonal. Write b = [[p, q], [r, s]], with the two least singular values in s,
    and y = s - r @ inv(p) @ q. Then det(b) is det(p) * det(y); see R. Horn and C. Johnson, Matrix Analysis, 0.8.5. If p
    is singular too, det(b) and the cofactors are 0, and small numbers replace the zeros of p.
    """
    n, dtype, device = x.shape[-1], x.aval.dtype, x.aval.device
    if n == 1:
        return ops.ones(x.shape, dtype, device=device)
    if n == 2:
        return _adjugate_of_two(x)
    # decomposing matrices with NaN is an error; their determinant is NaN
    finite = ops.all(ops.isfinite(x), axis=(-2, -1), keepdims=True)
    parts = call_aten(SVD, (OPERAND,), [ops.where(finite, ops.stop_gradient(x), on_diagonal(x))])
    left, values, right = (ops.stop_gradient(part) for part in parts)
    back, front = adjoint(left), adjoint(right)
    modulus = ops.stop_gradient(one(DET, (OPERAND,), ops.matmul(left, right)))
    b = ops.matmul(back, ops.matmul(x, front))
    # rounding would give other numbers than the singular values
    b = cast(diagonal_matrices(values), dtype) + (b - ops.stop_gradient(b))
    k = n - 2
    p, q, r, s = b[..., :k, :k], b[..., :k, k:], b[..., k:, :k], b[..., k:, k:]
    step = torch.finfo(values.aval.dtype).eps
    largest = ops.where(values[..., :1] > 0, values[..., :1], 1)
    small = ops.where(values[..., :k] <= largest * step**2, largest * step, 0)
    p = p + cast(diagonal_matrices(small), dtype)
    inverse = one(INVERSE, (OPERAND,), p)
    column, row = ops.matmul(inverse, q), ops.matmul(r, inverse)
    y = s - ops.matmul(r, column)
    outer = _adjugate_of_two(y)
    of_y = y[..., 0, 0] * y[..., 1, 1] - y[..., 0, 1] * y[..., 1, 0]
    inner = scaled(of_y, inverse) + ops.matmul(column, ops.matmul(outer, row))
    whole = ops.concat([
        ops.concat([inner, -ops.matmul(column, outer)], -1),
        ops.concat([-ops.matmul(outer, row), outer], -1),
    ], -2)  # fmt: skip
    return scaled(modulus * one(DET, (OPERAND,), p), ops.matmul(front, ops.matmul(whole, back)))


def _adjugate_of_two(x: Array) -> Array:
    """Return det(x) * inv(x) for matrices with two rows."""
    trace = ops.sum(diagonals(x), axis=-1, keepdims=True)
    return diagonal_matrices(ops.broadcast_to(trace, x.shape[:-1])) - x


def _det_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    return [None if cts[0] is None else scaled(cts[0], ops.matrix_transpose(_adjugate(operands[0])))]


def _slogdet_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    """Return the cotangent of matrices. For real ones, the sign is constant."""
    (x,) = operands
    of_sign, of_logarithm, *_ = cts
    parts = [] if of_logarithm is None else [cast(of_logarithm, x.aval.dtype)]
    if x.aval.complex and of_sign is not None:
        parts.append(turning(of_sign * one(SLOGDET, args, x)))
    if not parts:
        return [None]
    scale = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    right = ops.where(on_diagonal(x), ops.expand_dims(ops.expand_dims(scale, -1), -1), 0)
    return [one(GENERAL_SOLVE, _BOTH, ops.matrix_transpose(x), right)]


# -- triangular factors


def _lu_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    """Return the cotangent of matrices.

    Let F = inv(L) @ P.T @ dA @ inv(U) for the square part. Then dL = L @ tril(F, -1) and dU = triu(F) @ U. The rest
    follows from A = P @ L @ U. The cotangent is the transpose of this linear function.
    """
    if args != (OPERAND,) or cts[0] is None:
        return None if cts[0] is not None else [None]
    both, pivots, _ = call_aten(LU, args, operands)
    k = min(both.shape[-2:])
    lower, upper = _factors(both)
    low, high = (ops.matrix_transpose(part) for part in (lower[..., :k, :], upper[..., :, :k]))
    ct = cts[0][..., :k, :k]
    inner = ops.tril(ops.matmul(low, ops.tril(ct, -1)), -1) + ops.triu(ops.matmul(ops.triu(ct), high))
    rest = None
    if both.shape[-2] > k:
        beyond = cts[0][..., k:, :]
        rest = one(SOLVE, (*_BOTH, False, False), high, beyond)
        inner = inner - ops.triu(ops.matmul(ops.matrix_transpose(lower[..., k:, :]), beyond))
    elif both.shape[-1] > k:
        beyond = cts[0][..., :, k:]
        rest = one(SOLVE, (*_BOTH, True, True, True), low, beyond)
        inner = inner - ops.tril(ops.matmul(beyond, ops.matrix_transpose(upper[..., :, k:])), -1)
    corner = one(SOLVE, (*_BOTH, False, False), high, one(SOLVE, (*_BOTH, True, True, True), low, inner))
    if rest is not None:
        corner = ops.concat([corner, rest], -2 if both.shape[-2] > k else -1)
    return [ops.matmul(permutations(both, pivots), corner)]


# -- types, where torch refuses zeros as operands


def _type_of_permutations(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    """Return the types of permutations and of unrequested factors; None: no rule applies."""
    x, pivots = avals
    if args != (*_BOTH, False) or x.dtype not in REAL or pivots.shape != (*x.shape[:-2], min(x.shape[-2:])):
        return None
    nothing = aval((0,), x.dtype, x.device)
    return bundle((aval((*x.shape[:-1], x.shape[-2]), x.dtype, x.device), nothing, nothing))


# -- batches


def _triangular_batch(overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]) -> Any:
    """Record triangular systems for a batch; torch broadcasts the leading axes."""
    if any(x.aval.dtype not in REAL or not x.size for x in operands):
        return None
    ndim = max(x.ndim - flag for x, flag in zip(operands, batched, strict=True))
    aligned = [
        ops.expand_dims(x, tuple(range(1, 1 + ndim - (x.ndim - 1)))) if flag and x.ndim - 1 < ndim else x
        for x, flag in zip(operands, batched, strict=True)
    ]
    return call_aten(overload, args, aligned)


def _unpack_batch(overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]) -> Any:
    if any(not x.size for x in operands):
        return None
    count = operands[batched.index(True)].shape[0]
    whole = [x if flag else ops.broadcast_to(x, (count, *x.shape)) for x, flag in zip(operands, batched, strict=True)]
    # an unrequested result is empty
    return [(x, bool(x.size)) for x in call_aten(overload, args, whole)]


TYPES = {UNPACK: _type_of_permutations}
PULLBACKS = {
    SOLVE: _solve_pullback, GENERAL_SOLVE: _general_solve_pullback, INVERSE: _inverse_pullback, DET: _det_pullback,
    SLOGDET: _slogdet_pullback, LU: _lu_pullback,
}  # fmt: skip
BATCHES = {
    **dict.fromkeys((GENERAL_SOLVE, INVERSE, DET, SLOGDET, LU), of_batch),
    SOLVE: _triangular_batch,
    UNPACK: _unpack_batch,
}
