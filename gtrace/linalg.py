"""Linear algebra: decompositions, solvers, norms. All take stacks of matrices in the last two axes.

The functions are torch's; their derivatives, of every order, and their batching are derived from torch. As in JAX, a
matrix that has no inverse or no Cholesky factor gives infinities, NaN or rounding errors, and raises nothing: looking
at values would end what is being recorded.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from gtrace.errors import ArgumentError, ShapeError, message
from gtrace.numpy.products import cross as cross
from gtrace.ops.elementwise import absolute, divide, multiply, power
from gtrace.ops.extracts import diagonal as _diagonal
from gtrace.ops.extracts import trace as _trace
from gtrace.ops.linalg import matmul as matmul
from gtrace.ops.linalg import outer as outer
from gtrace.ops.linalg import tensordot as tensordot
from gtrace.ops.linalg import vecdot as vecdot
from gtrace.ops.logic import greater, where
from gtrace.ops.promote import promote_arrays
from gtrace.ops.reduce import count_nonzero, max, sum  # noqa: A004 - the array API's names
from gtrace.ops.shape import matrix_transpose as matrix_transpose
from gtrace.ops.shape import moveaxis, normalize_axes, permute_dims, reshape
from gtrace.torch_functions import call_torch
from gtrace.trace.array import Array

__all__ = [
    "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "expm", "inv", "lstsq", "lu",
    "lu_factor", "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm",
    "outer", "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "tensordot", "tensorinv",
    "tensorsolve", "trace", "vecdot", "vector_norm",
]  # fmt: skip


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


def _matrix(name: str, x: Any, square: bool = False) -> Array:
    """Return an argument as a floating array of matrices.

    Raises:
        ShapeError: it has fewer than two axes, or matrices that are not square.
    """
    a = promote_arrays(name, x, floating=True)[0]
    if a.ndim < 2 or (square and a.shape[-1] != a.shape[-2]):
        kind = "square matrices" if square else "matrices"
        raise ShapeError(message(name, f"{kind} in the last two axes", repr(a.aval), "Use gt.reshape."))
    return a


def _pair(name: str, a: Any, b: Any, square: bool = True) -> tuple[Array, Array]:
    x, y = promote_arrays(name, a, b, floating=True)
    return _matrix(name, x, square), y


# -- decompositions


def cholesky(x: Any, /, *, upper: bool = False) -> Array:
    """Return the lower (or upper) triangular factor L of positive definite matrices, L @ L.mT; only one half is read.

    >>> import gtrace as gt
    >>> gt.linalg.cholesky(gt.array([[4., 2.], [2., 5.]]))
    Array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    return call_torch("cholesky", torch.linalg.cholesky, _matrix("cholesky", x, square=True), upper=upper)


def qr(x: Any, /, *, mode: str = "reduced") -> Any:
    """Return matrices as orthonormal times upper triangular ones: (Q, R).

    Args:
        mode: ``"reduced"``: with the smaller number of columns; ``"complete"``: Q is square; ``"r"``: R alone.

    >>> import gtrace as gt
    >>> q, r = gt.linalg.qr(gt.array([[3., 1.], [4., 2.]]))
    >>> gt.round(q @ r, 4)
    Array([[3., 1.],
           [4., 2.]], dtype=float32)
    """
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(message("qr", "reduced, complete or r as mode", repr(mode), "Pass one of them."))
    q, r = call_torch("qr", torch.linalg.qr, _matrix("qr", x), mode=mode)
    return r if mode == "r" else QRResult(q, r)


