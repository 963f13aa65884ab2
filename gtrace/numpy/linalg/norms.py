"""Functions and norms of matrices and vectors."""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.elementwise import identity
from gtrace.core.ops.ndarray_methods import diagonal as _diagonal
from gtrace.core.ops.ndarray_methods import trace as _trace
from gtrace.core.ops.operands import counting, promote_arrays
from gtrace.core.ops.shape import as_int, normalize_axes
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import real_scalar
from gtrace.core.trace.replayable import replayable
from gtrace.interop.aten import handwritten_layers, linear_systems, matrix_functions
from gtrace.interop.torch_functions import call_torch
from gtrace.numpy.linalg.arguments import finite_alone, matrices
from gtrace.numpy.linalg.decompositions import SlogdetResult, eigvalsh, svdvals
from gtrace.numpy.linalg.solving import inv

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

LONG = 1 << 15
"""Norms of more elements are computed in float64: torch adds the powers one by one, in the operand's dtype."""


def det(x: Any, /) -> Array:
    """Return the determinants of square matrices.

    >>> gt.linalg.det(gt.array([[2., 1.], [0., 4.]]))
    Array(8., dtype=float32)
    """
    x = matrices("det", x, square=True)
    if x.shape[-1] not in (1, 2, 3):
        found = linear_systems.det(x)
        return call_torch("det", torch.linalg.det, x) if found is None else found
    if x.shape[-1] == 1:
        return x[..., 0, 0]
    # also where it is 0 or NaN, the derivatives of the sum of products exist
    if x.shape[-1] == 2:
        return x[..., 0, 0] * x[..., 1, 1] - x[..., 0, 1] * x[..., 1, 0]
    (a, b, c), (d, e, f), (g, h, i) = ([x[..., row, column] for column in range(3)] for row in range(3))
    return a * e * i + b * f * g + c * d * h - c * e * g - a * f * h - b * d * i


def slogdet(x: Any, /) -> SlogdetResult:
    """Return the sign of the determinants, and the logarithm of their absolute values.

    >>> gt.linalg.slogdet(gt.array([[-2., 0.], [0., 1.]])).sign
    Array(-1., dtype=float32)
    """
    x = matrices("slogdet", x, square=True)
    sign, size = linear_systems.slogdet(x) or call_torch("slogdet", torch.linalg.slogdet, x)
    return SlogdetResult(ops.where(ops.isnan(size), math.nan, sign), size)


def matrix_power(x: Any, n: int, /) -> Array:
    """Return the product of n copies of square matrices; of their inverses if n is negative.

    Raises:
        ArgumentError: n is not an integer.
        ShapeError: matrices that are not square.

    >>> gt.linalg.matrix_power(gt.array([[1., 1.], [0., 1.]]), 3)
    Array([[1., 3.],
           [0., 1.]], dtype=float32)
    """
    count = as_int("matrix_power", "n", n)
    x = _power_base(x)
    if count < 0:
        x, count = inv(x), -count
    if count == 0:
        return ops.broadcast_to(ops.eye(x.shape[-1], dtype=x.aval.dtype, device=x.aval.device), x.shape)
    out = None
    while True:
        if count & 1:
            out = x if out is None else ops.matmul(out, x)
        count >>= 1
        if not count:
            return identity(out)
        x = ops.matmul(x, x)


def _power_base(x: Any) -> Array:
    a = promote_arrays("matrix_power", x)[0]
    return (
        a
        if a.ndim >= 2 and a.shape[-1] == a.shape[-2] and a.aval.dtype is not torch.bool
        else matrices("matrix_power", a, square=True)
    )


