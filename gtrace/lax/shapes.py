"""The functions of jax.lax that move elements or make constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from gtrace.core import ops
from gtrace.core.base.errors import ShapeError, message
from gtrace.core.ops.declare import Array, lift
from gtrace.core.ops.join_split import slice_axis, slice_bounds
from gtrace.core.ops.shape import as_int, as_shape, normalize_axis

__all__ = [
    "broadcast", "broadcast_in_dim", "broadcasted_iota", "collapse", "concatenate", "expand_dims", "full", "full_like",
    "iota", "pad", "reshape", "rev", "squeeze", "transpose",
]  # fmt: skip

full = ops.full


def full_like(x: Any, fill_value: Any, dtype: Any = None, shape: Any = None) -> Array:
    """Return an array of one value, by default with the shape and dtype of x.

    >>> gt.lax.full_like(gt.zeros(2), 7, shape=(3,))
    Array([7., 7., 7.], dtype=float32)
    """
    x = lift("full_like", x)
    return ops.full(x.shape if shape is None else shape, fill_value, dtype or x.aval.dtype, device=x.aval.device)


def iota(dtype: Any, size: int) -> Array:
    """Return 0, 1, ... up to, but excluding, `size`.

    >>> gt.lax.iota(gt.float32, 3)
    Array([0., 1., 2.], dtype=float32)
    """
    return ops.arange(as_int("iota", "size", size), dtype=dtype)


def broadcasted_iota(dtype: Any, shape: Any, dimension: int) -> Array:
    """Return an array whose elements are their own index along one axis.

    >>> gt.lax.broadcasted_iota(gt.int32, (2, 2), 0)
    Array([[0, 0],
           [1, 1]], dtype=int32)
    """
    sizes = as_shape("broadcasted_iota", shape)
    axis = normalize_axis("broadcasted_iota", dimension, len(sizes))
    return broadcast_in_dim(iota(dtype, sizes[axis]), sizes, (axis,))


def reshape(operand: Any, new_sizes: Any, dimensions: Sequence[int] | None = None) -> Array:
    """Permute the axes by `dimensions`, then return the elements in row-major order with another shape.

    >>> gt.lax.reshape(gt.array([[1, 2], [3, 4]]), (4,), (1, 0))
    Array([1, 3, 2, 4], dtype=int64)
    """
    return ops.reshape(operand if dimensions is None else ops.permute_dims(operand, dimensions), new_sizes)


def transpose(operand: Any, permutation: Sequence[int]) -> Array:
    """Return the array with its axes permuted.

    >>> gt.lax.transpose(gt.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    return ops.permute_dims(operand, permutation)


def squeeze(array: Any, dimensions: Sequence[int]) -> Array:
    """Return the array without these axes, whose size is 1.

    >>> gt.lax.squeeze(gt.zeros((1, 3, 1)), (0,)).shape
    (3, 1)
    """
    return ops.squeeze(array, tuple(dimensions))


def expand_dims(array: Any, dimensions: Sequence[int]) -> Array:
    """Return the array with new axes of size 1 at these positions of the result.

    >>> gt.lax.expand_dims(gt.zeros(3), (0, 2)).shape
    (1, 3, 1)
    """
    return ops.expand_dims(array, tuple(dimensions))


def rev(operand: Any, dimensions: Sequence[int]) -> Array:
    """Return the array with the order of elements reversed along these axes.

    >>> gt.lax.rev(gt.arange(3), (0,))
    Array([2, 1, 0], dtype=int64)
    """
    return ops.flip(operand, tuple(dimensions))


def concatenate(operands: Sequence[Any], dimension: int) -> Array:
    """Return the arrays joined along an axis.

    >>> gt.lax.concatenate([gt.zeros(1), gt.ones(2)], 0)
    Array([0., 1., 1.], dtype=float32)
    """
    return ops.concat(operands, as_int("concatenate", "dimension", dimension))


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Array:
    """Return the array with the axes from start up to, but excluding, stop merged into one.

    Raises:
        ShapeError: the bounds are not those of axes.

    >>> gt.lax.collapse(gt.zeros((2, 3, 4)), 1).shape
    (2, 12)
    """
    x = lift("collapse", operand)
    start, stop, _ = slice(start_dimension, stop_dimension).indices(x.ndim)
    if start >= stop:
        got = f"{start_dimension} and {stop_dimension} for {x.aval!r}"
        raise ShapeError(message("collapse", "a start before the stop", got, "Name at least one axis."))
    return ops.reshape(x, (*x.shape[:start], math.prod(x.shape[start:stop]), *x.shape[stop:]))


def broadcast(operand: Any, sizes: Sequence[int]) -> Array:
    """Return the array repeated along new leading axes of these sizes.

    >>> gt.lax.broadcast(gt.zeros(3), (2, 1)).shape
    (2, 1, 3)
    """
    x = lift("broadcast", operand)
    return ops.broadcast_to(x, (*as_shape("broadcast", sizes), *x.shape))


def broadcast_in_dim(operand: Any, shape: Any, broadcast_dimensions: Sequence[int]) -> Array:
    """Return the array broadcast to `shape`; its axes become the given axes of the result.

    Raises:
        ShapeError: the axes do not match those of the operand, or a size is neither 1 nor that of the result.

    >>> gt.lax.broadcast_in_dim(gt.array([1, 2]), (2, 2), (0,))
    Array([[1, 1],
           [2, 2]], dtype=int64)
    """
    x, target = lift("broadcast_in_dim", operand), as_shape("broadcast_in_dim", shape)
    axes = as_shape("broadcast_in_dim", broadcast_dimensions)
    if len(axes) != x.ndim or len(set(axes)) != len(axes) or not all(0 <= a < len(target) for a in axes):
        got = f"{axes} for {x.aval!r} and {target}"
        raise ShapeError(message("broadcast_in_dim", "an axis of the result for each axis", got, "Check the axes."))
    order = sorted(range(x.ndim), key=axes.__getitem__)
    x, axes = ops.permute_dims(x, order), tuple(sorted(axes))
    sizes = [1] * len(target)
    for axis, size in zip(axes, x.shape, strict=True):
        sizes[axis] = size
    return ops.broadcast_to(ops.reshape(x, tuple(sizes)), target)


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Array:
    """Return the array with elements added around it and between its elements, or removed at its ends.

    Args:
        operand: an array.
        padding_value: a number or 0-d array.
        padding_config: (low, high, interior) for each axis: elements added before, after, and between elements.
            Negative low and high remove elements, after the others were added.

    Raises:
        ShapeError: there are not three numbers per axis, an interior is negative, or too many elements are removed.

    >>> gt.lax.pad(gt.array([1., 2., 3.]), 0.0, [(-1, 2, 1)])
    Array([0., 2., 0., 3., 0., 0.], dtype=float32)
    """
    x = lift("pad", operand)
    if numpy.ndim(padding_value):
        raise ShapeError(message("pad", "a number as padding_value", repr(padding_value), "Pass a 0-d array."))
    config = [as_shape("pad", each) for each in padding_config]
    sizes = [
        n + max(n - 1, 0) * each[2] + each[0] + each[1] if len(each) == 3 else -1
        for n, each in zip(x.shape, config, strict=False)
    ]
    if len(config) != x.ndim or any(n < 0 for n in sizes) or any(each[2] < 0 for each in config):
        got = f"{config} for {x.aval!r}"
        expected = "(low, high, interior >= 0) for each axis, and a result of sizes >= 0"
        raise ShapeError(message("pad", expected, got, "Check the numbers."))
    for axis, (_, _, interior) in enumerate(config):
        size = x.shape[axis]
        if interior and size > 1:
            # each element followed by its padding, as a row; the last row's is dropped
            spread = ops.expand_dims(x, axis + 1)
            widths = [(0, interior if k == axis + 1 else 0) for k in range(spread.ndim)]
            spread = ops.pad(spread, widths, constant_values=padding_value)
            flat = ops.reshape(spread, (*x.shape[:axis], size * (interior + 1), *x.shape[axis + 1 :]))
            x = slice_axis(flat, axis, 0, size * (interior + 1) - interior)
    widths = [(max(low, 0), max(high, 0)) for low, high, _ in config]
    if any(low or high for low, high in widths):
        x = ops.pad(x, widths, constant_values=padding_value)
    return slice_bounds(
        x, tuple((max(-low, 0), n - max(-high, 0), 1) for n, (low, high, _) in zip(x.shape, config, strict=True))
    )