def svd(x: Any, /, *, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Return the singular value decomposition (U, S, Vh); with ``compute_uv=False`` the singular values alone.

    Derivatives of singular vectors are those of one choice of signs; they exist where the singular values differ.

    >>> import gtrace as gt
    >>> gt.linalg.svd(gt.array([[3., 0.], [0., -2.]])).S
    Array([3., 2.], dtype=float32)
    """
    if not compute_uv:
        return svdvals(x)
    return SVDResult(*call_torch("svd", torch.linalg.svd, _matrix("svd", x), full_matrices=full_matrices))


def svdvals(x: Any, /) -> Array:
    """Return the singular values of matrices, in descending order.

    >>> import gtrace as gt
    >>> gt.linalg.svdvals(gt.array([[3., 0.], [0., -2.]]))
    Array([3., 2.], dtype=float32)
    """
    return call_torch("svdvals", torch.linalg.svdvals, _matrix("svdvals", x))


def eigh(x: Any, /, *, upper: bool = False) -> EighResult:
    """Return eigenvalues and eigenvectors of Hermitian matrices, of which one half is read.

    >>> import gtrace as gt
    >>> gt.linalg.eigh(gt.array([[2., 0.], [0., 1.]])).eigenvalues
    Array([1., 2.], dtype=float32)
    """
    half = "U" if upper else "L"
    return EighResult(*call_torch("eigh", torch.linalg.eigh, _matrix("eigh", x, square=True), UPLO=half))


def eigvalsh(x: Any, /, *, upper: bool = False) -> Array:
    """Return the eigenvalues of Hermitian matrices, in ascending order.

    >>> import gtrace as gt
    >>> gt.linalg.eigvalsh(gt.array([[2., 0.], [0., 1.]]))
    Array([1., 2.], dtype=float32)
    """
    half = "U" if upper else "L"
    return call_torch("eigvalsh", torch.linalg.eigvalsh, _matrix("eigvalsh", x, square=True), UPLO=half)


def eig(x: Any, /) -> EigResult:
    """Return eigenvalues and eigenvectors of square matrices; both are complex.

    >>> import gtrace as gt
    >>> gt.linalg.eig(gt.array([[0., 1.], [-1., 0.]])).eigenvalues.dtype
    torch.complex64
    """
    return EigResult(*call_torch("eig", torch.linalg.eig, _matrix("eig", x, square=True)))


def eigvals(x: Any, /) -> Array:
    """Return the eigenvalues of square matrices, complex.

    >>> import gtrace as gt
    >>> gt.linalg.eigvals(gt.eye(2)).shape
    (2,)
    """
    return call_torch("eigvals", torch.linalg.eigvals, _matrix("eigvals", x, square=True))


def lu(x: Any, /) -> tuple[Array, Array, Array]:
    """Return a permutation, a lower and an upper triangular matrix whose product is x.

    >>> import gtrace as gt
    >>> p, l, u = gt.linalg.lu(gt.array([[1., 2.], [3., 4.]]))
    >>> gt.round(p @ l @ u, 4)
    Array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    return tuple(call_torch("lu", torch.linalg.lu, _matrix("lu", x)))  # type: ignore[return-value]


def lu_factor(x: Any, /) -> tuple[Array, Array]:
    """Return both triangular factors in one matrix, and the rows that were exchanged, counted from 0, as int32.

    >>> import gtrace as gt
    >>> gt.linalg.lu_factor(gt.array([[1., 2.], [3., 4.]]))[1]
    Array([1, 1], dtype=int32)
    """
    factors, pivots = call_torch("lu_factor", torch.linalg.lu_factor, _matrix("lu_factor", x))
    return factors, pivots - 1


# -- solving


def solve(a: Any, b: Any, /) -> Array:
    """Return x with a @ x == b; b with one axis is a vector.

    >>> import gtrace as gt
    >>> gt.linalg.solve(gt.array([[2., 0.], [0., 4.]]), gt.array([2., 2.]))
    Array([1. , 0.5], dtype=float32)
    """
    a, b = _pair("solve", a, b)
    if b.ndim == 1:
        return reshape(solve(a, reshape(b, (-1, 1))), (*a.shape[:-2], -1))
    if b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        got = f"{a.aval!r} and {b.aval!r}"
        raise ShapeError(message("solve", "as many rows on the right as in the matrix", got, "Check the shapes."))
    # with equal leading axes, or torch would take a matrix on the right for a stack of vectors
    return call_torch("solve", _solve, a, b)


def _solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    shape = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return torch.linalg.solve(a.expand(*shape, *a.shape[-2:]), b.expand(*shape, *b.shape[-2:]))


def solve_triangular(a: Any, b: Any, /, *, lower: bool = False, trans: int = 0, unit_diagonal: bool = False) -> Array:
    """Return x with a @ x == b for triangular matrices, of which the other half is not read.

    Args:
        trans: 1: solve with the transposed matrices.

    >>> import gtrace as gt
    >>> gt.linalg.solve_triangular(gt.array([[2., 0.], [1., 1.]]), gt.array([2., 3.]), lower=True)
    Array([1., 2.], dtype=float32)
    """
    a, b = _pair("solve_triangular", a, b)
    if trans:
        a, lower = matrix_transpose(a), not lower
    column = b.ndim == 1
    right = reshape(b, (-1, 1)) if column else b
    x = call_torch(
        "solve_triangular", torch.linalg.solve_triangular, a, right, upper=not lower, unitriangular=unit_diagonal
    )
    return reshape(x, x.shape[:-1]) if column else x


def inv(x: Any, /) -> Array:
    """Return the inverse of square matrices.

    >>> import gtrace as gt
    >>> gt.linalg.inv(gt.array([[2., 0.], [0., 4.]]))
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    return call_torch("inv", torch.linalg.inv, _matrix("inv", x, square=True))


def pinv(x: Any, /, *, rtol: float | None = None, hermitian: bool = False) -> Array:
    """Return the pseudo-inverse; singular values up to `rtol` times the largest count as zero.

    Args:
        rtol: by default the machine epsilon times the larger size of the matrix.

    >>> import gtrace as gt
    >>> gt.linalg.pinv(gt.array([[2., 0.], [0., 0.]]))
    Array([[0.5, 0. ],
           [0. , 0. ]], dtype=float32)
    """
    return call_torch("pinv", torch.linalg.pinv, _matrix("pinv", x), rtol=rtol, hermitian=hermitian)


def lstsq(a: Any, b: Any, rcond: float | None = None) -> tuple[Array, Array, Array, Array]:
    """Return the x with the least |a @ x - b|, and of these the least |x|: (x, residuals, rank, singular values).

    Args:
        a: (m, n).
        b: (m,) or (m, k).
        rcond: singular values up to this times the largest count as zero; by default the machine epsilon times the
            larger size.

    Returns:
        As ``numpy.linalg.lstsq``; the residuals always have the shape () or (k,).

    >>> import gtrace as gt
    >>> gt.linalg.lstsq(gt.array([[1., 0.], [0., 2.], [0., 0.]]), gt.array([1., 4., 5.]))[0]
    Array([1., 2.], dtype=float32)
    """
    a, b = _pair("lstsq", a, b, square=False)
    u, s, vh = svd(a, full_matrices=False)
    eps = torch.finfo(a.dtype).eps
    cut = multiply(s[..., :1], eps * builtins.max(a.shape[-2:]) if rcond is None else rcond)
    kept = greater(s, cut)
    inverse = where(kept, divide(1.0, where(kept, s, 1.0)), 0.0)
    column = b.ndim == 1
    right = reshape(b, (-1, 1)) if column else b
    x = matmul(matrix_transpose(vh), multiply(reshape(inverse, (-1, 1)), matmul(matrix_transpose(u), right)))
    rest = sum(power(absolute(matmul(a, x) - right), 2), axis=0)
    return (x[:, 0], rest[0], count_nonzero(kept), s) if column else (x, rest, count_nonzero(kept), s)


def tensorsolve(a: Any, b: Any, axes: Sequence[int] | None = None) -> Array:
    """Return x with ``tensordot(a, x, x.ndim) == b``.

    >>> import gtrace as gt
    >>> gt.linalg.tensorsolve(gt.reshape(gt.eye(4), (2, 2, 2, 2)), gt.ones((2, 2))).shape
    (2, 2)
    """
    a, b = promote_arrays("tensorsolve", a, b, floating=True)
    if axes is not None:
        moved = normalize_axes("tensorsolve", tuple(axes), a.ndim)
        a = permute_dims(a, [k for k in range(a.ndim) if k not in moved] + list(axes))
    shape = a.shape[b.ndim :]
    return reshape(solve(reshape(a, (b.size, -1)), reshape(b, (-1,))), shape)


def tensorinv(a: Any, ind: int = 2) -> Array:
    """Return the inverse of a as a linear map from its last axes to its first `ind` axes.

    >>> import gtrace as gt
    >>> gt.linalg.tensorinv(gt.reshape(gt.eye(4), (2, 2, 4))).shape
    (4, 2, 2)
    """
    a = promote_arrays("tensorinv", a, floating=True)[0]
    first, last = a.shape[:ind], a.shape[ind:]
    return reshape(inv(reshape(a, (math.prod(first), -1))), (*last, *first))


# -- functions of matrices


def det(x: Any, /) -> Array:
    """Return the determinants of square matrices.

    >>> import gtrace as gt
    >>> gt.linalg.det(gt.array([[2., 1.], [0., 4.]]))
    Array(8., dtype=float32)
    """
    return call_torch("det", torch.linalg.det, _matrix("det", x, square=True))


def slogdet(x: Any, /) -> SlogdetResult:
    """Return the sign of the determinants, and the logarithm of their absolute values.

    >>> import gtrace as gt
    >>> gt.linalg.slogdet(gt.array([[-2., 0.], [0., 1.]])).sign
    Array(-1., dtype=float32)
    """
    return SlogdetResult(*call_torch("slogdet", torch.linalg.slogdet, _matrix("slogdet", x, square=True)))


def matrix_power(x: Any, n: int, /) -> Array:
    """Return the product of n copies of square matrices; of their inverses if n is negative.

    >>> import gtrace as gt
    >>> gt.linalg.matrix_power(gt.array([[1., 1.], [0., 1.]]), 3)
    Array([[1., 3.],
           [0., 1.]], dtype=float32)
    """
    return call_torch("matrix_power", torch.linalg.matrix_power, _matrix("matrix_power", x, square=True), int(n))


def expm(x: Any, /) -> Array:
    """Return the matrix exponential.

    >>> import gtrace as gt
    >>> gt.linalg.expm(gt.zeros((2, 2)))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    return call_torch("expm", torch.linalg.matrix_exp, _matrix("expm", x, square=True))


def matrix_rank(x: Any, /, *, rtol: Any = None, hermitian: bool = False) -> Array:
    """Return how many singular values exceed `rtol` times the largest, as int64.

    >>> import gtrace as gt
    >>> gt.linalg.matrix_rank(gt.array([[1., 2.], [2., 4.]]))
    Array(1, dtype=int64)
    """
    x = _matrix("matrix_rank", x)
    s = absolute(eigvalsh(x)) if hermitian else svdvals(x)
    cut = torch.finfo(x.dtype).eps * builtins.max(x.shape[-2:]) if rtol is None else rtol
    return count_nonzero(greater(s, multiply(max(s, axis=-1, keepdims=True), cut)), axis=-1)


def cond(x: Any, p: Any = None) -> Array:
    """Return the condition number: the norm of matrices times that of their inverses.

    Args:
        p: as for `matrix_norm`; None: 2.

    >>> import gtrace as gt
    >>> gt.linalg.cond(gt.array([[4., 0.], [0., 2.]]))
    Array(2., dtype=float32)
    """
    x = _matrix("cond", x, square=p not in (None, 2, -2))
    if p in (None, 2, -2):
        s = svdvals(x)
        return divide(s[..., -1], s[..., 0]) if p == -2 else divide(s[..., 0], s[..., -1])
    return multiply(matrix_norm(x, ord=p), matrix_norm(inv(x), ord=p))


def multi_dot(arrays: Sequence[Any]) -> Array:
    """Return the product of two or more matrices, in the order that costs least; the outer ones may be vectors.

    >>> import gtrace as gt
    >>> gt.linalg.multi_dot([gt.ones((2, 3)), gt.ones((3, 4)), gt.ones(4)])
    Array([12., 12.], dtype=float32)
    """
    return call_torch("multi_dot", torch.linalg.multi_dot, promote_arrays("multi_dot", *arrays, floating=True))


def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """Return the diagonals of matrices.

    >>> import gtrace as gt
    >>> gt.linalg.diagonal(gt.array([[1., 2.], [3., 4.]]))
    Array([1., 4.], dtype=float32)
    """
    return _diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Return the sums of the diagonals of matrices.

    >>> import gtrace as gt
    >>> gt.linalg.trace(gt.array([[1., 2.], [3., 4.]]))
    Array(5., dtype=float32)
    """
    return _trace(x, offset, -2, -1, dtype)


# -- norms


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Array:  # noqa: A002
    """Return the norm of vectors, (sum |x| ** ord) ** (1 / ord), over `axis` (None: all).

    The derivative of the 2-norm at 0 is 0.

    Args:
        ord: a number, or inf or -inf for the largest or smallest absolute value.

    >>> import gtrace as gt
    >>> gt.linalg.vector_norm(gt.array([3., 4.]))
    Array(5., dtype=float32)
    """
    x = promote_arrays("vector_norm", x, floating=True)[0]
    axes = None if axis is None else normalize_axes("vector_norm", axis, x.ndim)
    return call_torch(
        "vector_norm", torch.linalg.vector_norm, x, ord, dim=None if axes is None else list(axes), keepdim=keepdims
    )


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:  # noqa: A002
    """Return the norm of matrices.

    Args:
        ord: "fro" (Frobenius), "nuc" (sum of singular values), 1 or -1 (column sums), inf or -inf (row sums), 2 or -2
            (singular values).

    >>> import gtrace as gt
    >>> gt.linalg.matrix_norm(gt.array([[3., 0.], [0., 4.]]))
    Array(5., dtype=float32)
    """
    return call_torch("matrix_norm", torch.linalg.matrix_norm, _matrix("matrix_norm", x), ord, keepdim=keepdims)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:  # noqa: A002
    """Return a norm, as ``numpy.linalg.norm``: of vectors if `axis` is one axis, of matrices if it is two.

    >>> import gtrace as gt
    >>> gt.linalg.norm(gt.array([[3., 0.], [0., 4.]]), axis=0)
    Array([3., 4.], dtype=float32)
    """
    x = promote_arrays("norm", x, floating=True)[0]
    if axis is None and ord is None:
        flat = vector_norm(x)
        return reshape(flat, (1,) * x.ndim) if keepdims else flat
    axes = tuple(range(x.ndim)) if axis is None else (axis if isinstance(axis, (tuple, list)) else (axis,))
    if len(axes) == 1:
        return vector_norm(x, axis=axes[0], keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) != 2:
        raise ShapeError(message("norm", "one axis or two", f"{len(axes)} axes", "Pass axis."))
    found = matrix_norm(moveaxis(x, axes, (-2, -1)), keepdims=keepdims, ord="fro" if ord is None else ord)
    return moveaxis(found, (-2, -1), axes) if keepdims else found