def expm(x: Any, /) -> Array:
    """Return the matrix exponential.

    >>> gt.linalg.expm(gt.zeros((2, 2)))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    x = matrices("expm", x, square=True)
    found = matrix_functions.expm(x)
    return call_torch("expm", torch.linalg.matrix_exp, x) if found is None else found


@counting
def matrix_rank(x: Any, /, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Array:
    """Return how many singular values exceed a bound, as int64.

    Args:
        tol: the bound, one or one for each matrix.
        hermitian: the matrices are Hermitian, and only the lower half is read.
        rtol: the bound as a part of the largest singular value; by default the machine epsilon times the larger size
            of the matrix.

    Raises:
        ArgumentError: both bounds are given.

    >>> gt.linalg.matrix_rank(gt.array([[1., 2.], [2., 4.]]))
    Array(1, dtype=int64)
    """
    x = matrices("matrix_rank", x)
    if tol is not None and rtol is not None:
        raise ArgumentError(message("matrix_rank", "tol or rtol", "both", "Pass one of them."))
    s = ops.absolute(eigvalsh(x)) if hermitian else svdvals(x)
    if tol is None:
        part = torch.finfo(x.aval.dtype).eps * builtins.max(x.shape[-2:]) if rtol is None else rtol
        tol = ops.max(s, axis=-1, initial=0.0) * part
    return ops.count_nonzero(s > ops.expand_dims(ops.array(tol), -1), axis=-1)


def cond(x: Any, p: Any = None) -> Array:
    """Return the condition number: the norm of matrices times that of their inverses; infinity if they have none.

    Args:
        p: as `ord` of `matrix_norm`; None: 2.

    Raises:
        ShapeError: the matrices have no elements, or are not square where `p` is not 2 or -2.

    >>> gt.linalg.cond(gt.array([[4., 0.], [0., 2.]]))
    Array(2., dtype=float32)
    """
    x = matrices("cond", x, square=p not in (None, 2, -2))
    if 0 in x.shape[-2:]:
        raise ShapeError(message("cond", "matrices with elements", repr(x.aval), "Nothing has no condition."))
    if p in (None, 2, -2):
        s = svdvals(x)
        ratio = ops.divide(s[..., -1], s[..., 0]) if p == -2 else ops.divide(s[..., 0], s[..., -1])
    else:
        ratio = ops.multiply(matrix_norm(x, ord=p), matrix_norm(inv(x), ord=p))
    # zeros have no inverse either
    return ops.where(
        ops.logical_and(ops.isnan(ratio), ops.logical_not(ops.any(ops.isnan(x), axis=(-2, -1)))), math.inf, ratio
    )


def multi_dot(arrays: Iterable[Any]) -> Array:
    """Return the product of two or more matrices, in the order that costs least; the outer ones may be vectors.

    Raises:
        ArgumentError: fewer than two, or shapes that do not fit.

    >>> gt.linalg.multi_dot([gt.ones((2, 3)), gt.ones((3, 4)), gt.ones(4)])
    Array([12., 12.], dtype=float32)
    """
    given = list(arrays)
    if len(given) < 2:
        raise ArgumentError(message("multi_dot", "two or more arrays", str(len(given)), "Pass more."))
    parts = promote_arrays("multi_dot", *given)
    first, *middle, last = (x.ndim for x in parts)
    shape = parts[0].shape[: first - 1] + parts[-1].shape[1:]
    if {first, last} <= {1, 2} and set(middle) <= {2}:
        chain = [
            ops.reshape(parts[0], (-1, parts[0].shape[-1])),
            *parts[1:-1],
            ops.reshape(parts[-1], (parts[-1].shape[0], -1)),
        ]
        if builtins.all(x.shape[1] == y.shape[0] for x, y in itertools.pairwise(chain)) and shape.count(0) == 0:
            return ops.reshape(_chain_product(chain), shape)
    return call_torch("multi_dot", torch.linalg.multi_dot, parts)


def _chain_product(parts: Sequence[Array]) -> Array:
    """Return the product of matrices in the order of the fewest multiplications.

    Source: T. Cormen et al., Introduction to algorithms, matrix-chain multiplication.
    """
    sizes = [*(x.shape[0] for x in parts), parts[-1].shape[1]]
    count = len(parts)
    costs = {(k, k + 1): 0 for k in range(count)}
    cuts: dict[tuple[int, int], int] = {}
    for length in range(2, count + 1):
        for start in range(count - length + 1):
            end = start + length
            options = [
                (costs[start, cut] + costs[cut, end] + sizes[start] * sizes[cut] * sizes[end], cut)
                for cut in range(start + 1, end)
            ]
            costs[start, end], cuts[start, end] = builtins.min(options)

    def product(start: int, end: int) -> Array:
        if end - start == 1:
            return parts[start]
        cut = cuts[start, end]
        return ops.matmul(product(start, cut), product(cut, end))

    return product(0, count)


def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """Return the diagonals of matrices.

    >>> gt.linalg.diagonal(gt.array([[1., 2.], [3., 4.]]))
    Array([1., 4.], dtype=float32)
    """
    return _diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Return the sums of the diagonals of matrices.

    >>> gt.linalg.trace(gt.array([[1., 2.], [3., 4.]]))
    Array(5., dtype=float32)
    """
    return _trace(x, offset, -2, -1, dtype)


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Array:  # noqa: A002
    """Return the norm of vectors, (sum |x| ** ord) ** (1 / ord), over `axis` (None: all).

    The derivative of the 2-norm at 0 is 0.

    Args:
        ord: a number, or inf or -inf for the largest or smallest absolute value.

    >>> gt.linalg.vector_norm(gt.array([3., 4.]))
    Array(5., dtype=float32)
    """
    x = promote_arrays("vector_norm", x, floating=True)[0]
    order = real_scalar(ord)
    if order is None:
        raise ArgumentError(message("vector_norm", "a number as ord", repr(ord), "See gt.linalg.matrix_norm."))
    axes = None if axis is None else normalize_axes("vector_norm", axis, x.ndim)
    count = math.prod(x.shape if axes is None else [x.shape[k] for k in axes])
    if count > LONG and x.aval.dtype in (torch.float16, torch.bfloat16, torch.float32):
        wide = vector_norm(ops.astype(x, torch.float64), axis=axis, keepdims=keepdims, ord=ord)
        return ops.astype(wide, x.aval.dtype)
    found = handwritten_layers.vector_norm(x, order, axes, keepdims)
    if found is not None:
        return found
    return call_torch(
        "vector_norm", torch.linalg.vector_norm, x, order, dim=None if axes is None else list(axes), keepdim=keepdims
    )


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:  # noqa: A002
    """Return the norm of matrices.

    Args:
        ord: "fro" (Frobenius), "nuc" (sum of singular values), 1 or -1 (column sums), inf or -inf (row sums), 2 or -2
            (singular values).

    Raises:
        ArgumentError: another `ord`.

    >>> gt.linalg.matrix_norm(gt.array([[3., 0.], [0., 4.]]))
    Array(5., dtype=float32)
    """
    if ord not in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        expected = "fro, nuc, 1, -1, 2, -2, inf or -inf as ord"
        raise ArgumentError(message("matrix_norm", expected, repr(ord), "Pass one of them."))
    x = matrices("matrix_norm", x, narrow=ord not in ("nuc", 2, -2))
    if ord in ("fro", 1, -1, math.inf, -math.inf) and math.prod(x.shape[-2:]) > LONG and x.aval.dtype is torch.float32:
        wide = matrix_norm(ops.astype(x, torch.float64), keepdims=keepdims, ord=ord)
        return ops.astype(wide, torch.float32)

    def measured(x: Array) -> tuple[Array]:
        return (call_torch("matrix_norm", torch.linalg.matrix_norm, x, ord, keepdim=keepdims),)

    return finite_alone(measured, x)[0] if ord in ("nuc", 2, -2) else measured(x)[0]


