"""Linear algebra under the names of jax.lax.linalg, which differ from NumPy's in their parameters."""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.errors import ShapeError, message
from gtrace.core.ops.declare import Array, lift
from gtrace.core.ops.operands import counted, promote_arrays
from gtrace.core.transform.control.scan import scan
from gtrace.interop.torch_functions import call_torch
from gtrace.numpy import linalg
from gtrace.numpy.linalg.solving import permuted

__all__ = [
    "cholesky", "cholesky_update", "eig", "eigh", "householder_product", "lu", "lu_pivots_to_permutation", "ormqr",
    "qr", "svd", "symmetric_product", "triangular_solve", "tridiagonal_solve",
]  # fmt: skip

cholesky = linalg.cholesky


def eigh(x: Any, *, lower: bool = True, subset_by_index: tuple[int, int] | None = None) -> tuple[Array, Array]:
    """Return the eigenvectors of Hermitian matrices, in columns, and the eigenvalues in ascending order.

    Args:
        subset_by_index: the range of the returned eigenvalues in that order.
    """
    values, vectors = linalg.eigh(x, "L" if lower else "U")
    if subset_by_index is None:
        return vectors, values
    wanted = slice(*subset_by_index)
    return vectors[..., wanted], values[..., wanted]


def eig(x: Any, *, compute_left_eigenvectors: bool = True, compute_right_eigenvectors: bool = True) -> list[Array]:
    """Return the eigenvalues of matrices, then the left and the right eigenvectors, in columns of length 1.

    A left eigenvector u has ``conj(u) @ x == w * conj(u)``. They are computed as the inverse of the right ones.

    >>> from gtrace.lax.linalg import eig
    >>> eig(gt.array([[2., 0.], [0., 3.]]), compute_left_eigenvectors=False)[0]
    Array([2.+0.j, 3.+0.j], dtype=complex64)
    """
    values, right = linalg.eig(x)
    out = [values]
    if compute_left_eigenvectors:
        left = ops.conj(ops.matrix_transpose(linalg.inv(right)))
        out.append(left / linalg.vector_norm(left, axis=-2, keepdims=True))
    return [*out, right] if compute_right_eigenvectors else out


