"""Indexing as in NumPy: basic, integer-array and boolean; functional updates with ``x.at[...]``; take and gather.

An index is split into a view (slices, integers, new axes) and the integer arrays applied to it, so that reading and
updating are each stated once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy
import torch

from gtrace.errors import ArgumentError, BoundsError, DtypeError, ShapeError, message
from gtrace.ops.elementwise import add as _add
from gtrace.ops.elementwise import clip, maximum, minimum, multiply, remainder
from gtrace.ops.gather import constant_array, gather_op, index_axis, index_op, index_put_op, scatter_op
from gtrace.ops.logic import greater_equal, less, logical_and, where
from gtrace.ops.parts import Bounds, flip_op, slice_bounds, slice_update
from gtrace.ops.promote import cast
from gtrace.ops.shape import (
    as_int,
    broadcast_arrays,
    broadcast_to,
    full_like_scalar,
    normalize_axis,
    ravel,
    reshape,
)
from gtrace.trace.array import Array, materialize
from gtrace.trace.bind import bind
from gtrace.trace.convert import lift, python_scalar

__all__ = ["take", "take_along_axis"]

# -- the index, split


@attrs.frozen
class Split:
    """An index split into a view and the integer arrays applied to it.

    Attributes:
        bounds: the slices, with positive steps.
        flips: axes whose slice ran backwards.
        shape: of the view, after integers dropped axes and None added some.
        arrays: (axis of the view, index array).
    """

    bounds: Bounds
    flips: tuple[int, ...]
    shape: tuple[int, ...]
    arrays: tuple[tuple[int, Array], ...]

    def view(self, x: Array) -> Array:
        y = self._flip(slice_bounds(x, self.bounds))
        return reshape(y, self.shape)

    def restore(self, x: Array, y: Array) -> Array:
        """Return x with its view replaced by y."""
        sizes = tuple(max(0, -(-(stop - start) // step)) for start, stop, step in self.bounds)
        whole = all(b == (0, n, 1) for b, n in zip(self.bounds, x.shape, strict=True))
        y = self._flip(reshape(y, sizes))
        return y if whole else slice_update(x, y, self.bounds)

    def _flip(self, y: Array) -> Array:
        return y if not self.flips else bind(flip_op, (y,), (self.flips,))

    def indices(self) -> tuple[tuple[Array, ...], tuple[int, ...]]:
        dims = tuple(axis for axis, _ in self.arrays)
        return tuple(broadcast_arrays(*[index for _, index in self.arrays])), dims


def as_index(value: Any) -> Array:
    """Return an index array as int64.

    Raises:
        DtypeError: it is not of integers.
    """
    index = value if type(value) is Array else lift("index", numpy.asarray(value) if isinstance(value, list) else value)
    if index.aval.floating or index.aval.dtype is torch.bool:
        raise DtypeError(message("index", "integers", repr(index.aval), "Use x.astype(gt.int64)."))
    return cast(index, torch.int64)


def split_index(x: Array, index: Any) -> Split:
    """Resolve an index against the shape of x.

    Raises:
        BoundsError: an integer outside its axis, or more indices than axes.
        ShapeError: a mask of another shape.
        ConcretizationError: a mask without a value.
    """
    items: list[Any] = []
    given = [_as_item(item) for item in (index if isinstance(index, tuple) else (index,))]
    axis = 0
    for k, item in enumerate(given):
        if item is Ellipsis:
            # count the following items from the last axis
            axis = x.ndim - sum(_axes_of(rest) for rest in given[k + 1 :])
            items.append(item)
        else:
            items.extend(_unmask(x, item, axis))
            axis += _axes_of(item)
    consumed = sum(item is not None and item is not Ellipsis for item in items)
    if consumed > x.ndim or sum(item is Ellipsis for item in items) > 1:
        raise BoundsError(
            message("index", f"at most {x.ndim} indices and one ellipsis", f"{consumed} for {x.aval!r}", "Drop some.")
        )
    if not any(item is Ellipsis for item in items):
        items.append(Ellipsis)
    where_rest = next(k for k, item in enumerate(items) if item is Ellipsis)
    advanced = any(isinstance(item, Array) for item in items)
    if advanced and consumed == x.ndim and _has_places(items[:where_rest]) and _has_places(items[where_rest + 1 :]):
        got = "an ellipsis for no axes between two of them"
        raise ArgumentError(message("index", "index arrays and integers side by side", got, "Leave the ellipsis out."))
    items[where_rest : where_rest + 1] = [slice(None)] * (x.ndim - consumed)
    bounds: list[tuple[int, int, int]] = []
    flips: list[int] = []
    shape: list[int] = []
    arrays: list[tuple[int, Array]] = []
    for item in items:
        if item is None:
            shape.append(1)
            continue
        size = x.shape[len(bounds)]
        if isinstance(item, Array):
            arrays.append((len(shape), item))
            bounds.append((0, size, 1))
            shape.append(size)
        elif isinstance(item, slice):
            bound, backwards = _resolve(item, size)
            if backwards:
                flips.append(len(bounds))
            bounds.append(bound)
            shape.append(max(0, -(-(bound[1] - bound[0]) // bound[2])))
        else:
            place = as_int("index", "index", item)
            if not -size <= place < size:
                got = f"{place} for axis {len(bounds)} of {x.aval!r}"
                raise BoundsError(message("index", f"an index in [{-size}, {size})", got, "The index is out of range."))
            place %= size
            bounds.append((place, place + 1, 1))
            if advanced:
                # beside index arrays an integer takes part in their broadcasting, as in NumPy
                arrays.append((len(shape), constant_array(numpy.zeros((), numpy.int64), x.aval.device)))
                shape.append(1)
    return Split(tuple(bounds), tuple(flips), tuple(shape), tuple(arrays))


def _resolve(item: slice, size: int) -> tuple[tuple[int, int, int], bool]:
    parts = [p if p is None else as_int("index", "slice bound", p) for p in (item.start, item.stop, item.step)]
    if parts[2] == 0:
        raise ShapeError(message("index", "a slice step other than 0", "0", "Use a positive or negative step."))
    places = range(size)[slice(*parts)]
    if not len(places):
        return (0, 0, 1), False
    low, high = min(places[0], places[-1]), max(places[0], places[-1])
    return (low, high + 1, abs(places.step)), places.step < 0


def _has_places(items: list[Any]) -> bool:
    """Return whether an index array, or an integer that acts as one beside them, is among the items."""
    return any(item is not None and not isinstance(item, slice) for item in items)


def _as_item(item: Any) -> Any:
    """Return one index item with arrays of any kind as Arrays.

    Raises:
        ArgumentError, DtypeError: it is no index.
    """
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, (bool, numpy.bool_)):
        raise ArgumentError(message("index", "an array, slice or integer", repr(item), "Use gt.where or expand_dims."))
    if python_scalar(item) is not None:
        return item
    if isinstance(item, list):
        item = numpy.asarray(item) if item else numpy.zeros(0, numpy.int64)
    if not isinstance(item, (Array, numpy.ndarray, torch.Tensor)):
        raise ArgumentError(
            message("index", "integers, slices, None, ... or arrays", type(item).__name__, "Convert it with gt.array.")
        )
    array = lift("index", item)
    return array if array.aval.dtype is torch.bool else as_index(array)


def _axes_of(item: Any) -> int:
    """Return the number of axes that an index item stands for."""
    if isinstance(item, Array) and item.aval.dtype is torch.bool:
        return item.ndim
    return 0 if item is None else 1


def _unmask(x: Array, item: Any, axis: int) -> list[Any]:
    """Return one index item, which begins at `axis`, with a mask replaced by the indices where it is true."""
    if not isinstance(item, Array) or item.aval.dtype is not torch.bool:
        return [item]
    if item.ndim == 0:
        raise ArgumentError(message("index", "a mask with a dimension", "a 0-d one", "Use gt.where."))
    if item.shape != x.shape[axis : axis + item.ndim] or axis < 0:
        got = f"{item.aval!r} for {x.aval!r}"
        raise ShapeError(message("index", "a mask with the shape of the axes it covers", got, "Check its shape."))
    host = materialize(item, "mask").cpu().numpy()
    return [constant_array(p, x.aval.device) for p in numpy.nonzero(host)]


# -- user functions


def getitem(x: Array, index: Any) -> Array:
    """Return x[index], as NumPy does. Integers in index arrays are checked when the program runs."""
    split = split_index(x, index)
    y = split.view(x)
    if split.arrays:
        indices, dims = split.indices()
        return bind(index_op, (y, *indices), (dims,))
    return y


def take(x: Any, indices: Any, axis: int | None = None, *, mode: str | None = None, fill_value: Any = None) -> Array:
    """Return x at the places `indices` of `axis` (None: of the flattened array).

    Args:
        mode: what a place outside the axis means. None or ``"raise"``: an error; ``"clip"``: the nearest end;
            ``"wrap"``: counted around; ``"fill"``: `fill_value` in place of an element.
        fill_value: None: NaN for floats, otherwise 0.

    Raises:
        ExecutionError: when run, if a place lies outside the axis and no mode says otherwise.

    >>> import gtrace as gt
    >>> gt.take(gt.array([10, 20, 30]), gt.array([2, 0]))
    Array([30, 10], dtype=int64)
    """
    x = lift("take", x)
    if axis is None:
        x, axis = ravel(x), 0
    axis = normalize_axis("take", axis, x.ndim)
    places = as_index(indices)
    if mode is None or mode == "raise":
        return index_axis(x, places, axis)
    size = x.shape[axis]
    if mode not in ("clip", "wrap", "fill") or not size:
        got = repr(mode) if size else f"{mode!r} for an empty axis"
        raise ArgumentError(message("take", "a mode among raise, clip, wrap, fill", got, "Use one of them."))
    if mode == "wrap":
        return index_axis(x, remainder(places, size), axis)
    out = index_axis(x, clip(places, 0 if mode == "clip" else -size, size - 1), axis)
    if mode == "clip":
        return out
    inside = logical_and(less(places, size), greater_equal(places, -size))
    inside = reshape(inside, tuple(places.shape) + (1,) * (x.ndim - axis - 1))
    return where(inside, out, (float("nan") if x.aval.floating else 0) if fill_value is None else fill_value)


def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Array:
    """Return x at `indices` along `axis`, matched element by element in the other axes, which broadcast.

    >>> import gtrace as gt
    >>> gt.take_along_axis(gt.array([[1, 2], [3, 4]]), gt.array([[1], [0]]), axis=1)
    Array([[2],
           [3]], dtype=int64)
    """
    x, index = lift("take_along_axis", x), as_index(indices)
    if x.ndim != index.ndim:
        got = f"{x.aval!r} and {index.aval!r}"
        raise ShapeError(message("take_along_axis", "as many axes in both", got, "Use expand_dims."))
    axis = normalize_axis("take_along_axis", axis, x.ndim)
    others = [(n, m) for k, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)) if k != axis]
    if any(n != m and 1 not in (n, m) for n, m in others):
        got = f"{x.aval!r} and {index.aval!r}"
        raise ShapeError(message("take_along_axis", "shapes that broadcast beside the axis", got, "Check the indices."))

    def spread(y: Array) -> Array:
        sizes = [max(n, m) if 0 not in (n, m) else 0 for n, m in zip(x.shape, index.shape, strict=True)]
        sizes[axis] = y.shape[axis]
        return broadcast_to(y, sizes)

    index = where(less(index, 0), _add(index, x.shape[axis]), index)  # torch.gather does not count from the end
    return bind(gather_op, (spread(x), spread(index)), (axis,))


class At:
    """``x.at[index]``: functional updates. Each returns a new Array.

    >>> import gtrace as gt
    >>> gt.zeros(3).at[1].set(5.0)
    Array([0., 5., 0.], dtype=float32)
    """

    __slots__ = ("_x",)

    def __init__(self, x: Array) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> AtIndex:
        return AtIndex(self._x, index)


class AtIndex:
    """Updates at one index. For repeated indices add, multiply, min and max combine all values; set takes any one."""

    __slots__ = ("_x", "_index")

    def __init__(self, x: Array, index: Any) -> None:
        self._x = x
        self._index = index

    def get(self) -> Array:
        """Return x[index]."""
        return getitem(self._x, self._index)

    def set(self, values: Any) -> Array:
        """Return x with x[index] replaced by `values`."""
        return self._update(values, lambda old, new: new, "set")

    def add(self, values: Any) -> Array:
        """Return x with `values` added to x[index]."""
        return self._update(values, _add, "add")

    def multiply(self, values: Any) -> Array:
        """Return x with x[index] multiplied by `values`."""
        return self._update(values, multiply, "prod")

    def min(self, values: Any) -> Array:
        """Return x with x[index] lowered to `values` where those are smaller."""
        return self._update(values, minimum, "amin")

    def max(self, values: Any) -> Array:
        """Return x with x[index] raised to `values` where those are larger."""
        return self._update(values, maximum, "amax")

    def _update(self, values: Any, combine: Callable[[Array, Array], Array], mode: str) -> Array:
        x = self._x
        mask = _whole_mask(x, self._index)
        u = _update_operand(x, values)
        if mask is not None and len(u.shape) == 0:
            return where(mask, combine(x, u), x)
        split = split_index(x, self._index)
        y = split.view(x)
        if not split.arrays:
            target = y.shape
            return split.restore(x, combine(y, _fit(u, target)))
        indices, dims = split.indices()
        flat = bind(index_op, (y, *indices), (dims,)).shape
        u = _fit(u, flat)
        if mode in ("set", "add"):
            y = bind(index_put_op, (y, u, *indices), (dims, mode == "add"))
        else:
            places = constant_array(numpy.arange(y.size).reshape(y.shape), y.aval.device)
            chosen = bind(index_op, (places, *indices), (dims,))
            y = reshape(bind(scatter_op, (ravel(y), ravel(chosen), ravel(u)), (mode,)), y.shape)
        return split.restore(x, y)


def _whole_mask(x: Array, index: Any) -> Array | None:
    if isinstance(index, (Array, numpy.ndarray, torch.Tensor)):
        mask = lift("at", index)
        if mask.aval.dtype is torch.bool and mask.aval.shape == x.aval.shape and mask.ndim:
            return mask
    return None


def _update_operand(x: Array, values: Any) -> Array:
    """Return the update in the dtype of x; a wider kind is an error rather than a silent loss."""
    value = python_scalar(values)
    if value is None or type(values) is Array:
        u = lift("at", values)
        if u.aval.floating > x.aval.floating or u.aval.complex > x.aval.complex:
            raise DtypeError(
                message("at", f"an update for {x.aval!r}", repr(u.aval), "Convert x with x.astype(...) first.")
            )
        return cast(u, x.aval.dtype)
    if (isinstance(value, float) and not x.aval.floating) or (isinstance(value, complex) and not x.aval.complex):
        raise DtypeError(message("at", f"an update for {x.aval!r}", repr(value), "Convert x with x.astype(...) first."))
    return full_like_scalar(value, x.aval.dtype, (), x.aval.device)


def _fit(u: Array, shape: tuple[int, ...]) -> Array:
    # as in NumPy, leading axes of size 1 may be dropped from the update
    while u.ndim > len(shape) and u.shape[0] == 1:
        u = reshape(u, u.shape[1:])
    return broadcast_to(u, shape)
