"""Decompositions of matrices.

Singular values, eigenvalues and their vectors of a matrix with NaN or infinities are NaN, as in JAX; NumPy raises.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.trace.array import Array
from gtrace.interop.aten import factorizations, linear_systems, matrix_functions
from gtrace.interop.torch_functions import call_torch
from gtrace.numpy.linalg.arguments import finite_alone, matrices

__all__ = [
    "EigResult",
    "EighResult",
    "QRResult",
    "SVDResult",
    "SlogdetResult",
    "cholesky",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "lu",
    "lu_factor",
    "qr",
    "svd",
    "svdvals",
]


class EighResult(NamedTuple):
    """Eigenvalues in ascending order (real), and eigenvectors in columns."""

    eigenvalues: Array
    eigenvectors: Array


class EigResult(NamedTuple):
    """Eigenvalues and eigenvectors in columns, complex."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """An orthonormal factor and an upper triangular one."""

    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    """The sign of a determinant, and the logarithm of its absolute value."""

    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    """Left singular vectors, singular values in descending order, right singular vectors, conjugated, in rows."""

    U: Array
    S: Array
    Vh: Array


def cholesky(x: Any, /, *, upper: bool = False) -> Array:
    """Return the lower triangular factor L of positive definite matrices, x == L @ L.mT; only that half is read.

    A matrix that is not positive definite gives NaN in that half.

    Args:
        upper: return the upper triangular factor U, x == U.mT @ U, from the upper half.

    >>> gt.linalg.cholesky(gt.array([[4., 2.], [2., 5.]]))
    Array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    x = matrices("cholesky", x, square=True)
    # the upper half is the lower one of the transposed matrix
    factor = factorizations.cholesky(ops.matrix_transpose(x) if upper else x)
    if factor is None:
        return call_torch("cholesky", _cholesky, x, bool(upper))
    return ops.matrix_transpose(factor) if upper else factor


def _cholesky(x: torch.Tensor, upper: bool) -> torch.Tensor:
    factor, info = torch.linalg.cholesky_ex(x, upper=upper)
    # what torch leaves of an elimination that failed looks like a factor
    none = torch.full_like(factor, torch.nan)
    return torch.where(info[..., None, None] == 0, factor, none.triu() if upper else none.tril())


def qr(x: Any, /, mode: str = "reduced") -> Any:
    """Return matrices as orthonormal times upper triangular ones: (Q, R).

    Args:
        mode: ``"reduced"``: with the smaller number of columns; ``"complete"``: Q is square; ``"r"``: R alone;
            ``"raw"``: the transposed reflections that LAPACK returns, with their factors, as in NumPy.

    Raises:
        ArgumentError: another mode.
        ShapeError: x has fewer than two axes.

    >>> q, r = gt.linalg.qr(gt.array([[3., 1.], [4., 2.]]))
    >>> gt.round(q @ r, 4)
    Array([[3., 1.],
           [4., 2.]], dtype=float32)
    """
    if mode not in ("reduced", "complete", "r", "raw"):
        raise ArgumentError(message("qr", "reduced, complete, r or raw as mode", repr(mode), "Pass one of them."))
    x = matrices("qr", x)
    if mode == "raw":
        reflections, factors = call_torch("geqrf", torch.geqrf, x)
        return ops.matrix_transpose(reflections), factors
    # torch's own mode "r" has no derivative; a Q of as many columns as rows is complete
    kind = "reduced" if mode == "r" or x.shape[-2] <= x.shape[-1] else mode
    found = QRResult(*(factorizations.qr(x, kind) or call_torch("qr", torch.linalg.qr, x, mode=kind)))
    return found.R if mode == "r" else found


