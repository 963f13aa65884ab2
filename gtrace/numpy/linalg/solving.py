"""Linear equations and inverses."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.elementwise import squared_magnitude
from gtrace.core.ops.operands import cast, promote_arrays
from gtrace.core.ops.shape import as_int, normalize_axes
from gtrace.core.trace.array import Array
from gtrace.interop.aten import linear_systems, matrix_functions
from gtrace.interop.torch_functions import call_torch
from gtrace.numpy.linalg.arguments import finite_alone, matrices, pair
from gtrace.numpy.linalg.decompositions import svdvals

__all__ = ["inv", "lstsq", "pinv", "solve", "solve_triangular", "tensorinv", "tensorsolve"]


def solve(a: Any, b: Any, /) -> Array:
    """Return x with a @ x == b; b with one axis is a vector.

    Args:
        a: (..., n, n).
        b: (n,) or (..., n, k).

    Raises:
        ShapeError: shapes that do not fit.

    >>> gt.linalg.solve(gt.array([[2., 0.], [0., 4.]]), gt.array([2., 2.]))
    Array([1. , 0.5], dtype=float32)
    """
    a, right, column = _system("solve", a, b)
    # with equal leading axes, or torch would take a matrix on the right for a stack of vectors
    leading = numpy.broadcast_shapes(a.shape[:-2], right.shape[:-2])
    a, right = (ops.broadcast_to(one, (*leading, *one.shape[-2:])) for one in (a, right))
    x = linear_systems.solve(a, right)
    if x is None:
        x = call_torch("solve", torch.linalg.solve, a, right)
    return ops.squeeze(x, -1) if column else x


def _system(name: str, a: Any, b: Any, square: bool = True) -> tuple[Array, Array, bool]:
    """Return matrices, a right side of columns, and whether it was one vector.

    Raises:
        ShapeError: they do not fit.
    """
    x, y = pair(name, a, b, square)
    if not y.ndim or x.shape[-2] != y.shape[-2 if y.ndim > 1 else 0]:
        got = f"{x.aval!r} and {y.aval!r}"
        raise ShapeError(message(name, "as many rows on the right as in the matrix", got, "Check the shapes."))
    right = ops.expand_dims(y, -1) if y.ndim == 1 else y
    try:
        numpy.broadcast_shapes(x.shape[:-2], right.shape[:-2])
    except ValueError:
        got = f"{x.aval!r} and {y.aval!r}"
        raise ShapeError(message(name, "leading sizes that broadcast", got, "Sizes must be equal or 1.")) from None
    return x, right, y.ndim == 1


def solve_triangular(
    a: Any, b: Any, /, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False
) -> Array:
    """Return x with a @ x == b for triangular matrices; the other half is not read.

    Args:
        a: (..., n, n).
        b: (n,) or (..., n, k).
        trans: 0 or "N": solve with the matrices; 1 or "T": with the transposed ones; 2 or "C": with those,
            conjugated.
        lower: the lower half is read, not the upper one.
        unit_diagonal: the diagonal counts as ones, and is not read.

    Raises:
        ShapeError: shapes that do not fit.
        ArgumentError: another `trans`.

    >>> gt.linalg.solve_triangular(gt.array([[2., 0.], [1., 1.]]), gt.array([2., 3.]), lower=True)
    Array([1., 2.], dtype=float32)
    """
    if trans not in (0, 1, 2, "N", "T", "C"):
        raise ArgumentError(
            message("solve_triangular", "0, 1, 2, N, T or C as trans", repr(trans), "Pass one of them.")
        )
    a, right, column = _system("solve_triangular", a, b)
    if trans not in (0, "N"):
        a, lower = ops.matrix_transpose(a if trans in (1, "T") else ops.conj(a)), not lower
    x = linear_systems.solve_triangular(a, right, not lower, unit_diagonal)
    if x is None:
        x = call_torch(
            "solve_triangular", torch.linalg.solve_triangular, a, right, upper=not lower, unitriangular=unit_diagonal
        )
    return ops.squeeze(x, -1) if column else x


def inv(x: Any, /) -> Array:
    """Return the inverse of square matrices.

    >>> gt.linalg.inv(gt.array([[2., 0.], [0., 4.]]))
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    x = matrices("inv", x, square=True)
    found = linear_systems.inverse(x)
    return call_torch("inv", torch.linalg.inv, x) if found is None else found


