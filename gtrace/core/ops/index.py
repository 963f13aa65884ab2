"""NumPy indexing: basic, integer-array and boolean; take and gather.

Indices are split in `gtrace.core.ops.index_split`. Updates are in `gtrace.core.ops.indexed_updates`.
"""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.errors import (
    ArgumentError,
    ShapeError,
    message,
)
from gtrace.core.base.mechanisms import ROW_VIEWS
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.op import MAX_TABLE
from gtrace.core.ops.declare import Aval, aval, bind
from gtrace.core.ops.elementwise import remainder
from gtrace.core.ops.gather import gather_op, index_axis, index_op
from gtrace.core.ops.index_bounds import (
    clamped,
    counted_from_front,
    fill_for,
    host_span,
    is_inside,
    is_loose,
    mode_name,
)
from gtrace.core.ops.index_split import as_index, split_index, takes_outside
from gtrace.core.ops.logic import where
from gtrace.core.ops.shape import (
    broadcast_to,
    full_like_scalar,
    normalize_axis,
    ravel,
    with_axis,
)
from gtrace.core.trace.array import Array, wrap_as
from gtrace.core.trace.convert import lift
from gtrace.core.trace.fast import record_view
from gtrace.core.trace.force import unfollowed_value
from gtrace.core.trace.record import thread
from gtrace.core.trace.replayable import replayable_with_places

__all__ = ["take", "take_along_axis"]


def getitem(x: Array, index: Any) -> Array:
    """Return x[index] as NumPy does. Out-of-range indices in index arrays give the nearest element."""
    key = _plain_key(index)
    if key is None or (takes_outside() and _leaves(x, key)):  # then they act as index arrays
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
    if not (ROW_VIEWS.on and trace.limit) or trace.capture is not None or thread.in_rule or x.aval.sharding is not None:
        return None
    found = _rows.get((x.aval, key), _rows)
    if found is _rows:
        found = _rows_of(x, index)
        _rows.remember((x.aval, key), found)
    if found is None or not tensor.is_contiguous():
        return None
    ROW_VIEWS.used()
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


def read(x: Array, index: Any, mode: Any, fill_value: Any) -> Array:
    """Return x[index]. `mode` and `fill_value` say what an out-of-range index gives: see `AtIndex.get`."""
    mode = mode_name("get", mode)
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
    mode = mode_name("take", mode, _TAKE_MODES)
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
    return index_axis(x, remainder(places, size) if mode == "wrap" else clamped(places, size, 0), axis)


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
    mode = mode_name("take_along_axis", mode)
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
