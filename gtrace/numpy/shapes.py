"""Arrays joined, cut, turned and resized, under NumPy's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, BoundsError, ShapeError, message
from gtrace.core.ops.gather import index_axis, take_constant
from gtrace.core.ops.index_split import as_index
from gtrace.core.ops.join_split import slice_axis, slice_update
from gtrace.core.ops.ndarray_methods import diagonal, diagonal_bounds
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import as_int, as_sizes, normalize_axes, normalize_axis
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import distinct
from gtrace.core.trace.convert import lift
from gtrace.core.trace.force import is_placeholder, whole
from gtrace.core.trace.replayable import replayable
from gtrace.numpy.filling import like

__all__ = [
    "append", "array_split", "atleast_1d", "atleast_2d", "atleast_3d", "block", "column_stack", "copy", "delete",
    "diag", "diagflat", "dsplit", "dstack", "fill_diagonal", "fliplr", "flipud", "hsplit", "hstack", "insert",
    "resize", "rollaxis", "rot90", "trim_zeros", "vsplit", "vstack",
]  # fmt: skip


def copy(x: Any) -> Array:
    """Return x as an array of its own, which stays when x is given away.

    >>> gnp.copy([1, 2])
    Array([1, 2], dtype=int64)
    """
    return ops.array(x)


# -- dimensions


def _each(function: Any, arrays: tuple[Any, ...]) -> Any:
    out = [function(ops.array(x)) for x in arrays]
    return out[0] if len(out) == 1 else tuple(out)


def atleast_1d(*arrays: Any) -> Any:
    """Return the arrays with at least one dimension.

    >>> gnp.atleast_1d(2.5)
    Array([2.5], dtype=float32)
    """
    return _each(lambda x: x if x.ndim else ops.reshape(x, (1,)), arrays)


def atleast_2d(*arrays: Any) -> Any:
    """Return the arrays with at least two dimensions, new ones in front.

    >>> gnp.atleast_2d(gnp.ones(3)).shape
    (1, 3)
    """
    return _each(lambda x: x if x.ndim > 1 else ops.reshape(x, (1, x.size)), arrays)


def atleast_3d(*arrays: Any) -> Any:
    """Return the arrays with at least three dimensions: (n,) becomes (1, n, 1), and (m, n) becomes (m, n, 1).

    >>> gnp.atleast_3d(gnp.ones(3)).shape
    (1, 3, 1)
    """

    def spread(x: Array) -> Array:
        return x if x.ndim > 2 else ops.expand_dims(x, 2) if x.ndim == 2 else ops.reshape(x, (1, x.size, 1))

    return _each(spread, arrays)


def rollaxis(x: Any, axis: int, start: int = 0) -> Array:
    """Return x with one axis moved in front of axis `start`.

    >>> gnp.rollaxis(gnp.ones((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    x = lift("rollaxis", x)
    source = normalize_axis("rollaxis", axis, x.ndim)
    target = normalize_axis("rollaxis", start, x.ndim) if start != x.ndim else x.ndim
    return ops.moveaxis(x, source, target - 1 if source < target else target)


# -- joining


def _arrays(op: str, arrays: Any) -> list[Array]:
    if isinstance(arrays, Array):
        return [arrays[k] for k in range(len(arrays))]
    if not isinstance(arrays, (list, tuple, numpy.ndarray)) or (isinstance(arrays, numpy.ndarray) and not arrays.ndim):
        raise ArgumentError(message(op, "a sequence of arrays", type(arrays).__name__, "Pass a list."))
    return [ops.array(x) for x in arrays]


@replayable
def hstack(arrays: Any, dtype: Any = None) -> Array:
    """Return the arrays joined along axis 1, those of one dimension along axis 0.

    >>> gnp.hstack([gnp.zeros(1), 1.])
    Array([0., 1.], dtype=float32)
    """
    parts = [atleast_1d(x) for x in _arrays("hstack", arrays)]
    return ops.concat(parts, 0 if parts and parts[0].ndim == 1 else 1, dtype=dtype)


@replayable
def vstack(arrays: Any, dtype: Any = None) -> Array:
    """Return the arrays joined along axis 0, with those of one dimension as rows.

    >>> gnp.vstack([gnp.zeros(2), gnp.ones(2)])
    Array([[0., 0.],
           [1., 1.]], dtype=float32)
    """
    return ops.concat([atleast_2d(x) for x in _arrays("vstack", arrays)], 0, dtype=dtype)


def dstack(arrays: Any, dtype: Any = None) -> Array:
    """Return the arrays joined along axis 2, after `atleast_3d`.

    >>> gnp.dstack([gnp.zeros(2), gnp.ones(2)]).shape
    (1, 2, 2)
    """
    return ops.concat([atleast_3d(x) for x in _arrays("dstack", arrays)], 2, dtype=dtype)


def column_stack(arrays: Any) -> Array:
    """Return the arrays joined along axis 1, with those of one dimension as columns.

    >>> gnp.column_stack([gnp.zeros(2), gnp.ones(2)])
    Array([[0., 1.],
           [0., 1.]], dtype=float32)
    """
    parts = _arrays("column_stack", arrays)
    return ops.concat([x if x.ndim > 1 else ops.reshape(x, (x.size, 1)) for x in parts], 1)


def append(x: Any, values: Any, axis: int | None = None) -> Array:
    """Return x with `values` after it along `axis` (None: both flattened).

    >>> gnp.append(gnp.array([1, 2]), 3)
    Array([1, 2, 3], dtype=int64)
    """
    return ops.concat([ops.array(x), ops.array(values)], axis)


def block(arrays: Any) -> Array:
    """Return the array made of nested lists of blocks: the innermost lists are joined along the last axis, the lists
    around them along the one before, and so on.

    Raises:
        ArgumentError: an empty list, or lists of different depths.

    >>> gnp.block([[gnp.ones((1, 1)), gnp.zeros((1, 1))], [gnp.zeros((1, 2))]])
    Array([[1., 0.],
           [0., 0.]], dtype=float32)
    """
    depth, leaves = _depth(arrays), []

    def collect(node: Any) -> None:
        for item in node if isinstance(node, list) else ():
            collect(item)
        if not isinstance(node, list):
            leaves.append(ops.array(node))

    collect(arrays)
    ndim = max([depth, *(x.ndim for x in leaves)])

    def joined(node: Any, level: int) -> Array:
        if isinstance(node, list):
            return ops.concat([joined(item, level + 1) for item in node], ndim - depth + level)
        x = ops.array(node)
        return ops.reshape(x, (1,) * (ndim - x.ndim) + x.shape)

    return joined(arrays, 0)


def _depth(node: Any) -> int:
    if not isinstance(node, list):
        return 0
    depths = {_depth(item) for item in node}
    if len(depths) != 1:
        got = "an empty list" if not depths else f"lists of {min(depths)} and {max(depths)} levels"
        raise ArgumentError(message("block", "lists of one depth with elements", got, "Nest all blocks alike."))
    return depths.pop() + 1


# -- cutting


@replayable
def array_split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """Return x cut along `axis` as by `split`, into parts whose sizes may differ by one.

    >>> [part.size for part in gnp.array_split(gnp.ones(5), 3)]
    [2, 2, 1]
    """
    x = lift("array_split", x)
    axis = normalize_axis("array_split", axis, x.ndim)
    if isinstance(indices_or_sections, (list, tuple)) or numpy.ndim(indices_or_sections):
        return ops.split(x, indices_or_sections, axis)
    count = as_int("array_split", "number of parts", indices_or_sections)
    if count < 1:
        raise ShapeError(message("array_split", "at least one part", str(count), "Pass a positive integer."))
    each, more = divmod(x.shape[axis], count)
    return ops.split(x, [k * each + min(k, more) for k in range(1, count)], axis)


def hsplit(x: Any, indices_or_sections: Any) -> list[Array]:
    """Return x split along axis 1, or axis 0 if it has one dimension.

    >>> [part.shape for part in gnp.hsplit(gnp.ones((2, 4)), 2)]
    [(2, 2), (2, 2)]
    """
    x = lift("hsplit", x)
    return ops.split(x, indices_or_sections, 0 if x.ndim == 1 else 1)


def vsplit(x: Any, indices_or_sections: Any) -> list[Array]:
    """Return x, of at least two dimensions, split along axis 0.

    >>> [part.shape for part in gnp.vsplit(gnp.ones((4, 2)), 2)]
    [(2, 2), (2, 2)]
    """
    return _split_deep("vsplit", x, indices_or_sections, 2, 0)


def dsplit(x: Any, indices_or_sections: Any) -> list[Array]:
    """Return x, of at least three dimensions, split along axis 2.

    >>> [part.shape for part in gnp.dsplit(gnp.ones((1, 2, 4)), 2)]
    [(1, 2, 2), (1, 2, 2)]
    """
    return _split_deep("dsplit", x, indices_or_sections, 3, 2)


def _split_deep(op: str, x: Any, where: Any, ndim: int, axis: int) -> list[Array]:
    x = lift(op, x)
    if x.ndim < ndim:
        raise ShapeError(message(op, f"at least {ndim} dimensions", repr(x.aval), "Use gt.split."))
    return ops.split(x, where, axis)


def _constant_places(op: str, size: int, obj: Any) -> numpy.ndarray:
    """Return the places along an axis that an index stands for, counted from the front.

    Raises:
        BoundsError: outside the axis.
        ShapeError: a mask of another size.
    """
    if isinstance(obj, slice):
        return numpy.arange(size)[obj]
    places = numpy.asarray(whole(obj, "size").cpu().numpy() if isinstance(obj, Array) else obj)
    if places.dtype.kind == "b":
        if places.shape != (size,):
            got = f"a mask of shape {places.shape}"
            raise ShapeError(message(op, f"a mask of shape {(size,)}", got, "It says yes or no for each place."))
        return numpy.flatnonzero(places)
    places = places.astype(numpy.int64) if not places.size else places
    if places.dtype.kind not in "iu":
        raise ArgumentError(message(op, "integers, booleans or a slice", repr(obj), "Pass integers."))
    if ((places < -size) | (places > size)).any():
        raise BoundsError(message(op, f"places in [{-size}, {size}]", repr(obj), "They are out of range."))
    return numpy.where(places < 0, places + size, places)


def insert(x: Any, obj: Any, values: Any, axis: int | None = None) -> Array:
    """Return x with `values` inserted along `axis` (None: into the flattened array), before the places `obj`.

    Args:
        obj: an int, several, booleans, or a slice; places refer to x. While tracing, they must not be booleans.

    >>> gnp.insert(gnp.array([1, 2]), 1, 9)
    Array([1, 9, 2], dtype=int64)
    """
    x = ops.array(x)
    if axis is None:
        x, axis = ops.ravel(x), 0
    axis = normalize_axis("insert", axis, x.ndim)
    size = x.shape[axis]
    traced = isinstance(obj, Array) and is_placeholder(obj) and obj.aval.dtype is not torch.bool
    places = _counted(obj, size) if traced else _constant_places("insert", size, obj)
    values = like(values, x)
    if not places.ndim and values.ndim and x.ndim > 1:
        # at one place: the axis of the values that lies there comes first, as in NumPy
        values = ops.moveaxis(ops.reshape(values, (1,) * (x.ndim - values.ndim) + values.shape), 0, axis)
    flat = places.ravel()
    count = flat.size if flat.size != 1 or x.ndim < 1 else max(_extent(values, x.ndim, axis), 1)
    new = ops.broadcast_to(values, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
    both = ops.concat([new, x], axis)
    if isinstance(flat, Array):
        flat = ops.broadcast_to(flat, (count,)) if flat.size == 1 else flat
        return index_axis(both, ops.argsort(ops.concat([flat, ops.arange(size, device=x.aval.device)])), axis)
    flat = numpy.broadcast_to(flat, (count,)) if flat.size == 1 else flat
    order = numpy.argsort(numpy.concatenate([flat, numpy.arange(size)]), kind="stable")
    return take_constant(both, order, axis)


def _counted(obj: Array, size: int) -> Array:
    """Return places as int64, counted from the front."""
    places = as_index(obj)
    return ops.where(ops.less(places, 0), ops.add(places, size), places)


def _extent(values: Array, ndim: int, axis: int) -> int:
    place = values.ndim - (ndim - axis)
    return values.shape[place] if place >= 0 else 1


def delete(x: Any, obj: Any, axis: int | None = None) -> Array:
    """Return x without the places `obj` along `axis` (None: of the flattened array).

    Args:
        obj: an int, several, booleans, or a slice, whose values are known.

    >>> gnp.delete(gnp.array([1, 2, 3]), 1)
    Array([1, 3], dtype=int64)
    """
    x = ops.array(x)
    if axis is None:
        x, axis = ops.ravel(x), 0
    axis = normalize_axis("delete", axis, x.ndim)
    places = _constant_places("delete", x.shape[axis], obj)
    if (places == x.shape[axis]).any():
        raise BoundsError(message("delete", f"places below {x.shape[axis]}", repr(obj), "They are out of range."))
    return take_constant(x, numpy.delete(numpy.arange(x.shape[axis]), places), axis)


def trim_zeros(x: Any, trim: str = "fb", axis: Any = None) -> Array:
    """Return x without the zeros at its front ("f"), its back ("b"), or both. It looks at the values.

    Args:
        axis: one or several along which slices are left out that are zero; None: all.

    >>> gnp.trim_zeros(gnp.array([0, 1, 0, 2, 0]))
    Array([1, 0, 2], dtype=int64)
    """
    x, kind = ops.array(x), trim.lower() if isinstance(trim, str) else None
    if kind not in ("f", "b", "fb", "bf"):
        raise ArgumentError(message("trim_zeros", '"f", "b" or "fb"', repr(trim), "Pass one of them."))
    places = numpy.argwhere(whole(ops.not_equal(x, 0), "size").cpu().numpy())
    for along in normalize_axes("trim_zeros", axis, x.ndim):
        held = places[:, along]
        first = int(held.min()) if "f" in kind and held.size else 0
        last = 0 if not held.size else int(held.max()) + 1 if "b" in kind else x.shape[along]
        x = slice_axis(x, along, first, last)
    return x


# -- turning and resizing


def fliplr(x: Any) -> Array:
    """Return x, of at least two dimensions, with axis 1 reversed.

    >>> gnp.fliplr(gnp.array([[1, 2]]))
    Array([[2, 1]], dtype=int64)
    """
    return ops.flip(x, 1)


def flipud(x: Any) -> Array:
    """Return x with axis 0 reversed.

    >>> gnp.flipud(gnp.array([1, 2]))
    Array([2, 1], dtype=int64)
    """
    return ops.flip(x, 0)


def rot90(x: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Array:
    """Return x turned k times by 90 degrees, from the first of two axes towards the second.

    >>> gnp.rot90(gnp.array([[1, 2], [3, 4]]))
    Array([[2, 4],
           [1, 3]], dtype=int64)
    """
    x = lift("rot90", x)
    if len(axes) != 2:
        raise ShapeError(message("rot90", "two axes", str(tuple(axes)), "Such as (0, 1)."))
    first, second = (normalize_axis("rot90", a, x.ndim) for a in axes)
    if first == second:
        raise ShapeError(message("rot90", "two axes", f"axis {first} twice", "Name two."))
    turns = as_int("rot90", "k", k) % 4
    if turns == 2:
        return ops.flip(x, (first, second))
    if turns == 1:
        return ops.swapaxes(ops.flip(x, second), first, second)
    return ops.flip(ops.swapaxes(x, first, second), second) if turns else distinct(x)


def resize(x: Any, new_shape: Any) -> Array:
    """Return the elements of x in another shape, repeated from the start as often as needed.

    >>> gnp.resize(gnp.array([1, 2]), (3,))
    Array([1, 2, 1], dtype=int64)
    """
    x, sizes = ops.ravel(ops.array(x)), as_sizes("resize", new_shape)
    total = int(numpy.prod(sizes, dtype=numpy.int64))
    if not x.size:
        return ops.full(sizes, 0, x.aval.dtype, device=x.aval.device)
    return ops.reshape(slice_axis(ops.tile(x, -(-total // x.size)), 0, 0, total), sizes)


# -- diagonals


@replayable
def diag(v: Any, k: int = 0) -> Array:
    """Return diagonal k of a matrix, or a matrix with v on its diagonal k and zeros elsewhere.

    >>> gnp.diag(gnp.array([1, 2]))
    Array([[1, 0],
           [0, 2]], dtype=int64)
    """
    v, offset = ops.array(v), as_int("diag", "k", k)
    if v.ndim == 2:
        return diagonal(v, offset)
    if v.ndim != 1:
        raise ShapeError(message("diag", "one or two dimensions", repr(v.aval), "Use gtrace.numpy.diagonal."))
    size = v.size + abs(offset)
    zeros = ops.full((size * size,), 0, v.aval.dtype, device=v.aval.device)
    return ops.reshape(slice_update(zeros, cast(v, v.aval.dtype), (diagonal_bounds(size, size, offset),)), (size, size))


def diagflat(v: Any, k: int = 0) -> Array:
    """Return a matrix with the flattened v on its diagonal k and zeros elsewhere.

    >>> gnp.diagflat([[1], [2]])
    Array([[1, 0],
           [0, 2]], dtype=int64)
    """
    return diag(ops.ravel(ops.array(v)), k)


def fill_diagonal(x: Any, val: Any, wrap: bool = False, *, inplace: bool = False) -> Array:
    """Return x with `val` on its main diagonal.

    Args:
        val: a number or an array, repeated as often as needed.
        wrap: go on from the start below the end of the diagonal of a tall matrix.
        inplace: must stay False: Arrays never change.

    Raises:
        ArgumentError: inplace.
        ShapeError: fewer than two dimensions, or more, of different sizes.

    >>> gnp.fill_diagonal(gnp.zeros((2, 2)), 1.)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    refuse_inplace("fill_diagonal", inplace)
    x = lift("fill_diagonal", x)
    if x.ndim < 2 or (x.ndim > 2 and len(set(x.shape)) != 1):
        raise ShapeError(message("fill_diagonal", "a matrix, or axes of one size", repr(x.aval), "Reshape it."))
    columns = x.shape[1]
    step = columns + 1 if x.ndim == 2 else sum(columns**k for k in range(x.ndim))
    stop = x.size if wrap or x.ndim > 2 else min(columns * columns, x.size)
    count = max(-(-stop // step), 0)
    values = resize(like(val, x), (count,))
    bounds = ((0, (count - 1) * step + 1, step),) if count else ((0, 0, 1),)
    return ops.reshape(slice_update(ops.ravel(x), values, bounds), x.shape)


def refuse_inplace(op: str, inplace: bool) -> None:
    """Raise, because arrays cannot change.

    Raises:
        ArgumentError: it was asked for.
    """
    if inplace:
        fix = f"Use x = gtrace.numpy.{op}(x, ..., inplace=False)."
        raise ArgumentError(message(op, "inplace=False", "True: Arrays never change", fix))
