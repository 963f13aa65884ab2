"""Grids, index arrays, ranges and structured matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.gather import constant_array
from gtrace.core.ops.operands import cast, counting, promote_arrays
from gtrace.core.ops.shape import as_int, as_shape, normalize_axis
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.trace.promotion import as_dtype, default_dtype

__all__ = [
    "c_", "diag_indices", "diag_indices_from", "fromfunction", "geomspace", "identity", "index_exp", "indices", "ix_",
    "logspace", "mgrid", "ogrid", "r_", "ravel_multi_index", "s_", "tri", "tril_indices", "tril_indices_from",
    "triu_indices", "triu_indices_from", "unravel_index", "vander",
]  # fmt: skip

# -- by indexing


def _range(part: Any) -> Array:
    """Return what a slice stands for: numbers by a step, or, with an imaginary step, so many with both ends."""
    if not isinstance(part, slice):
        return ops.array(part)
    start = 0 if part.start is None else part.start
    if isinstance(part.step, complex):
        return ops.linspace(start, part.stop, int(abs(part.step)))
    return ops.arange(start, part.stop, 1 if part.step is None else part.step)


class _Grid:
    """``mgrid[0:2, 0:3]`` is the coordinates of a grid; a step such as 5j asks for so many points, ends included."""

    def __init__(self, sparse: bool) -> None:
        self._sparse = sparse

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, tuple):
            return _range(key)
        if not key:
            return () if self._sparse else ops.full((0,), 0, default_dtype(int))
        axes = promote_arrays("grid", *[_range(part) for part in key])
        grid = ops.meshgrid(*axes, indexing="ij", sparse=self._sparse)
        return tuple(grid) if self._sparse else ops.stack(grid)


class _Joined:
    """``r_[1:4, 0, x]`` joins numbers, ranges and arrays along an axis; `c_` makes them columns first.

    With "r" or "c" before them a result of one dimension becomes a matrix of one row or column.
    """

    def __init__(self, axis: int, ndim: int, place: int) -> None:
        self._how = axis, ndim, place

    def __getitem__(self, key: Any) -> Array:
        axis, ndim, place = self._how
        parts = list(key) if isinstance(key, tuple) else [key]
        matrix = parts.pop(0) if parts and isinstance(parts[0], str) and parts[0] in ("r", "c") else None
        if parts and isinstance(parts[0], str):
            axis, ndim, place = _directive(parts.pop(0), place)
        arrays = []
        for part in parts:
            x = _range(part)
            missing = max(ndim - x.ndim, 0)
            # the axes of x come last, or from `place` on
            before = missing if place == -1 else min(place, missing) if place >= 0 else max(missing + place + 1, 0)
            arrays.append(ops.reshape(x, (1,) * before + x.shape + (1,) * (missing - before)))
        out = ops.concat(arrays, axis)
        return ops.expand_dims(out, 0 if matrix == "r" else 1) if matrix and out.ndim == 1 else out


def _directive(text: str, place: int) -> tuple[int, int, int]:
    try:
        numbers = [int(n) for n in text.split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 3:
        fix = 'Such as "0,2" for joining along axis 0 with at least two dimensions.'
        raise ArgumentError(message("r_", "up to three integers", repr(text), fix))
    axis, ndim, place = (*numbers, *(0, 1, place)[len(numbers) :])
    return axis, ndim, place


class _Index:
    """``s_[1:3, None]`` is the index itself, to be used later."""

    def __init__(self, as_tuple: bool) -> None:
        self._as_tuple = as_tuple

    def __getitem__(self, key: Any) -> Any:
        return key if isinstance(key, tuple) or not self._as_tuple else (key,)


mgrid, ogrid = _Grid(False), _Grid(True)
r_, c_ = _Joined(0, 1, -1), _Joined(-1, 2, 0)
s_, index_exp = _Index(False), _Index(True)

# -- index arrays


def indices(dimensions: Any, dtype: Any = None, sparse: bool = False) -> Any:
    """Return the indices of each element of an array of that shape, along a new first axis; int64.

    Args:
        sparse: a tuple of arrays that broadcast.

    >>> gnp.indices((2, 3)).shape
    (2, 2, 3)
    """
    kind = default_dtype(int) if dtype is None else as_dtype(dtype)
    sizes = as_shape("indices", dimensions)
    grid = ops.meshgrid(*[ops.arange(n, dtype=kind) for n in sizes], indexing="ij", sparse=sparse)
    if sparse:
        return tuple(grid)
    return ops.stack(grid) if grid else ops.array(numpy.zeros(0)).astype(kind)


def fromfunction(function: Callable[..., Any], shape: Any, *, dtype: Any = float, **kwargs: Any) -> Any:
    """Return function(i, j, ...) of the indices of an array of that shape.

    >>> gnp.fromfunction(lambda i, j: i + j, (2, 2))
    Array([[0., 1.],
           [1., 2.]], dtype=float32)
    """
    sizes = as_shape("fromfunction", shape)
    return function(*ops.meshgrid(*[ops.arange(n, dtype=dtype) for n in sizes], indexing="ij"), **kwargs)


@counting
def ix_(*sequences: Any) -> tuple[Array, ...]:
    """Return index arrays that broadcast, so that x[ix_(rows, columns)] is the block of these rows and columns.

    Args:
        sequences: integers of one dimension; booleans stand for the places where they hold.

    >>> [i.shape for i in gnp.ix_([0, 2], [1])]
    [(2, 1), (1, 1)]
    """
    out = []
    for k, given in enumerate(sequences):
        x = ops.array(given, dtype=torch.int64) if isinstance(given, (list, tuple)) and not given else ops.array(given)
        if x.ndim != 1:
            raise ShapeError(message("ix_", "sequences of one dimension", repr(x.aval), "Use gt.ravel."))
        x = ops.nonzero(x)[0] if x.aval.dtype is torch.bool else x
        out.append(ops.reshape(x, tuple(x.size if j == k else 1 for j in range(len(sequences)))))
    return tuple(out)


@counting
def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """Return the indices of the main diagonal of an array of `ndim` axes of size n.

    >>> gnp.diag_indices(2)
    (Array([0, 1], dtype=int64), Array([0, 1], dtype=int64))
    """
    return (ops.arange(as_int("diag_indices", "n", n)),) * as_int("diag_indices", "ndim", ndim)


def diag_indices_from(x: Any) -> tuple[Array, ...]:
    """Return the indices of the main diagonal of x, whose axes have one size.

    >>> gnp.diag_indices_from(gnp.ones((2, 2)))[0]
    Array([0, 1], dtype=int64)
    """
    x = lift("diag_indices_from", x)
    if x.ndim < 2 or len(set(x.shape)) != 1:
        raise ShapeError(message("diag_indices_from", "two or more axes of one size", repr(x.aval), "Slice it first."))
    return diag_indices(x.shape[0], x.ndim)


def _triangle(function: Callable[..., Any], *sizes: Any) -> tuple[Array, Array]:
    rows, columns = function(*[None if n is None else as_int("triangle", "size", n) for n in sizes])
    cpu = torch.device("cpu")
    return constant_array(rows.astype(numpy.int64), cpu), constant_array(columns.astype(numpy.int64), cpu)


@counting
def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the rows and columns of the elements on and below diagonal k of an (n, m) matrix.

    >>> gnp.tril_indices(2)
    (Array([0, 1, 1], dtype=int64), Array([0, 0, 1], dtype=int64))
    """
    return _triangle(numpy.tril_indices, n, k, m)