def pinv(x: Any, /, rcond: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Array:
    """Return the pseudo-inverse; singular values up to `rtol` times the largest count as zero.

    Args:
        rcond, rtol: two names of the bound, a number or one for each matrix; by default the machine epsilon times the
            larger size of the matrix.
        hermitian: the matrices are Hermitian, and only the lower half is read.

    Raises:
        ArgumentError: both are given.

    >>> gt.linalg.pinv(gt.array([[2., 0.], [0., 0.]]))
    Array([[0.5, 0. ],
           [0. , 0. ]], dtype=float32)
    """
    if rcond is not None and rtol is not None:
        raise ArgumentError(message("pinv", "rcond or rtol", "both", "Pass rtol."))
    bound = rcond if rtol is None else rtol
    x = matrices("pinv", x, square=hermitian)
    if bound is not None and not isinstance(bound, (int, float)):
        bound = cast(ops.array(bound), x.aval.dtype.to_real())  # also for complex matrices

    def inverse(x: Array) -> tuple[Array]:
        found = None if isinstance(bound, Array) else matrix_functions.pinv(x, bound, hermitian)
        return (call_torch("pinv", torch.linalg.pinv, x, rtol=bound, hermitian=hermitian) if found is None else found,)

    return finite_alone(inverse, x, ops.tril(x) if hermitian else None)[0]


def lstsq(a: Any, b: Any, rcond: float | None = None) -> tuple[Array, Array, Array, Array]:
    """Return the x with the least |a @ x - b|, and of these the least |x|: (x, residuals, rank, singular values).

    Args:
        a: (m, n).
        b: (m,) or (m, k).
        rcond: singular values up to this times the largest count as zero; by default, and if it is negative, the
            machine epsilon times the larger size.

    Returns:
        As ``numpy.linalg.lstsq``; the residuals always have the shape (1,) or (k,).

    Raises:
        ShapeError: shapes that do not fit.

    >>> gt.linalg.lstsq(gt.array([[1., 0.], [0., 2.], [0., 0.]]), gt.array([1., 4., 5.]))[0]
    Array([1., 2.], dtype=float32)
    """
    a, right, column = _system("lstsq", a, b, square=False)
    if a.ndim != 2 or right.ndim != 2:
        got = f"{a.aval!r} and {right.aval!r}"
        raise ShapeError(message("lstsq", "one matrix and one right side", got, "Use gt.vmap, or gt.linalg.pinv."))
    part = torch.finfo(a.aval.dtype).eps * builtins.max(a.shape) if rcond is None or rcond < 0 else rcond
    s = svdvals(a)
    # unlike those of singular vectors, the derivatives of the pseudo-inverse exist where singular values are equal
    x = ops.matmul(pinv(a, rtol=part), right)
    rest = ops.sum(squared_magnitude(ops.matmul(a, x) - right), axis=0)
    rank = ops.count_nonzero(ops.greater(s, s[:1] * part))
    return (ops.squeeze(x, -1), rest, rank, s) if column else (x, rest, rank, s)


def tensorsolve(a: Any, b: Any, axes: Sequence[int] | None = None) -> Array:
    """Return x with ``tensordot(a, x, x.ndim) == b``.

    Args:
        a: of the shape of b, followed by the shape of x.
        axes: of a, moved to its end before.

    Raises:
        ShapeError: shapes that do not fit.

    >>> gt.linalg.tensorsolve(gt.reshape(gt.eye(4), (2, 2, 2, 2)), gt.ones((2, 2))).shape
    (2, 2)
    """
    a, b = promote_arrays("tensorsolve", a, b, floating=True)
    if axes is not None:
        moved = normalize_axes("tensorsolve", tuple(axes), a.ndim)
        a = ops.permute_dims(a, [k for k in range(a.ndim) if k not in moved] + list(moved))
    shape = a.shape[b.ndim :]
    if a.shape[: b.ndim] != b.shape or math.prod(shape) != b.size:
        got = f"{a.aval!r} and {b.aval!r}"
        raise ShapeError(message("tensorsolve", "a square map to the shape of b", got, "Check the shapes and axes."))
    return ops.reshape(solve(ops.reshape(a, (b.size, b.size)), ops.reshape(b, (b.size,))), shape)


def tensorinv(a: Any, ind: int = 2) -> Array:
    """Return the inverse of a as a linear map from its last axes to its first `ind` axes.

    Raises:
        ShapeError: the map is not square.

    >>> gt.linalg.tensorinv(gt.reshape(gt.eye(4), (2, 2, 4))).shape
    (4, 2, 2)
    """
    a = promote_arrays("tensorinv", a, floating=True)[0]
    count = as_int("tensorinv", "ind", ind)
    first, last = a.shape[: builtins.max(count, 0)], a.shape[builtins.max(count, 0) :]
    size = math.prod(first)
    if count < 1 or size != math.prod(last):
        got = f"{a.aval!r} and ind={count}"
        raise ShapeError(message("tensorinv", "as many elements in the first axes as in the last", got, "Change ind."))
    return ops.reshape(inv(ops.reshape(a, (size, size))), (*last, *first))


def permuted(pivots: Array, rows: int) -> Array:
    """Return the order of so many rows after the exchanges that `lu_factor` returns.

    >>> permuted(gt.array([1, 2, 2], dtype=gt.int32), 3)
    Array([1, 2, 0], dtype=int64)
    """
    return linear_systems.order_of_rows(pivots + 1, rows)
