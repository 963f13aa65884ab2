"""Functions and norms of matrices and vectors."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import torch

from gtrace.errors import ShapeError, message
from gtrace.numpy.linalg.arguments import matrices
from gtrace.numpy.linalg.decompositions import SlogdetResult, eigvalsh, svdvals
from gtrace.numpy.linalg.solving import inv
from gtrace.ops.elementwise import absolute, divide, multiply
from gtrace.ops.extracts import diagonal as _diagonal
from gtrace.ops.extracts import trace as _trace
from gtrace.ops.logic import greater
from gtrace.ops.promote import promote_arrays
from gtrace.ops.reduce import count_nonzero, max  # noqa: A004 - the array API's names
from gtrace.ops.shape import moveaxis, normalize_axes, reshape
from gtrace.torch_functions import call_torch
from gtrace.trace.array import Array

__all__ = [
    "cond",
    "det",
    "diagonal",
    "expm",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "slogdet",
    "trace",
    "vector_norm",
]


def det(x: Any, /) -> Array:
    """Return the determinants of square matrices.

    >>> import gtrace as gt
    >>> gt.linalg.det(gt.array([[2., 1.], [0., 4.]]))
    Array(8., dtype=float32)
    """
    return call_torch("det", torch.linalg.det, matrices("det", x, square=True))


def slogdet(x: Any, /) -> SlogdetResult:
    """Return the sign of the determinants, and the logarithm of their absolute values.

    >>> import gtrace as gt
    >>> gt.linalg.slogdet(gt.array([[-2., 0.], [0., 1.]])).sign
    Array(-1., dtype=float32)
    """
    return SlogdetResult(*call_torch("slogdet", torch.linalg.slogdet, matrices("slogdet", x, square=True)))


def matrix_power(x: Any, n: int, /) -> Array:
    """Return the product of n copies of square matrices; of their inverses if n is negative.

    >>> import gtrace as gt
    >>> gt.linalg.matrix_power(gt.array([[1., 1.], [0., 1.]]), 3)
    Array([[1., 3.],
           [0., 1.]], dtype=float32)
    """
    return call_torch("matrix_power", torch.linalg.matrix_power, matrices("matrix_power", x, square=True), int(n))


def expm(x: Any, /) -> Array:
    """Return the matrix exponential.

    >>> import gtrace as gt
    >>> gt.linalg.expm(gt.zeros((2, 2)))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    return call_torch("expm", torch.linalg.matrix_exp, matrices("expm", x, square=True))


def matrix_rank(x: Any, /, *, rtol: Any = None, hermitian: bool = False) -> Array:
    """Return how many singular values exceed `rtol` times the largest, as int64.

    >>> import gtrace as gt
    >>> gt.linalg.matrix_rank(gt.array([[1., 2.], [2., 4.]]))
    Array(1, dtype=int64)
    """
    x = matrices("matrix_rank", x)
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
    x = matrices("cond", x, square=p not in (None, 2, -2))
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
    return call_torch("matrix_norm", torch.linalg.matrix_norm, matrices("matrix_norm", x), ord, keepdim=keepdims)


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
