"""Reductions, running reductions and sorting, as in jax.lax: integers keep their dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.core.ops.declare import Array, lift
from gtrace.core.ops.join_split import slice_axis
from gtrace.core.ops.operands import cast, counting
from gtrace.core.ops.shape import as_int, as_shape, normalize_axis
from gtrace.core.trace.promotion import as_dtype

__all__ = [
    "argmax", "argmin", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "reduce_max",
    "reduce_min", "reduce_prod", "reduce_sum",  "sort", "sort_key_val", "top_k",
]  # fmt: skip

# -- reductions


def reduce_sum(operand: Any, axes: Sequence[int]) -> Array:
    """Return the sum over `axes`, in the dtype of the operand.

    >>> gt.lax.reduce_sum(gt.ones((2, 3), dtype=gt.int32), (0,))
    Array([2, 2, 2], dtype=int32)
    """
    x = _number("reduce_sum", operand)
    return cast(ops.sum(x, as_shape("reduce_sum", axes)), x.aval.dtype)


def reduce_prod(operand: Any, axes: Sequence[int]) -> Array:
    """Return the product over `axes`, in the dtype of the operand.

    >>> gt.lax.reduce_prod(gt.array([2., 3.]), (0,))
    Array(6., dtype=float32)
    """
    x = _number("reduce_prod", operand)
    return cast(ops.prod(x, as_shape("reduce_prod", axes)), x.aval.dtype)


def _number(name: str, operand: Any) -> Array:
    x = lift(name, operand)
    if x.aval.dtype is torch.bool:
        raise DtypeError(message(name, "numbers, not booleans", repr(x.aval), "Use x.astype(gt.int64)."))
    return x


def reduce_max(operand: Any, axes: Sequence[int]) -> Array:
    """Return the largest element over `axes`.

    >>> gt.lax.reduce_max(gt.array([[1, 5], [3, 2]]), (0,))
    Array([3, 5], dtype=int64)
    """
    return _extreme("reduce_max", ops.max, operand, axes)


def reduce_min(operand: Any, axes: Sequence[int]) -> Array:
    """Return the smallest element over `axes`.

    >>> gt.lax.reduce_min(gt.array([[1, 5], [3, 2]]), (0,))
    Array([1, 2], dtype=int64)
    """
    return _extreme("reduce_min", ops.min, operand, axes)


def _extreme(name: str, function: Callable[..., Array], operand: Any, axes: Sequence[int]) -> Array:
    x, places = lift(name, operand), as_shape(name, axes)
    if all(x.shape[k] for k in places):
        return function(x, places)
    kind = x.aval.dtype
    if kind is torch.bool:
        return ops.any(x, places) if function is ops.max else ops.all(x, places)
    if x.aval.floating:
        ends = -math.inf, math.inf
    else:
        ends = torch.iinfo(kind).min, torch.iinfo(kind).max
    return function(x, places, initial=ends[0] if function is ops.max else ends[1])


def argmax(operand: Any, axis: int, index_dtype: Any = torch.int64) -> Array:
    """Return the index of the largest element along `axis`.

    >>> gt.lax.argmax(gt.array([1., 3., 2.]), 0, gt.int32)
    Array(1, dtype=int32)
    """
    return cast(ops.argmax(operand, as_int("argmax", "axis", axis)), as_dtype(index_dtype))


def argmin(operand: Any, axis: int, index_dtype: Any = torch.int64) -> Array:
    """Return the index of the smallest element along `axis`.

    >>> gt.lax.argmin(gt.array([2., 1., 3.]), 0, gt.int32)
    Array(1, dtype=int32)
    """
    return cast(ops.argmin(operand, as_int("argmin", "axis", axis)), as_dtype(index_dtype))


# -- running reductions


def cumsum(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
    """Return the running sums along `axis`, from its end if `reverse`, in the dtype of the operand.

    >>> gt.lax.cumsum(gt.array([1., 2., 3.]), reverse=True)
    Array([6., 5., 3.], dtype=float32)
    """
    return _running(ops.cumsum, _number("cumsum", operand), axis, reverse)


def cumprod(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
    """Return the running products along `axis`, from its end if `reverse`, in the dtype of the operand.

    >>> gt.lax.cumprod(gt.array([1., 2., 3.]))
    Array([1., 2., 6.], dtype=float32)
    """
    return _running(ops.cumprod, _number("cumprod", operand), axis, reverse)


def _running(function: Callable[..., Array], x: Array, axis: int, reverse: bool) -> Array:
    """Return running sums or products in the dtype of `x`."""
    axis = normalize_axis(function.__name__, axis, x.ndim)
    out = function(ops.flip(x, axis) if reverse else x, axis, dtype=x.aval.dtype)
    return ops.flip(out, axis) if reverse else out


def cummax(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
    """Return the running maximum along `axis`, from its end if `reverse`.

    >>> gt.lax.cummax(gt.array([1., 3., 2.]))
    Array([1., 3., 3.], dtype=float32)
    """
    return ops.cummax(operand, axis, reverse=bool(reverse))


def cummin(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
    """Return the running minimum along `axis`, from its end if `reverse`.

    >>> gt.lax.cummin(gt.array([2., 3., 1.]))
    Array([2., 2., 1.], dtype=float32)
    """
    return ops.cummin(operand, axis, reverse=bool(reverse))


def cumlogsumexp(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
    """Return the logarithms of the running sums of exp(x) along `axis`, without overflow.

    >>> gt.round(gt.lax.cumlogsumexp(gt.array([1000., 1000.])), 2)
    Array([1000.  , 1000.69], dtype=float32)
    """
    return ops.cumlogsumexp(operand, axis, reverse=bool(reverse))


# -- order


@counting
def top_k(operand: Any, k: int) -> tuple[Array, Array]:
    """Return the k largest elements along the last axis in descending order, and their int64 indices.

    Equal elements keep their order. The values are differentiable.

    Raises:
        ShapeError: there are fewer than k elements, or no axis.

    >>> gt.lax.top_k(gt.array([1., 5., 3.]), 2)
    (Array([5., 3.], dtype=float32), Array([1, 2], dtype=int64))
    """
    x, count = lift("top_k", operand), as_int("top_k", "k", k)
    if not x.ndim or not 0 <= count <= x.shape[-1]:
        raise ShapeError(
            message("top_k", "a k of at most the last size", f"{count} for {x.aval!r}", "Pass a smaller k.")
        )
    places = slice_axis(ops.argsort(x, -1, descending=True), x.ndim - 1, 0, count)
    return ops.take_along_axis(x, places, -1), places


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """Return an array sorted along an axis, or several arrays in the order of the first.

    Args:
        operand: an array, or a tuple of arrays of one shape.
        dimension: the axis.
        is_stable: ignored; equal elements always keep their order.
        num_keys: the number of arrays that are compared, in order.

    Returns:
        An array or a tuple, like the operand.

    Raises:
        ShapeError: the arrays have different shapes.
        ArgumentError: there are no arrays, or `num_keys` exceeds their number.

    >>> gt.lax.sort((gt.array([2, 1, 2]), gt.array([3, 4, 1])), num_keys=2)
    (Array([1, 2, 2], dtype=int64), Array([4, 1, 3], dtype=int64))
    """
    if not isinstance(operand, (tuple, list)):
        return ops.sort(operand, as_int("sort", "dimension", dimension))
    arrays = [lift("sort", x) for x in operand]
    count = as_int("sort", "num_keys", num_keys)
    if not 1 <= count <= len(arrays):
        got = f"{count} keys of {len(arrays)} arrays"
        raise ArgumentError(message("sort", "at least one key, and no more than arrays", got, "Check num_keys."))
    if len({x.shape for x in arrays}) > 1:
        got = " and ".join(repr(x.aval) for x in arrays)
        raise ShapeError(message("sort", "arrays of one shape", got, "Broadcast them first."))
    axis = normalize_axis("sort", dimension, arrays[0].ndim)
    # sorting is stable: sort by the last key first
    order = ops.argsort(arrays[count - 1], axis)
    for key in reversed(arrays[: count - 1]):
        order = ops.take_along_axis(order, ops.argsort(ops.take_along_axis(key, order, axis), axis), axis)
    return tuple(ops.take_along_axis(x, order, axis) for x in arrays)


def sort_key_val(keys: Any, values: Any, dimension: int = -1, is_stable: bool = True) -> tuple[Array, Array]:
    """Return the sorted keys along an axis, and the values in the order of their keys.

    >>> gt.lax.sort_key_val(gt.array([2, 1]), gt.array([10, 20]))
    (Array([1, 2], dtype=int64), Array([20, 10], dtype=int64))
    """
    return sort((keys, values), dimension, is_stable)
