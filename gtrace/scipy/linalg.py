"""Linear algebra with SciPy's names and defaults: upper Cholesky factors, complete QR, permuted LU."""

from __future__ import annotations

from typing import Any

import numpy

from gtrace.extend import ArgumentError, Array, ShapeError, message, ops, promote_arrays
from gtrace.numpy import atleast_1d, linalg
from gtrace.numpy.linalg.solving import permuted

__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "circulant", "det", "eigh", "expm", "hankel", "hilbert", "inv",
    "lu", "lu_factor", "lu_solve", "polar", "qr", "solve", "solve_triangular", "svd", "toeplitz",
]  # fmt: skip

det, expm, inv = linalg.det, linalg.expm, linalg.inv
lu_factor, solve_triangular = linalg.lu_factor, linalg.solve_triangular


def _adjoint(x: Array) -> Array:
    return ops.conj(ops.matrix_transpose(x)) if x.aval.complex else ops.matrix_transpose(x)


def cholesky(a: Any, lower: bool = False) -> Array:
    """Return the triangular factor of positive definite matrices: U with a == U.mT @ U, or with `lower` L.

    >>> from gtrace.scipy.linalg import cholesky
    >>> cholesky(gt.array([[4., 2.], [2., 5.]]))
    Array([[2., 1.],
           [0., 2.]], dtype=float32)
    """
    return linalg.cholesky(a, upper=not lower)


def cho_factor(a: Any, lower: bool = False) -> tuple[Array, bool]:
    """Return a Cholesky factor for `cho_solve`, with which half it is."""
    return cholesky(a, lower), lower


def cho_solve(c_and_lower: tuple[Any, bool], b: Any) -> Array:
    """Return x with a @ x == b, by the Cholesky factor of a.

    >>> from gtrace.scipy.linalg import cho_factor, cho_solve
    >>> cho_solve(cho_factor(gt.array([[4., 0.], [0., 1.]])), gt.array([8., 3.]))
    Array([2., 3.], dtype=float32)
    """
    factor, lower = ops.array(c_and_lower[0]), c_and_lower[1]
    back = _adjoint(factor)
    first, second = (factor, back) if lower else (back, factor)
    return linalg.solve_triangular(second, linalg.solve_triangular(first, b, lower=True), lower=False)


def lu(a: Any, permute_l: bool = False) -> tuple[Array, ...]:
    """Return a permutation, a lower and an upper triangular matrix whose product is a; with `permute_l` (P @ L, U)."""
    p, lower, upper = linalg.lu(a)
    return (ops.matmul(p, lower), upper) if permute_l else (p, lower, upper)


def lu_solve(lu_and_piv: tuple[Any, Any], b: Any, trans: int = 0) -> Array:
    """Return x with a @ x == b, by the result of `lu_factor`.

    Args:
        trans: 0: solve with a; 1: with its transpose; 2: with its conjugate transpose.

    >>> from gtrace.scipy.linalg import lu_factor, lu_solve
    >>> lu_solve(lu_factor(gt.array([[0., 2.], [1., 0.]])), gt.array([4., 3.]))
    Array([3., 2.], dtype=float32)
    """
    factors, order = ops.array(lu_and_piv[0]), ops.array(lu_and_piv[1])
    order, b = permuted(order, factors.shape[-1]), ops.array(b)
    if trans == 0:
        y = linalg.solve_triangular(factors, ops.take(b, order, 0), lower=True, unit_diagonal=True)
        return linalg.solve_triangular(factors, y)
    if trans not in (1, 2):
        raise ArgumentError(message("lu_solve", "0, 1 or 2 as trans", repr(trans), "Pass one of them."))
    back = _adjoint(factors) if trans == 2 else ops.matrix_transpose(factors)
    y = linalg.solve_triangular(back, b, lower=True)
    y = linalg.solve_triangular(back, y, unit_diagonal=True)
    return ops.zeros(y.shape, y.aval.dtype, device=y.aval.device).at[order].set(y)


def qr(a: Any, mode: str = "full", pivoting: bool = False) -> Any:
    """Return matrices as orthonormal times upper triangular ones.

    Args:
        mode: "full": a square Q; "economic"; "r": (R,) alone.
        pivoting: must be False.

    Raises:
        ArgumentError: another mode, or pivoting.
    """
    if pivoting:
        raise ArgumentError(message("qr", "pivoting=False", "True", "Use svd to find the rank."))
    if mode == "r":
        return (linalg.qr(a, mode="r"),)
    if mode not in ("full", "economic"):
        raise ArgumentError(message("qr", "full, economic or r as mode", repr(mode), "Pass one of them."))
    return tuple(linalg.qr(a, mode="complete" if mode == "full" else "reduced"))


