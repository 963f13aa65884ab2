"""Slices with fixed bounds, and slices of fixed sizes with computed starts."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.errors import BoundsError, DtypeError, ShapeError, message
from gtrace.core.ops.gather import index_axis
from gtrace.core.ops.index import getitem
from gtrace.core.ops.index_bounds import clamped
from gtrace.core.ops.join_split import slice_bounds, slice_update
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import as_int, as_shape, normalize_axis
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import distinct
from gtrace.core.trace.convert import lift, python_scalar
from gtrace.core.trace.replayable import replayable_with_places

__all__ = [
    "dynamic_index_in_dim", "dynamic_slice", "dynamic_slice_in_dim", "dynamic_update_index_in_dim",
    "dynamic_update_slice", "dynamic_update_slice_in_dim", "index_in_dim", "slice", "slice_in_dim",
]  # fmt: skip

# -- fixed bounds


def slice(  # noqa: A001 - JAX's name
    operand: Any, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
) -> Array:
    """Return ``operand[start:limit:stride]`` for each axis, with bounds in range.

    Raises:
        ShapeError: there is not one bound per axis, not 0 <= start <= limit <= size, or a stride is below 1.

    >>> gt.lax.slice(gt.arange(6), (1,), (6,), (2,))
    Array([1, 3, 5], dtype=int64)
    """
    x = lift("slice", operand)
    starts, limits = as_shape("slice", start_indices), as_shape("slice", limit_indices)
    steps = (1,) * x.ndim if strides is None else as_shape("slice", strides)
    if not len(starts) == len(limits) == len(steps) == x.ndim or not all(
        0 <= a <= b <= n and step > 0 for a, b, step, n in zip(starts, limits, steps, x.shape, strict=True)
    ):
        got = f"{starts}, {limits} and {steps} for {x.aval!r}"
        expected = "for each axis 0 <= start <= limit <= size and a stride >= 1"
        raise ShapeError(message("slice", expected, got, "Use x[a:b] for bounds as in Python."))
    return slice_bounds(x, tuple(zip(starts, limits, steps, strict=True)))


def slice_in_dim(
    operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0
) -> Array:
    """Return ``operand[start_index:limit_index:stride]`` along one axis; bounds are as in Python.

    Raises:
        ShapeError: there is no such axis, or the stride is 0.

    >>> gt.lax.slice_in_dim(gt.arange(6), 1, -1, 2)
    Array([1, 3], dtype=int64)
    """
    x = lift("slice_in_dim", operand)
    place = normalize_axis("slice_in_dim", axis, x.ndim)
    return getitem(x, (*(builtins.slice(None),) * place, builtins.slice(start_index, limit_index, stride)))


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """Return the slice at a fixed index of one axis, which stays with size 1 unless `keepdims` is false.

    Raises:
        BoundsError: the index is out of range.
        ShapeError: there is no such axis.

    >>> gt.lax.index_in_dim(gt.array([1, 2, 3]), -1)
    Array([3], dtype=int64)
    """
    x, place = lift("index_in_dim", operand), as_int("index_in_dim", "index", index)
    axis = normalize_axis("index_in_dim", axis, x.ndim)
    size = x.shape[axis]
    if not -size <= place < size:
        got = f"{place} for axis {axis} of {x.aval!r}"
        raise BoundsError(message("index_in_dim", f"an index in [{-size}, {size})", got, "The index is out of range."))
    place %= size
    out = slice_bounds(x, tuple((place, place + 1, 1) if k == axis else (0, n, 1) for k, n in enumerate(x.shape)))
    if not keepdims:
        return ops.squeeze(out, axis)
    return distinct(x) if out is x else out


# -- computed starts


def _starts(name: str, x: Array, start_indices: Any, sizes: tuple[int, ...]) -> list[int | Array]:
    """Return the starts, counted from the front and moved so that the slice lies inside x.

    Raises:
        ShapeError: there is not one start and size per axis, or a size is larger than the axis.
        DtypeError: the starts are not integers.
    """
    if isinstance(start_indices, (tuple, list)):
        given = list(start_indices)
    else:
        vector = lift(name, start_indices)
        given = (
            [ops.squeeze(index_in_dim(vector, k), 0) for k in range(vector.shape[0])] if vector.ndim == 1 else [vector]
        )
    if not len(given) == len(sizes) == x.ndim or any(not 0 <= n <= m for n, m in zip(sizes, x.shape, strict=True)):
        got = f"{len(given)} starts and sizes {sizes} for {x.aval!r}"
        raise ShapeError(message(name, "a start for each axis, and sizes within the axes", got, "Check the sizes."))
    out: list[int | Array] = []
    for value, size, whole in zip(given, sizes, x.shape, strict=True):
        number = None if type(value) is Array else python_scalar(value)
        if number is not None:
            start = as_int(name, "start", value)
            start = start + whole if start < 0 else start
            if 0 <= start <= whole - size or size == whole:
                out.append(0 if size == whole else start)
                continue
        index = lift(name, value)
        if index.shape or index.aval.floating or index.aval.dtype is torch.bool:
            raise DtypeError(message(name, "integer scalars as starts", repr(index.aval), "Use x.astype(gt.int64)."))
        index = cast(index, torch.int64)
        index = ops.where(index < 0, index + whole, index)
        out.append(0 if size == whole else clamped(index, whole - size + 1, 0))
    return out


@replayable_with_places
def dynamic_slice(operand: Any, start_indices: Any, slice_sizes: Sequence[int]) -> Array:
    """Return a slice of fixed size; its starts may be traced.

    A slice that exceeds the array is moved inside. Negative starts count from the end.

    Args:
        operand: an array.
        start_indices: an integer scalar for each axis, or a vector of them.
        slice_sizes: Python integers, one for each axis.

    Raises:
        ShapeError: there is not one start and size per axis, or a size is larger than the axis.
        DtypeError: the starts are not integers.

    >>> gt.lax.dynamic_slice(gt.arange(5), (gt.array(4),), (2,))
    Array([3, 4], dtype=int64)
    """
    x, sizes = lift("dynamic_slice", operand), as_shape("dynamic_slice", slice_sizes)
    starts = _starts("dynamic_slice", x, start_indices, sizes)
    fixed = tuple(
        (0, whole, 1) if isinstance(start, Array) else (start, start + size, 1)
        for start, size, whole in zip(starts, sizes, x.shape, strict=True)
    )
    x = slice_bounds(x, fixed)
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if isinstance(start, Array):
            x = index_axis(x, ops.arange(size, device=x.aval.device) + start, axis)
    return x


@replayable_with_places
def dynamic_slice_in_dim(operand: Any, start_index: Any, slice_size: int, axis: int = 0) -> Array:
    """Return a slice of fixed size along one axis; its start may be traced. See `dynamic_slice`.

    >>> gt.lax.dynamic_slice_in_dim(gt.arange(5), gt.array(1), 2)
    Array([1, 2], dtype=int64)
    """
    x = lift("dynamic_slice_in_dim", operand)
    axis = normalize_axis("dynamic_slice_in_dim", axis, x.ndim)
    size = as_int("dynamic_slice_in_dim", "slice_size", slice_size)
    starts = [start_index if k == axis else 0 for k in range(x.ndim)]
    return dynamic_slice(x, starts, [size if k == axis else n for k, n in enumerate(x.shape)])


@replayable_with_places
def dynamic_index_in_dim(operand: Any, index: Any, axis: int = 0, keepdims: bool = True) -> Array:
    """Return the slice at an index of one axis; the index may be traced, and is moved inside. See `dynamic_slice`.

    >>> gt.lax.dynamic_index_in_dim(gt.arange(5), gt.array(9), keepdims=False)
    Array(4, dtype=int64)
    """
    out = dynamic_slice_in_dim(operand, index, 1, axis)
    return out if keepdims else ops.squeeze(out, axis)


@replayable_with_places
def dynamic_update_slice(operand: Any, update: Any, start_indices: Any) -> Array:
    """Return the array with a slice replaced; the starts may be traced.

    A slice that exceeds the array is moved inside. Negative starts count from the end.

    Args:
        operand: an array.
        update: the new values, with as many axes; the result has the dtype of the operand.
        start_indices: an integer scalar for each axis, or a vector of them.

    Raises:
        ShapeError: the update is larger than the array, or there is not one start per axis.
        DtypeError: the starts are not integers, or a floating update is for integers.

    >>> gt.lax.dynamic_update_slice(gt.zeros(4), gt.ones(2), (gt.array(3),))
    Array([0., 0., 1., 1.], dtype=float32)
    """
    name = "dynamic_update_slice"
    x, u = lift(name, operand), lift(name, update)
    if u.ndim != x.ndim:
        raise ShapeError(message(name, "an update with as many axes", f"{u.aval!r} for {x.aval!r}", "Use expand_dims."))
    if u.aval.floating and not x.aval.floating:
        raise DtypeError(message(name, f"an update for {x.aval!r}", repr(u.aval), "Use x.astype(gt.float32)."))
    starts, u = _starts(name, x, start_indices, u.shape), cast(u, x.aval.dtype)
    moving = [k for k, start in enumerate(starts) if isinstance(start, Array)]
    if not moving:
        return slice_update(x, u, tuple((int(s), int(s) + n, 1) for s, n in zip(starts, u.shape, strict=True)))
    places = [ops.arange(n, device=x.aval.device) + start for n, start in zip(u.shape, starts, strict=True)]
    if len(moving) == 1 and all(u.shape[k] == x.shape[k] for k in range(x.ndim) if k not in moving):
        return x.at[(*(builtins.slice(None),) * moving[0], places[moving[0]])].set(u, mode="promise_in_bounds")
    # an open mesh: axis k of the update runs over the indices of axis k
    mesh = [ops.expand_dims(p, tuple(j for j in range(x.ndim) if j != k)) for k, p in enumerate(places)]
    return x.at[tuple(mesh)].set(u, mode="promise_in_bounds")


@replayable_with_places
def dynamic_update_slice_in_dim(operand: Any, update: Any, start_index: Any, axis: int = 0) -> Array:
    """Return the array with a slice along one axis replaced; its start may be traced. See `dynamic_update_slice`.

    The update may be smaller than the array along the other axes too; there it starts at 0.

    >>> gt.lax.dynamic_update_slice_in_dim(gt.zeros(4), gt.ones(2), gt.array(1))
    Array([0., 1., 1., 0.], dtype=float32)
    """
    x = lift("dynamic_update_slice_in_dim", operand)
    axis = normalize_axis("dynamic_update_slice_in_dim", axis, x.ndim)
    return dynamic_update_slice(x, update, [start_index if k == axis else 0 for k in range(x.ndim)])


@replayable_with_places
def dynamic_update_index_in_dim(operand: Any, update: Any, index: Any, axis: int = 0) -> Array:
    """Return the array with the slice at an index of one axis replaced. See `dynamic_update_slice`.

    Args:
        update: the new values, with the axis of size 1 or without it.

    >>> gt.lax.dynamic_update_index_in_dim(gt.zeros(3), 5.0, gt.array(1), axis=0)
    Array([0., 5., 0.], dtype=float32)
    """
    name = "dynamic_update_index_in_dim"
    x, u = lift(name, operand), lift(name, update)
    axis = normalize_axis(name, axis, x.ndim)
    if u.ndim == x.ndim - 1:
        u = ops.reshape(u, (*u.shape[:axis], 1, *u.shape[axis:]))
    if u.ndim != x.ndim or u.shape[axis] != 1:
        got = f"{u.aval!r} for axis {axis} of {x.aval!r}"
        raise ShapeError(message(name, "an update of size 1 along the axis", got, "Use dynamic_update_slice_in_dim."))
    return dynamic_update_slice_in_dim(x, u, index, axis)