def householder_product(a: Any, taus: Any) -> Array:
    """Return the product of Householder reflections ``I - tau * v @ conj(v.T)``; v is a column of a below its one.

    Args:
        a: array (..., m, n), as LAPACK's geqrf returns.
        taus: array (..., k) with k <= n.

    >>> from gtrace.lax.linalg import householder_product
    >>> abs(householder_product(gt.array([[1., 0.], [0., 1.]]), gt.array([2., 0.])))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    x, factors = promote_arrays("householder_product", a, taus, floating=True)
    return call_torch("householder_product", torch.linalg.householder_product, x, factors)


def ormqr(a: Any, taus: Any, c: Any, *, left: bool = True, transpose: bool = False) -> Array:
    """Return the product of c with that of Householder reflections; see `householder_product`.

    Args:
        left: multiply c from the left.
        transpose: take the conjugate transpose of the reflections.
    """
    x, factors, y = promote_arrays("ormqr", a, taus, c, floating=True)
    m = x.shape[-2]
    square = ops.concat([x, ops.zeros((*x.shape[:-1], m - x.shape[-1]), x.aval.dtype, device=x.aval.device)], -1)
    q = householder_product(square, factors)
    q = ops.conj(ops.matrix_transpose(q)) if transpose else q
    return ops.matmul(q, y) if left else ops.matmul(y, q)


def cholesky_update(r_matrix: Any, w_vector: Any) -> Array:
    """Return the upper Cholesky factor of ``r.T @ r + outer(w, w)``.

    >>> from gtrace.lax.linalg import cholesky_update
    >>> cholesky_update(gt.array([[2., 0.], [0., 1.]]), gt.array([0., 0.]))
    Array([[2., 0.],
           [0., 1.]], dtype=float32)
    """
    r, w = promote_arrays("cholesky_update", r_matrix, w_vector, floating=True)
    column = ops.expand_dims(w, -1)
    return linalg.cholesky(ops.matrix_transpose(r) @ r + column * ops.matrix_transpose(column), upper=True)


def symmetric_product(
    a_matrix: Any, c_matrix: Any, *, alpha: float = 1.0, beta: float = 0.0, symmetrize_output: bool = False
) -> Array:
    """Return ``alpha * a @ a.T + beta * c``; with `symmetrize_output`, its lower half and the reflection of that.

    >>> from gtrace.lax.linalg import symmetric_product
    >>> symmetric_product(gt.array([[1.], [2.]]), gt.eye(2), beta=1.0)
    Array([[2., 2.],
           [2., 5.]], dtype=float32)
    """
    a, c = promote_arrays("symmetric_product", a_matrix, c_matrix, floating=True)
    out = a @ ops.matrix_transpose(a) * alpha + ops.multiply(c, beta)
    return ops.tril(out) + ops.matrix_transpose(ops.tril(out, -1)) if symmetrize_output else out


def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any) -> Array:
    """Return x with a @ x == b, for tridiagonal matrices a, by elimination.

    Neighbouring rows are exchanged where the lower one has the larger pivot, as in LAPACK's gtsv.

    Args:
        dl, d, du: arrays (..., m): the elements below, on and above the diagonal; ``dl[..., 0]`` and ``du[..., -1]``
            are ignored.
        b: array (..., m, n).

    Raises:
        ShapeError: the shapes do not fit.

    >>> from gtrace.lax.linalg import tridiagonal_solve
    >>> one = gt.ones(2)
    >>> tridiagonal_solve(one, 2 * one, one, gt.array([[3.], [3.]]))
    Array([[1.],
           [1.]], dtype=float32)
    """
    low, middle, high, right = promote_arrays("tridiagonal_solve", dl, d, du, b, floating=True)
    if not low.shape == middle.shape == high.shape == right.shape[:-1] or not middle.ndim:
        got = ", ".join(repr(x.aval) for x in (low, middle, high, right))
        raise ShapeError(message("tridiagonal_solve", "diagonals (..., m) and b (..., m, n)", got, "Check the shapes."))
    rows = [ops.moveaxis(ops.expand_dims(x, -1), -2, 0) for x in (low, middle, high)]
    rows.append(ops.moveaxis(right, -2, 0))
    nothing, none = ops.multiply(rows[1][0], 0), ops.multiply(rows[3][0], 0)

    def eliminate(above: tuple[Array, Array, Array], row: Any) -> Any:
        first, second, value = above  # a row with an element in this column and in the next
        low, middle, high, right = row
        exchange = ops.absolute(low) > ops.absolute(first)
        pivot = ops.where(exchange, low, first)
        factor = ops.where(exchange, first, low) / pivot
        kept = (
            pivot, ops.where(exchange, middle, second), ops.where(exchange, high, 0), ops.where(exchange, right, value),
        )  # fmt: skip
        below = (
            ops.where(exchange, second, middle) - factor * kept[1],
            ops.where(exchange, 0, high) - factor * kept[2],
            ops.where(exchange, value, right) - factor * kept[3],
        )
        return below, kept

    def substitute(below: tuple[Array, Array], row: Any) -> Any:
        pivot, second, third, value = row
        known = ops.multiply(second, below[0]) + ops.multiply(third, below[1])
        x = (value - known) / pivot
        return (x, below[0]), x

    rows[2] = rows[2].at[-1].set(0)
    last, kept = scan(eliminate, (rows[1][0], rows[2][0], rows[3][0]), tuple(row[1:] for row in rows))
    end, _ = substitute((none, none), (last[0], nothing, nothing, last[2]))
    _, found = scan(substitute, end, kept, reverse=True)
    return ops.moveaxis(ops.concat([found, end[0][None]]), 0, -2)


def lu(x: Any) -> tuple[Array, Array, Array]:
    """Return both triangular factors in one matrix, the row exchanges, and the resulting order of the rows."""
    factors, pivots = linalg.lu_factor(x)
    return factors, pivots, lu_pivots_to_permutation(pivots, factors.shape[-2])


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Array:
    """Return the order of the rows after the exchanges of `lu`."""
    return counted(permuted(lift("lu_pivots_to_permutation", pivots), permutation_size))


def qr(x: Any, *, full_matrices: bool = True) -> tuple[Array, Array]:
    """Return matrices as orthonormal times upper triangular ones."""
    q, r = linalg.qr(x, mode="complete" if full_matrices else "reduced")
    return q, r


def svd(
    x: Any, *, full_matrices: bool = True, compute_uv: bool = True, subset_by_index: tuple[int, int] | None = None
) -> Any:
    """Return the singular value decomposition (U, s, Vh), or s alone.

    Args:
        subset_by_index: the range of the returned singular values, in descending order; not with `full_matrices`.
    """
    wanted = slice(None) if subset_by_index is None else slice(*subset_by_index)
    if not compute_uv:
        return linalg.svd(x, compute_uv=False)[..., wanted]
    u, s, vh = linalg.svd(x, full_matrices and subset_by_index is None)
    return u[..., wanted], s[..., wanted], vh[..., wanted, :]


def triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Array:
    """Return x with x @ a == b, or with `left_side` a @ x == b, for triangular matrices a.

    >>> from gtrace.lax.linalg import triangular_solve
    >>> triangular_solve(gt.array([[2., 0.], [1., 1.]]), gt.array([[2.], [3.]]), left_side=True, lower=True)
    Array([[1.],
           [2.]], dtype=float32)
    """
    x, y = lift("triangular_solve", a), lift("triangular_solve", b)
    if conjugate_a and x.aval.complex:
        x = ops.conj(x)
    if not left_side:
        x, lower, y = ops.matrix_transpose(x), not lower, ops.matrix_transpose(y)
    found = linalg.solve_triangular(x, y, trans=int(transpose_a), lower=lower, unit_diagonal=unit_diagonal)
    return found if left_side else ops.matrix_transpose(found)