@counting
def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the rows and columns of the elements on and above diagonal k of an (n, m) matrix.

    >>> gnp.triu_indices(2)
    (Array([0, 0, 1], dtype=int64), Array([0, 1, 1], dtype=int64))
    """
    return _triangle(numpy.triu_indices, n, k, m)


def _matrix_sizes(op: str, x: Any) -> tuple[int, int]:
    x = lift(op, x)
    if x.ndim != 2:
        raise ShapeError(message(op, "a matrix", repr(x.aval), "Pass one of two dimensions."))
    return x.shape


@counting
def tril_indices_from(x: Any, k: int = 0) -> tuple[Array, Array]:
    """Return the rows and columns of the elements of a matrix on and below diagonal k.

    >>> gnp.tril_indices_from(gnp.ones((2, 2)))[0]
    Array([0, 1, 1], dtype=int64)
    """
    rows, columns = _matrix_sizes("tril_indices_from", x)
    return tril_indices(rows, k, columns)


@counting
def triu_indices_from(x: Any, k: int = 0) -> tuple[Array, Array]:
    """Return the rows and columns of the elements of a matrix on and above diagonal k.

    >>> gnp.triu_indices_from(gnp.ones((2, 2)))[0]
    Array([0, 0, 1], dtype=int64)
    """
    rows, columns = _matrix_sizes("triu_indices_from", x)
    return triu_indices(rows, k, columns)


@counting
def unravel_index(indices: Any, shape: Any) -> tuple[Array, ...]:
    """Return the index along each axis of places in a flattened array of that shape.

    Negative places count from the end. Those outside become the nearest, as in JAX, because nothing can check them.

    >>> gnp.unravel_index(gnp.array([1, 5]), (2, 3))
    (Array([0, 1], dtype=int64), Array([1, 2], dtype=int64))
    """
    traced = isinstance(shape, tuple) and any(isinstance(n, Array) for n in shape)
    sizes: Sequence[Any] = shape if traced else as_shape("unravel_index", shape)
    out = []
    total = math.prod(sizes)
    rest = ops.clip(cast(ops.array(indices), torch.int64), -total, total - 1)
    for n in reversed(sizes):
        count = ops.maximum(n, 1) if traced else max(n, 1)
        out.append(rest % count)
        rest = rest // count
    return tuple(reversed(out))


@counting
def ravel_multi_index(multi_index: Any, dims: Any, mode: str | None = None, order: str = "C") -> Array:
    """Return the places in a flattened array of shape `dims` of an index along each axis.

    Args:
        mode: for an index outside its axis. ``"wrap"``: counted around; ``"clip"``: the nearest; None: there is none,
            which nothing checks.
        order: "C": the last axis is the fastest; "F": the first one.

    Raises:
        ShapeError: not one index for each axis.
        ArgumentError: another mode or order.

    >>> gnp.ravel_multi_index((gnp.array([0, 1]), gnp.array([1, 2])), (2, 3))
    Array([1, 5], dtype=int64)
    """
    sizes = as_shape("ravel_multi_index", dims)
    axes = promote_arrays("ravel_multi_index", *[ops.array(x) for x in multi_index])
    if len(axes) != len(sizes):
        got = f"{len(axes)} for {sizes}"
        raise ShapeError(message("ravel_multi_index", "an index for each axis", got, "Match them."))
    if mode not in (None, "wrap", "clip") or order not in ("C", "F"):
        got = f"{mode!r} and {order!r}"
        raise ArgumentError(message("ravel_multi_index", "wrap or clip as mode, C or F as order", got, "Check both."))
    if mode is not None:
        axes = [
            ops.remainder(x, n) if mode == "wrap" else ops.clip(x, 0, n - 1) for x, n in zip(axes, sizes, strict=True)
        ]
    if order == "F":
        sizes, axes = sizes[::-1], axes[::-1]
    out = axes[0]
    for n, index in zip(sizes[1:], axes[1:], strict=True):
        out = ops.multiply(out, n) + index
    return out


# -- ranges and matrices


def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0
) -> Array:
    """Return `num` numbers from base ** start to base ** stop, with evenly spaced logarithms.

    Args:
        base: a number or an array, which broadcasts with `start` and `stop`.

    >>> gnp.logspace(0, 2, 3)
    Array([  1.,  10., 100.], dtype=float32)
    """
    base = lift("logspace", base)
    if base.ndim:
        start, stop, base = ops.broadcast_arrays(*promote_arrays("logspace", start, stop, base))
        base = ops.expand_dims(base, axis)
    out = ops.power(base, ops.linspace(start, stop, num, endpoint, axis=axis))
    return out if dtype is None else cast(out, as_dtype(dtype))


def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Array:  # fmt: skip
    """Return `num` numbers from `start` to `stop`, both of one sign, each the same multiple of the one before.

    >>> gnp.round(gnp.geomspace(1, 100, 3), 3)
    Array([  1.,  10., 100.], dtype=float32)
    """
    a, b = promote_arrays("geomspace", ops.array(start), ops.array(stop), floating=True)
    powers = ops.linspace(0.0, ops.log10(b / a), num, endpoint)
    out = a * ops.power(10.0, powers)  # whole powers of 10 come out whole
    # both ends are exact, also beside infinities
    first, last = (ops.broadcast_to(end, out.shape[1:])[None] for end in (a, b))
    if endpoint and len(powers) > 1:
        out = ops.concat([first, out[1:-1], last])
    elif len(powers):
        out = ops.concat([first, out[1:]])
    out = ops.moveaxis(out, 0, normalize_axis("geomspace", axis, out.ndim))
    return out if dtype is None else cast(out, as_dtype(dtype))


def identity(n: int, dtype: Any = None) -> Array:
    """Return the identity matrix of size n.

    >>> gnp.identity(2)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    return ops.eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Array:  # noqa: N803 - NumPy's names
    """Return an (N, M) matrix with ones on and below diagonal k, and zeros above; M is N by default.

    >>> gnp.tri(2)
    Array([[1., 0.],
           [1., 1.]], dtype=float32)
    """
    return ops.tril(ops.ones((N, N if M is None else M), dtype), k)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Array:  # noqa: N803 - NumPy's name
    """Return the powers of x as rows of a matrix, in descending order unless `increasing`.

    Args:
        N: how many; None: as many as x has elements.

    >>> gnp.vander(gnp.array([2., 3.]), 3)
    Array([[4., 2., 1.],
           [9., 3., 1.]], dtype=float32)
    """
    x = lift("vander", x)
    if x.ndim != 1:
        raise ShapeError(message("vander", "one dimension", repr(x.aval), "Use gt.ravel."))
    count = x.size if N is None else as_int("vander", "N", N)
    powers = [x**k for k in range(count)]
    if not powers:
        return ops.reshape(x[:0], (0, 0)) if not x.size else ops.ones((x.size, 0), x.aval.dtype)
    out = ops.stack(promote_arrays("vander", *powers), 1)
    return out if increasing else ops.flip(out, 1)
