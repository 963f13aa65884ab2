"""Linear algebra under the names of jax.lax.linalg, which differ from NumPy's in their parameters."""

from __future__ import annotations

from typing import Any

from gtrace.numpy import linalg
from gtrace.numpy.linalg.solving import permuted
from gtrace.ops.components import conj
from gtrace.ops.promote import counted
from gtrace.ops.shape import matrix_transpose
from gtrace.trace.array import Array
from gtrace.trace.convert import lift

__all__ = ["cholesky", "eigh", "lu", "lu_pivots_to_permutation", "qr", "svd", "triangular_solve"]

cholesky = linalg.cholesky


def eigh(x: Any, *, lower: bool = True) -> tuple[Array, Array]:
    """Return the eigenvectors of Hermitian matrices, in columns, and the eigenvalues in ascending order."""
    values, vectors = linalg.eigh(x, "L" if lower else "U")
    return vectors, values


def lu(x: Any) -> tuple[Array, Array, Array]:
    """Return both triangular factors in one matrix, the exchanges of rows, and the order of the rows after them."""
    factors, pivots = linalg.lu_factor(x)
    return factors, pivots, lu_pivots_to_permutation(pivots, factors.shape[-2])


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Array:
    """Return the order of the rows after the exchanges that `lu` returns."""
    return counted(permuted(lift("lu_pivots_to_permutation", pivots)))


def qr(x: Any, *, full_matrices: bool = True) -> tuple[Array, Array]:
    """Return matrices as orthonormal times upper triangular ones."""
    q, r = linalg.qr(x, mode="complete" if full_matrices else "reduced")
    return q, r


def svd(x: Any, *, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Return the singular value decomposition (U, s, Vh), or s alone."""
    found = linalg.svd(x, full_matrices, compute_uv)
    return tuple(found) if compute_uv else found


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

    >>> import gtrace as gt
    >>> from gtrace.lax.linalg import triangular_solve
    >>> triangular_solve(gt.array([[2., 0.], [1., 1.]]), gt.array([[2.], [3.]]), left_side=True, lower=True)
    Array([[1.],
           [2.]], dtype=float32)
    """
    x, y = lift("triangular_solve", a), lift("triangular_solve", b)
    if conjugate_a and x.aval.complex:
        x = conj(x)
    if not left_side:
        x, lower, y = matrix_transpose(x), not lower, matrix_transpose(y)
    found = linalg.solve_triangular(x, y, trans=int(transpose_a), lower=lower, unit_diagonal=unit_diagonal)
    return found if left_side else matrix_transpose(found)