def svd(x: Any, /, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """Return the singular value decomposition (U, S, Vh); with ``compute_uv=False`` the singular values alone.

    Derivatives of singular vectors are those of one choice of signs; they exist where the singular values differ.
    Those of U, and of Vh, exist only with ``full_matrices=False``, or for square matrices.

    Args:
        hermitian: the matrices are Hermitian, and only the lower half is read.

    >>> gt.linalg.svd(gt.array([[3., 0.], [0., -2.]])).S
    Array([3., 2.], dtype=float32)
    """
    if hermitian:
        return _hermitian_svd(matrices("svd", x, square=True), compute_uv)
    if not compute_uv:
        return svdvals(x)
    x, full = matrices("svd", x), bool(full_matrices)

    def decomposed(x: Array) -> Any:
        return factorizations.svd(x, full) or call_torch("svd", torch.linalg.svd, x, full_matrices=full)

    return SVDResult(*finite_alone(decomposed, x))


def _hermitian_svd(x: Array, compute_uv: bool) -> Any:
    if not compute_uv:
        return ops.flip(ops.sort(ops.absolute(eigvalsh(x))), -1)
    values, vectors = eigh(x)
    order = ops.flip(ops.argsort(ops.absolute(values)), -1)
    values = ops.take_along_axis(values, order, -1)
    u = ops.take_along_axis(vectors, ops.expand_dims(order, -2), -1)
    signs = ops.where(ops.less(values, 0), -1, 1)
    return SVDResult(u, ops.absolute(values), ops.conj(ops.matrix_transpose(u * ops.expand_dims(signs, -2))))


def svdvals(x: Any, /) -> Array:
    """Return the singular values of matrices, in descending order.

    >>> gt.linalg.svdvals(gt.array([[3., 0.], [0., -2.]]))
    Array([3., 2.], dtype=float32)
    """
    x = matrices("svdvals", x)

    def values(x: Array) -> tuple[Array]:
        found = factorizations.svd(x, False)
        return (call_torch("svdvals", torch.linalg.svdvals, x) if found is None else found[1],)

    return finite_alone(values, x)[0]


def eigh(x: Any, /, UPLO: str = "L") -> EighResult:  # noqa: N803 - NumPy's name
    """Return eigenvalues and eigenvectors of Hermitian matrices; only one half is read.

    Derivatives of eigenvectors are those of one choice of signs; they exist where the eigenvalues differ.

    Args:
        UPLO: the half, ``"L"`` (lower) or ``"U"`` (upper).

    >>> gt.linalg.eigh(gt.array([[2., 0.], [0., 1.]])).eigenvalues
    Array([1., 2.], dtype=float32)
    """
    x, half = matrices("eigh", x, square=True), _half("eigh", UPLO)

    def decomposed(x: Array) -> Any:
        return factorizations.eigh(x, half) or call_torch("eigh", torch.linalg.eigh, x, UPLO=half)

    return EighResult(*finite_alone(decomposed, x, _read(x, half)))


def _read(x: Array, half: str) -> Array:
    return ops.tril(x) if half == "L" else ops.triu(x)


def _half(name: str, half: str) -> str:
    if half not in ("L", "U"):
        raise ArgumentError(message(name, "L or U as UPLO", repr(half), "Pass one of them."))
    return half


def eigvalsh(x: Any, /, UPLO: str = "L") -> Array:  # noqa: N803 - NumPy's name
    """Return the eigenvalues of Hermitian matrices, in ascending order; the half `UPLO` is read, as by `eigh`.

    >>> gt.linalg.eigvalsh(gt.array([[2., 0.], [0., 1.]]))
    Array([1., 2.], dtype=float32)
    """
    x, half = matrices("eigvalsh", x, square=True), _half("eigvalsh", UPLO)

    def values(x: Array) -> tuple[Array]:
        found = factorizations.eigh(x, half)
        return (call_torch("eigvalsh", torch.linalg.eigvalsh, x, UPLO=half) if found is None else found[0],)

    return finite_alone(values, x, _read(x, half))[0]


def eig(x: Any, /) -> EigResult:
    """Return eigenvalues and eigenvectors of square matrices; both are complex.

    >>> gt.linalg.eig(gt.array([[0., 1.], [-1., 0.]])).eigenvalues.dtype
    gtrace.complex64
    """
    x = matrices("eig", x, square=True)
    return EigResult(*finite_alone(lambda x: matrix_functions.eig(x) or call_torch("eig", torch.linalg.eig, x), x))


def eigvals(x: Any, /) -> Array:
    """Return the eigenvalues of square matrices, complex.

    >>> gt.linalg.eigvals(gt.eye(2)).shape
    (2,)
    """
    x = matrices("eigvals", x, square=True)

    def values(x: Array) -> tuple[Array]:
        found = matrix_functions.eig(x)
        return (call_torch("eigvals", torch.linalg.eigvals, x) if found is None else found[0],)

    return finite_alone(values, x)[0]


def lu(x: Any, /) -> tuple[Array, Array, Array]:
    """Return a permutation, a lower and an upper triangular matrix whose product is x.

    >>> p, l, u = gt.linalg.lu(gt.array([[1., 2.], [3., 4.]]))
    >>> gt.round(p @ l @ u, 4)
    Array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    x = matrices("lu", x)
    return tuple(linear_systems.lu(x) or call_torch("lu", torch.linalg.lu, x))


def lu_factor(x: Any, /) -> tuple[Array, Array]:
    """Return both triangular factors in one matrix, and the rows that were exchanged, counted from 0, as int32.

    >>> gt.linalg.lu_factor(gt.array([[1., 2.], [3., 4.]]))[1]
    Array([1, 1], dtype=int32)
    """
    x = matrices("lu_factor", x)
    factors, pivots = linear_systems.lu_factor(x) or call_torch("lu_factor", torch.linalg.lu_factor, x)
    return factors, pivots - 1