@replayable
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:  # noqa: A002
    """Return a norm, as ``numpy.linalg.norm``: of vectors if `axis` is one axis, of matrices if it is two.

    Args:
        ord: as for `vector_norm` or `matrix_norm`; None: the root of the sum of squares.
        axis: None: all axes; with `ord`, x has one or two.

    Raises:
        ShapeError: more axes, or none.
        ArgumentError: an `ord` that does not belong to vectors, or to matrices.

    >>> gt.linalg.norm(gt.array([[3., 0.], [0., 4.]]), axis=0)
    Array([3., 4.], dtype=float32)
    """
    x = promote_arrays("norm", x, floating=True)[0]
    if axis is None and ord is None:
        flat = vector_norm(x)
        return ops.reshape(flat, (1,) * x.ndim) if keepdims else flat
    axes = tuple(range(x.ndim)) if axis is None else (axis if isinstance(axis, (tuple, list)) else (axis,))
    if len(axes) == 1:
        return vector_norm(x, axis=axes[0], keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) != 2:
        raise ShapeError(message("norm", "one axis or two", f"{len(axes)} axes", "Pass axis."))
    found = matrix_norm(ops.moveaxis(x, axes, (-2, -1)), keepdims=keepdims, ord="fro" if ord is None else ord)
    return ops.moveaxis(found, (-2, -1), axes) if keepdims else found
