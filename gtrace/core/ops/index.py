"""NumPy indexing: basic, integer-array and boolean; take and gather.

An index is split into a view (slices, integers, new axes) and the integer arrays applied to it. So reading and updating
share one implementation. Updates are in `gtrace.core.ops.indexed_updates`.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy
import torch

from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.config import config
from gtrace.core.base.errors import ArgumentError, BoundsError, DtypeError, ShapeError, message
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.op import MAX_TABLE, Op, Params
from gtrace.core.ops.declare import Aval, aval, bind
from gtrace.core.ops.elementwise import clip, remainder
from gtrace.core.ops.gather import constant_array, gather_op, index_axis, index_op, inside
from gtrace.core.ops.index_bounds import (
    check_mode,
    clamped,
    counted_from_front,
    fill_for,
    host_span,
    is_inside,
    is_loose,
)
from gtrace.core.ops.join_split import Bounds, flip_op, slice_op, slice_update
from gtrace.core.ops.logic import where
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import (
    as_int,
    broadcast_arrays,
    broadcast_to,
    full_like_scalar,
    normalize_axis,
    ravel,
    reshape,
    reshape_op,
    with_axis,
)
from gtrace.core.trace.array import Array, wrap_as
from gtrace.core.trace.convert import lift, python_scalar
from gtrace.core.trace.fast import record_view
from gtrace.core.trace.force import unfollowed_value, whole
from gtrace.core.trace.record import thread
from gtrace.core.trace.replayable import replayable_with_places

__all__ = ["take", "take_along_axis"]

# -- the index, split


@attrs.frozen
class Split:
    """An index as a view and the integer arrays applied to it.

    Attributes:
        bounds: the slices, with positive steps.
        flips: axes whose slices have negative steps.
        shape: the shape of the view, after integers removed axes and None added some.
        arrays: pairs (axis of the view, index array).
        loose: for each index array, whether it may be out of range.
    """

    bounds: Bounds
    flips: tuple[int, ...]
    shape: tuple[int, ...]
    arrays: tuple[tuple[int, Array], ...]
    loose: tuple[bool, ...]

    def view(self, x: Array) -> Array:
        return record_view(x, "index", None, self.steps)

    def steps(self, x: Array) -> list[tuple[Op, Params]]:
        """Return the operations that make the view of x, with their attributes."""
        steps: list[tuple[Op, Params]] = []
        if any(b != (0, n, 1) for b, n in zip(self.bounds, x.shape, strict=True)):
            steps.append((slice_op, (self.bounds,)))
        if self.flips:
            steps.append((flip_op, (self.flips,)))
        if self.shape != self.sliced_shape:
            steps.append((reshape_op, (self.shape,)))
        return steps

    def restore(self, x: Array, y: Array) -> Array:
        """Return x with its view replaced by y."""
        y = reshape(y, self.sliced_shape)
        y = bind(flip_op, (y,), (self.flips,)) if self.flips else y
        whole = all(b == (0, n, 1) for b, n in zip(self.bounds, x.shape, strict=True))
        return y if whole else slice_update(x, y, self.bounds)

    @property
    def sliced_shape(self) -> tuple[int, ...]:
        """The shape after the slices alone."""
        return tuple([max(0, -(-(stop - start) // step)) for start, stop, step in self.bounds])

    @property
    def dims(self) -> tuple[int, ...]:
        """The axes of the view that the index arrays index."""
        return tuple(axis for axis, _ in self.arrays)

    def indices(self, clamp: bool = True) -> list[Array]:
        """Return the broadcast index arrays; with `clamp`, out-of-range indices move to the nearest end."""
        moved = [
            clamped(index, self.shape[axis]) if clamp and loose else index
            for (axis, index), loose in zip(self.arrays, self.loose, strict=True)
        ]
        return broadcast_arrays(*moved)

    def inside(self, ndim: int) -> Array | None:
        """Return where an index is in range, broadcastable to the elements read or written there; None: everywhere.

        Args:
            ndim: the number of dimensions of the elements.
        """
        if not any(self.loose):
            return None
        sizes = [self.shape[axis] for axis in self.dims]
        return inside(self.indices(clamp=False), sizes, self.loose, self.dims, ndim)


def as_index(value: Any) -> Array:
    """Return an index array as int64."""
    index = value if type(value) is Array else lift("index", numpy.asarray(value) if isinstance(value, list) else value)
    if index.aval.floating or index.aval.dtype is torch.bool:
        raise DtypeError(message("index", "integers", repr(index.aval), "Use x.astype(gt.int64)."))
    return cast(index, torch.int64)


def split_index(x: Array, index: Any, checked: bool = True) -> Split:
    """Resolve an index against the shape of x.

    Args:
        checked: whether to determine which index arrays may be out of range.
    """
    items: list[Any] = []
    raw = index if isinstance(index, tuple) else (index,)
    given = [_as_item(item) for item in raw]
    spans = {id(item): host_span(value) for item, value in zip(given, raw, strict=True) if isinstance(item, Array)}
    axis = 0
    for k, item in enumerate(given):
        if item is Ellipsis:
            # count the following items from the last axis
            axis = x.ndim - sum(_axes_of(rest) for rest in given[k + 1 :])
            items.append(item)
        else:
            if config.current.jax_results and _is_outside(item, x, axis):
                place = as_index(item)
                spans[id(place)] = host_span(item)
                item = place
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
    loose: list[bool] = []
    for item in items:
        if item is None:
            shape.append(1)
            continue
        size = x.shape[len(bounds)]
        if isinstance(item, Array):
            arrays.append((len(shape), item))
            # the replacement of a mask is not one of the user's items
            loose.append(checked and id(item) in spans and is_loose(item, size, spans[id(item)]))
            bounds.append((0, size, 1))
            shape.append(size)
        elif isinstance(item, slice):
            bound, backwards = _resolve(item, size)
            if backwards:
                flips.append(len(bounds))
            bounds.append(bound)
            shape.append(max(0, -(-(bound[1] - bound[0]) // bound[2])))
        else:
            number = as_int("index", "index", item)
            if not -size <= number < size:
                got = f"{number} for axis {len(bounds)} of {x.aval!r}"
                raise BoundsError(message("index", f"an index in [{-size}, {size})", got, "The index is out of range."))
            number %= size
            bounds.append((number, number + 1, 1))
            if advanced:
                # beside index arrays, an integer takes part in their broadcasting, as in NumPy
                arrays.append((len(shape), constant_array(numpy.zeros((), numpy.int64), x.aval.device)))
                loose.append(False)
                shape.append(1)
    return Split(tuple(bounds), tuple(flips), tuple(shape), tuple(arrays), tuple(loose))


def _is_outside(item: Any, x: Array, axis: int) -> bool:
    """Whether an item is an out-of-range integer, which JAX treats like one in an index array."""
    return isinstance(item, int) and 0 <= axis < x.ndim and not -x.shape[axis] <= item < x.shape[axis]


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
    """Return whether the items include an index array, or an integer that acts like one beside them."""
    return any(item is not None and not isinstance(item, slice) for item in items)


def _as_item(item: Any) -> Any:
    """Return one index item, with an array of any library as an Array."""
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
    """Return the number of axes that an index item covers."""
    if isinstance(item, Array) and item.aval.dtype is torch.bool:
        return item.ndim
    return 0 if item is None else 1


def _unmask(x: Array, item: Any, axis: int) -> list[Any]:
    """Return the items that replace a mask beginning at `axis`: the indices where it is true."""
    if not isinstance(item, Array) or item.aval.dtype is not torch.bool:
        return [item]
    if item.ndim == 0:
        raise ArgumentError(message("index", "a mask with a dimension", "a 0-d one", "Use gt.where."))
    if item.shape != x.shape[axis : axis + item.ndim] or axis < 0:
        got = f"{item.aval!r} for {x.aval!r}"
        raise BoundsError(message("index", "a mask with the shape of the axes it covers", got, "Check its shape."))
    host = whole(item, "mask").cpu().numpy()
    return [constant_array(p, x.aval.device) for p in numpy.nonzero(host)]


# -- user functions


def getitem(x: Array, index: Any) -> Array:
    """Return x[index] as NumPy does. Out-of-range indices in index arrays give the nearest element."""
    key = _plain_key(index)
    if key is None or (config.current.jax_results and _leaves(x, key)):  # then they act as index arrays
        return _gathered(x, index)
    value = unfollowed_value(x)
    if value is not None:
        part = _part(x, value, key, index)
        if part is not None:
            return part
    return record_view(x, "index", key, lambda x: split_index(x, index).steps(x))


_rows: BoundedTable[Any, tuple[int, int, Aval] | None] = BoundedTable(MAX_TABLE)


def _part(x: Array, tensor: torch.Tensor, key: tuple[Any, ...], index: Any) -> Array | None:
    """Return x[index] as a view of x's value, if it selects successive rows; None if it must be recorded.

    Otherwise each batch of a data set at Python integers would be another program.

    Args:
        tensor: the value of x, which no gradient follows.
        key: the key of the index.
    """
    trace = thread.trace
    if not trace.limit or trace.capture is not None or thread.in_rule or x.aval.sharding is not None:
        return None
    found = _rows.get((x.aval, key), _rows)
    if found is _rows:
        found = _rows_of(x, index)
        _rows.remember((x.aval, key), found)
    if found is None or not tensor.is_contiguous():
        return None
    start, count, a = found
    return wrap_as(_rows_at(tensor, start, count, a.shape), a)


def _rows_of(x: Array, index: Any) -> tuple[int, int, Aval] | None:
    """Return the first row that an index selects, the number of rows, and the aval of x[index]; see `_part`."""
    split = split_index(x, index)
    whole_rows = all(b == (0, n, 1) for b, n in zip(split.bounds[1:], x.shape[1:], strict=True))
    if not split.bounds or split.flips or not whole_rows or split.shape == x.shape:
        return None
    start, stop, step = split.bounds[0]
    if step != 1 or stop <= start:
        return None
    a = x.aval
    return start, stop - start, aval(split.shape, a.dtype, a.device, a.weak)


@without_modes
def _rows_at(tensor: torch.Tensor, start: int, count: int, shape: tuple[int, ...]) -> torch.Tensor:
    rows = tensor.narrow(0, start, count)
    return rows if rows.shape == shape else rows.view(shape)


def _leaves(x: Array, key: tuple[Any, ...]) -> bool:
    """Whether an integer of an index may be out of range."""
    return any(k.__class__ is int and not -n <= k < n for k in key for n in x.aval.shape)


@replayable_with_places
def _gathered(x: Array, index: Any) -> Array:
    split = split_index(x, index)
    y = split.view(x)
    return bind(index_op, (y, *split.indices()), (split.dims,)) if split.arrays else y


_BOUND = (int, type(None))


def _plain_key(index: Any) -> tuple[Any, ...] | None:
    """Return a key for an index of integers, slices of integers, None and ...; None for any other index."""
    key: list[Any] = []
    for item in index if index.__class__ is tuple else (index,):
        if item.__class__ is slice:
            start, stop, step = item.start, item.stop, item.step
            if start.__class__ not in _BOUND or stop.__class__ not in _BOUND or step.__class__ not in _BOUND:
                return None
            key.append((start, stop, step))
        elif item.__class__ is int or item is None or item is Ellipsis:
            key.append(item)
        else:
            return None
    return tuple(key)


def read(x: Array, index: Any, mode: str | None, fill_value: Any) -> Array:
    """Return x[index]. `mode` and `fill_value` say what an out-of-range index gives: see `AtIndex.get`."""
    check_mode("get", mode)
    fills = mode in ("fill", "drop")
    split = split_index(x, index, checked=not (fills or mode == "promise_in_bounds"))
    y = split.view(x)
    if not split.arrays:
        return y
    if not fills:
        return bind(index_op, (y, *split.indices()), (split.dims,))
    value = fill_for(x, fill_value)
    if any(not y.shape[axis] for axis in split.dims):
        shape = bind(index_op, (y, *split.indices()), (split.dims,)).shape
        return broadcast_to(full_like_scalar(value, x.aval.dtype, (), x.aval.device), shape)
    split = split_index(x, index)
    out = bind(index_op, (y, *split.indices()), (split.dims,))
    inside = split.inside(out.ndim)
    return out if inside is None else where(inside, out, value)


_TAKE_MODES = ("raise", "clip", "wrap", "fill", "promise_in_bounds")


@replayable_with_places
def take(x: Any, indices: Any, axis: int | None = None, *, mode: str | None = None, fill_value: Any = None) -> Array:
    """Return x at the given `indices` of `axis` (None: of the flattened array).

    Args:
        mode: the treatment of out-of-range indices. None: the nearest end; negative indices count from the end.
            ``"clip"``: the nearest end; negative indices mean 0. ``"wrap"``: modulo the size. ``"fill"``: `fill_value`
            instead of an element. ``"raise"``: an error when the program runs. ``"promise_in_bounds"``: unspecified.
        fill_value: None: NaN for floats, the least signed or the greatest unsigned integer, or True.

    Raises:
        BoundsError: the axis is empty but the indices are not, and no mode handles that.
        ExecutionError: (at the run) with mode ``"raise"``, an index is out of range.

    >>> gt.take(gt.array([10, 20, 30]), gt.array([2, 0, 7]))
    Array([30, 10, 30], dtype=int64)
    """
    x, axis = with_axis("take", x, axis)
    check_mode("take", mode, _TAKE_MODES)
    places = as_index(indices)
    size = x.shape[axis]
    if mode is None:
        known = host_span(indices)
        return index_axis(x, clamped(places, size) if is_loose(places, size, known) else places, axis)
    if mode in ("raise", "promise_in_bounds"):
        return index_axis(x, places, axis)
    if mode == "fill":
        return read(x, (*(slice(None),) * axis, places), "fill", fill_value)
    if not size:
        got = f"{mode!r} for an empty axis"
        raise ArgumentError(message("take", "an axis with elements", got, "Check the axis."))
    return index_axis(x, remainder(places, size) if mode == "wrap" else clip(places, 0, size - 1), axis)


@replayable_with_places
def take_along_axis(
    x: Any, indices: Any, axis: int | None = -1, *, mode: str | None = None, fill_value: Any = None
) -> Array:
    """Return x at `indices` along `axis`; the other axes match element by element, and broadcast.

    Args:
        axis: None: the flattened array; `indices` is then one-dimensional.
        mode: the treatment of out-of-range indices. None or ``"clip"``: the nearest end; ``"fill"``: `fill_value`
            instead of an element; ``"promise_in_bounds"``: unspecified. Negative indices count from the end.
        fill_value: None: NaN for floats, the least signed or the greatest unsigned integer, or True.

    Raises:
        ShapeError: the number of axes differs, or the other axes do not broadcast.
        BoundsError: the axis is empty but the indices are not.

    >>> gt.take_along_axis(gt.array([[1, 2], [3, 4]]), gt.array([[1], [0]]), axis=1)
    Array([[2],
           [3]], dtype=int64)
    """
    x, index = lift("take_along_axis", x), as_index(indices)
    check_mode("take_along_axis", mode)
    if axis is None:
        x, axis = ravel(x), 0
    if x.ndim != index.ndim:
        raise ShapeError(message("take_along_axis", "as many axes in both", (x.aval, index.aval), "Use expand_dims."))
    axis = normalize_axis("take_along_axis", axis, x.ndim)
    others = [(n, m) for k, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)) if k != axis]
    if any(n != m and 1 not in (n, m) for n, m in others):
        expected, fix = "shapes that broadcast beside the axis", "Check the indices."
        raise ShapeError(message("take_along_axis", expected, (x.aval, index.aval), fix))

    def spread(y: Array) -> Array:
        sizes = [max(n, m) if 0 not in (n, m) else 0 for n, m in zip(x.shape, index.shape, strict=True)]
        sizes[axis] = y.shape[axis]
        return broadcast_to(y, sizes)

    size = x.shape[axis]
    loose = mode != "promise_in_bounds" and is_loose(index, size, host_span(indices))
    # torch.gather has no negative indices
    places = counted_from_front(clamped(index, size) if loose else index, size)
    out = bind(gather_op, (spread(x), spread(places)), (axis,))
    if not loose or mode not in ("fill", "drop"):
        return out
    return where(spread(is_inside(index, size)), out, fill_for(x, fill_value))
