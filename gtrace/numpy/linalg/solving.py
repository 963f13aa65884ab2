"""Linear equations and inverses."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import torch

from gtrace.errors import ShapeError, message
from gtrace.numpy.linalg.arguments import matrices, pair
from gtrace.numpy.linalg.decompositions import svd
from gtrace.ops.elementwise import absolute, divide, multiply, power
from gtrace.ops.linalg import matmul
from gtrace.ops.logic import greater, where
from gtrace.ops.promote import promote_arrays
from gtrace.ops.reduce import count_nonzero, sum  # noqa: A004 - the array API's names
from gtrace.ops.shape import matrix_transpose, normalize_axes, permute_dims, reshape
from gtrace.torch_functions import call_torch
from gtrace.trace.array import Array

__all__ = ["inv", "lstsq", "pinv", "solve", "solve_triangular", "tensorinv", "tensorsolve"]


def solve(a: Any, b: Any, /) -> Array:
    """Return x with a @ x == b; b with one axis is a vector.

    >>> import gtrace as gt
    >>> gt.linalg.solve(gt.array([[2., 0.], [0., 4.]]), gt.array([2., 2.]))
    Array([1. , 0.5], dtype=float32)
    """
    a, b = pair("solve", a, b)
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
    a, b = pair("solve_triangular", a, b)
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
    return call_torch("inv", torch.linalg.inv, matrices("inv", x, square=True))


def pinv(x: Any, /, *, rtol: float | None = None, hermitian: bool = False) -> Array:
    """Return the pseudo-inverse; singular values up to `rtol` times the largest count as zero.

    Args:
        rtol: by default the machine epsilon times the larger size of the matrix.

    >>> import gtrace as gt
    >>> gt.linalg.pinv(gt.array([[2., 0.], [0., 0.]]))
    Array([[0.5, 0. ],
           [0. , 0. ]], dtype=float32)
    """
    return call_torch("pinv", torch.linalg.pinv, matrices("pinv", x), rtol=rtol, hermitian=hermitian)


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
    a, b = pair("lstsq", a, b, square=False)
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
