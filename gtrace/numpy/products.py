"""Products of vectors and matrices under NumPy's names."""

from __future__ import annotations

import math
from typing import Any

from gtrace.core import ops
from gtrace.core.base.errors import ShapeError, message
from gtrace.core.ops.operands import promote_arrays
from gtrace.core.ops.shape import normalize_axis
from gtrace.core.trace.array import Array
from gtrace.core.trace.replayable import replayable

__all__ = ["cross", "inner", "kron", "matvec", "vdot", "vecmat"]


@replayable
def inner(x: Any, y: Any) -> Array:
    """Return the sums of products over the last axes.

    >>> gnp.inner(gnp.array([1., 2.]), gnp.array([3., 4.]))
    Array(11., dtype=float32)
    """
    x, y = promote_arrays("inner", x, y)
    return ops.multiply(x, y) if not x.ndim or not y.ndim else ops.tensordot(x, y, ((-1,), (-1,)))


@replayable
def vdot(x: Any, y: Any) -> Array:
    """Return the sum of products of the elements of two flattened arrays, those of x conjugated.

    >>> gnp.vdot(gnp.ones((2, 2)), gnp.ones((2, 2)))
    Array(4., dtype=float32)
    """
    return ops.dot(ops.conj(ops.ravel(x)), ops.ravel(y))


def matvec(x: Any, y: Any) -> Array:
    """Return the products of matrices (..., m, n) with vectors (..., n); leading axes broadcast.

    >>> gnp.matvec(gnp.ones((2, 3)), gnp.ones(3))
    Array([3., 3.], dtype=float32)
    """
    x, y = promote_arrays("matvec", x, y)
    if x.ndim < 2 or not y.ndim:
        got = f"{x.aval!r} and {y.aval!r}"
        raise ShapeError(message("matvec", "a matrix and a vector", got, "Check the shapes."))
    return ops.matmul(x, ops.expand_dims(y, -1))[..., 0]


def vecmat(x: Any, y: Any) -> Array:
    """Return the products of vectors (..., n), conjugated, with matrices (..., n, m); leading axes broadcast.

    >>> gnp.vecmat(gnp.ones(3), gnp.ones((3, 2)))
    Array([3., 3.], dtype=float32)
    """
    x, y = promote_arrays("vecmat", x, y)
    if y.ndim < 2 or not x.ndim:
        got = f"{x.aval!r} and {y.aval!r}"
        raise ShapeError(message("vecmat", "a vector and a matrix", got, "Check the shapes."))
    return ops.matmul(ops.expand_dims(ops.conj(x), -2), y)[..., 0, :]


@replayable
def kron(x: Any, y: Any) -> Array:
    """Return the Kronecker product: the blocks x[i, j] * y, for any number of axes.

    >>> gnp.kron(gnp.array([1, 10]), gnp.array([1, 2]))
    Array([ 1,  2, 10, 20], dtype=int64)
    """
    x, y = promote_arrays("kron", x, y)
    ndim = max(x.ndim, y.ndim)
    sizes = [(1,) * (ndim - z.ndim) + z.shape for z in (x, y)]
    left = ops.reshape(x, tuple(m for n in sizes[0] for m in (n, 1)))
    right = ops.reshape(y, tuple(m for n in sizes[1] for m in (1, n)))
    return ops.reshape(left * right, tuple(math.prod(pair) for pair in zip(*sizes, strict=True)))


@replayable
def cross(
    x: Any, y: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Array:  # fmt: skip
    """Return the cross products of vectors of three numbers; of two, the third number of theirs. Axes broadcast.

    Args:
        axisa, axisb, axisc: the axes of the vectors in x, in y, and in the result.
        axis: all three.

    Raises:
        ShapeError: vectors of another size.

    >>> gnp.cross(gnp.array([1., 0., 0.]), gnp.array([0., 1., 0.]))
    Array([0., 0., 1.], dtype=float32)
    """
    x, y = promote_arrays("cross", x, y)
    places = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    x = ops.moveaxis(x, normalize_axis("cross", places[0], x.ndim), -1)
    y = ops.moveaxis(y, normalize_axis("cross", places[1], y.ndim), -1)
    if x.shape[-1] not in (2, 3) or y.shape[-1] not in (2, 3):
        got = f"{x.shape[-1]} and {y.shape[-1]}"
        raise ShapeError(message("cross", "vectors of two or three numbers", got, "Check the axes."))

    def minor(i: int, j: int) -> Array | None:
        terms = [ops.multiply(x[..., a], y[..., b]) for a, b in ((i, j), (j, i)) if a < x.shape[-1] and b < y.shape[-1]]
        if len(terms) == 2:
            return ops.subtract(*terms)
        return (terms[0] if i < x.shape[-1] and j < y.shape[-1] else -terms[0]) if terms else None

    third = minor(0, 1)
    assert third is not None
    if x.shape[-1] == y.shape[-1] == 2:
        return third
    parts = [minor(1, 2), minor(2, 0), third]
    out = ops.stack([p for p in parts if p is not None], -1)
    return ops.moveaxis(out, -1, normalize_axis("cross", places[2], out.ndim))