def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Return the singular value decomposition (U, s, Vh), or s alone."""
    found = linalg.svd(a, full_matrices, compute_uv)
    return tuple(found) if compute_uv else found


def eigh(a: Any, b: Any = None, lower: bool = True, eigvals_only: bool = False) -> Any:
    """Return the eigenvalues of Hermitian matrices in ascending order, and the eigenvectors in columns.

    Raises:
        ArgumentError: a second matrix.
    """
    if b is not None:
        raise ArgumentError(message("eigh", "one matrix", "two", "Transform it by the Cholesky factor of b."))
    half = "L" if lower else "U"
    return linalg.eigvalsh(a, half) if eigvals_only else tuple(linalg.eigh(a, half))


def solve(a: Any, b: Any, lower: bool = False, assume_a: str = "gen") -> Array:
    """Return x with a @ x == b.

    Args:
        assume_a: "pos": positive definite, and only one half is read; otherwise: any matrix.
        lower: which half.
    """
    return cho_solve(cho_factor(a, lower), b) if assume_a == "pos" else linalg.solve(a, b)


def polar(a: Any, side: str = "right") -> tuple[Array, Array]:
    """Return a unitary and a positive semi-definite factor: a == u @ p, or with `side` "left" a == p @ u.

    >>> from gtrace.scipy.linalg import polar
    >>> gt.round(polar(gt.array([[0., 2.], [1., 0.]]))[0], 3)
    Array([[0., 1.],
           [1., 0.]], dtype=float32)
    """
    if side not in ("left", "right"):
        raise ArgumentError(message("polar", "left or right as side", repr(side), "Pass one of them."))
    u, s, vh = linalg.svd(a, full_matrices=False)
    v, uh = _adjoint(vh), _adjoint(u)
    scaled = v * ops.expand_dims(s, -2) @ vh if side == "right" else u * ops.expand_dims(s, -2) @ uh
    return ops.matmul(u, vh), scaled


def block_diag(*arrs: Any) -> Array:
    """Return a matrix with others along its diagonal; vectors count as rows.

    >>> from gtrace.scipy.linalg import block_diag
    >>> block_diag(gt.ones((1, 2)), 3.0)
    Array([[1., 1., 0.],
           [0., 0., 3.]], dtype=float32)
    """
    blocks = promote_arrays("block_diag", *[ops.array(x) for x in arrs]) if arrs else [ops.zeros((1, 0))]
    if any(x.ndim > 2 for x in blocks):
        raise ShapeError(message("block_diag", "matrices", "an array of more axes", "Use gt.vmap."))
    blocks = [x[(None,) * (2 - x.ndim)] if x.ndim < 2 else x for x in blocks]
    width = sum(x.shape[1] for x in blocks)
    rows, start = [], 0
    for x in blocks:
        sides = [(x.shape[0], start), (x.shape[0], width - start - x.shape[1])]
        left, right = (ops.zeros(size, x.aval.dtype, device=x.aval.device) for size in sides)
        rows.append(ops.concat([left, x, right], 1))
        start += x.shape[1]
    return ops.concat(rows, 0)


def _from_diagonals(column: Array, row: Array, places: numpy.ndarray) -> Array:
    return ops.take(ops.concat([column, row[..., 1:]], -1), ops.array(places), -1)


def toeplitz(c: Any, r: Any = None) -> Array:
    """Return the matrix with constant diagonals whose first column is `c` and whose first row is `r`.

    Of arrays with more axes it is a matrix for each vector along the last one. By default `r` is the conjugate of `c`.

    >>> from gtrace.scipy.linalg import toeplitz
    >>> toeplitz(gt.array([1., 2., 3.]))
    Array([[1., 2., 3.],
           [2., 1., 2.],
           [3., 2., 1.]], dtype=float32)
    """
    column = atleast_1d(ops.array(c))
    row = (ops.conj(column) if column.aval.complex else column) if r is None else atleast_1d(ops.array(r))
    column, row = promote_arrays("toeplitz", column, row)
    batch = ops.broadcast_shapes(column.shape[:-1], row.shape[:-1])
    column, row = (ops.broadcast_to(v, (*batch, v.shape[-1])) for v in (column, row))
    count = column.shape[-1]
    i, j = numpy.ogrid[:count, : row.shape[-1]]
    return _from_diagonals(column, row, numpy.where(i >= j, i - j, count - 1 + j - i))


def hankel(c: Any, r: Any = None) -> Array:
    """Return the matrix with constant anti-diagonals whose first column is `c` and whose last row is `r`, else zeros.

    >>> from gtrace.scipy.linalg import hankel
    >>> hankel(gt.array([1, 2]))
    Array([[1, 2],
           [2, 0]], dtype=int64)
    """
    column = ops.ravel(ops.array(c))
    row = ops.multiply(column, 0) if r is None else ops.ravel(ops.array(r))
    column, row = promote_arrays("hankel", column, row)
    i, j = numpy.ogrid[: column.size, : row.size]
    return _from_diagonals(column, row, i + j)


def circulant(c: Any) -> Array:
    """Return the matrix whose columns are `c`, each turned by one place more.

    >>> from gtrace.scipy.linalg import circulant
    >>> circulant(gt.array([1, 2, 3]))
    Array([[1, 3, 2],
           [2, 1, 3],
           [3, 2, 1]], dtype=int64)
    """
    column = ops.ravel(ops.array(c))
    return toeplitz(column, ops.concat([column[:1], ops.flip(column[1:])]))


def hilbert(n: int) -> Array:
    """Return the Hilbert matrix: 1 / (i + j + 1)."""
    i, j = numpy.ogrid[:n, :n]
    return ops.array((1.0 / (i + j + 1)).astype(numpy.float32))
