"""An index of any kind, split into a view (slices, integers, new axes) and the integer arrays applied to it.

So reading and updating share one implementation: see `gtrace.core.ops.index` and `gtrace.core.ops.indexed_updates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy
import torch

from gtrace.core.base.config import config
from gtrace.core.base.errors import (
    ArgumentError,
    BoundsError,
    DtypeError,
    IntegerConcretizationError,
    ShapeError,
    SliceConcretizationError,
    message,
)
from gtrace.core.ir.op import Op, Params
from gtrace.core.ops.declare import bind
from gtrace.core.ops.gather import constant_array, inside
from gtrace.core.ops.index_bounds import (
    clamped,
    host_span,
    is_loose,
)
from gtrace.core.ops.join_split import Bounds, flip_op, slice_op, slice_update, stack
from gtrace.core.ops.logic import less, where
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import (
    as_int,
    broadcast_arrays,
    inverse,
    permute_op,
    reshape,
    reshape_op,
)
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift, python_scalar
from gtrace.core.trace.fast import record_view
from gtrace.core.trace.force import whole

FARTHEST = 2**63 - 1
"""An index outside of every axis."""

_INTEGERS = int, numpy.integer


@attrs.frozen
class Split:
    """An index as a view and the integer arrays applied to it.

    Attributes:
        bounds: the slices, with positive steps.
        flips: axes whose slices have negative steps.
        shape: the shape of the view, after integers removed axes and None added some.
        arrays: pairs (axis of the view, index array).
        loose: for each index array, whether it may be out of range.
        order: the order of the axes of the view, if it is not that of x.
    """

    bounds: Bounds
    flips: tuple[int, ...]
    shape: tuple[int, ...]
    arrays: tuple[tuple[int, Array], ...]
    loose: tuple[bool, ...]
    order: tuple[int, ...] = ()

    def view(self, x: Array) -> Array:
        return record_view(x, "index", None, self.steps)

    def steps(self, x: Array) -> list[tuple[Op, Params]]:
        """Return the operations that make the view of x, with their attributes."""
        steps: list[tuple[Op, Params]] = []
        if any(b != (0, n, 1) for b, n in zip(self.bounds, x.shape, strict=True)):
            steps.append((slice_op, (self.bounds,)))
        if self.flips:
            steps.append((flip_op, (self.flips,)))
        back = inverse(self.order)
        shape = tuple([self.shape[k] for k in back]) if back else self.shape
        if shape != self.sliced_shape:
            steps.append((reshape_op, (shape,)))
        if self.order:
            steps.append((permute_op, (self.order,)))
        return steps

    def restore(self, x: Array, y: Array) -> Array:
        """Return x with its view replaced by y."""
        y = bind(permute_op, (y,), (inverse(self.order),)) if self.order else y
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
    if isinstance(index, list) and config.current.jax_results:
        fix = "Use x[gt.array(indices)], or x[tuple(indices)]."
        raise ArgumentError(message("index", "an array, or a tuple of indices", "a list", fix))
    items: list[Any] = []
    raw = [of_sequence(item) if isinstance(item, (list, tuple)) else item for item in _items(index)]
    given = [_as_item(item) for item in raw]
    spans = {id(item): host_span(value) for item, value in zip(given, raw, strict=True) if isinstance(item, Array)}
    axis = 0
    for k, item in enumerate(given):
        if item is Ellipsis:
            # count the following items from the last axis
            axis = x.ndim - sum(_axes_of(rest) for rest in given[k + 1 :])
            items.append(item)
        else:
            if takes_outside() and _is_outside(item, x, axis):
                place = as_index(item)
                spans[id(place)] = host_span(item)
                item = place
            items.extend(_unmask(x, item, axis))
            axis += _axes_of(item)
    consumed = sum(item is not None and item is not Ellipsis and not isinstance(item, bool) for item in items)
    if consumed > x.ndim or sum(item is Ellipsis for item in items) > 1:
        raise BoundsError(
            message("index", f"at most {x.ndim} indices and one ellipsis", f"{consumed} for {x.aval!r}", "Drop some.")
        )
    if not any(item is Ellipsis for item in items):
        items.append(Ellipsis)
    where_rest = next(k for k, item in enumerate(items) if item is Ellipsis)
    advanced = any(isinstance(item, (Array, bool)) for item in items)
    # an ellipsis between two index arrays moves their axes to the front, also if it stands for no axes
    apart = advanced and consumed == x.ndim and _has_places(items[:where_rest]) and _has_places(items[where_rest + 1 :])
    items[where_rest : where_rest + 1] = [slice(None)] * (x.ndim - consumed)
    bounds: list[tuple[int, int, int]] = []
    flips: list[int] = []
    shape: list[int] = []
    arrays: list[tuple[int, Array]] = []
    loose: list[bool] = []
    for item in items:
        if item is None or isinstance(item, bool):
            if item is not None:  # a mask without axes: it chooses all or nothing of a new axis
                arrays.append((len(shape), constant_array(numpy.zeros(int(item), numpy.int64), x.aval.device)))
                loose.append(False)
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
    order: tuple[int, ...] = ()
    if apart:
        indexed = [axis for axis, _ in arrays]
        order = (*indexed, *[axis for axis in range(len(shape)) if axis not in indexed])
        arrays = [(k, array) for k, (_, array) in enumerate(arrays)]
        shape = [shape[axis] for axis in order]
    return Split(tuple(bounds), tuple(flips), tuple(shape), tuple(arrays), tuple(loose), order)


def _items(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def negatives_outside(index: Any, nearest: bool) -> Any:
    """Return an index in which negative integers, but not those of slices, do not count from the end.

    Args:
        nearest: they mean the first element; else none.
    """
    if isinstance(index, list) and config.current.jax_results:  # which `split_index` refuses
        return index
    found: list[Any] = []
    for item in _items(index):
        item = _as_item(of_sequence(item) if isinstance(item, (list, tuple)) else item)
        if (isinstance(item, _INTEGERS) and item < 0) or (isinstance(item, Array) and not _is_mask(item)):
            place = as_index(item)
            item = where(less(place, 0), 0 if nearest else FARTHEST, place)
        found.append(item)
    return tuple(found)


def _is_mask(item: Any) -> bool:
    return isinstance(item, Array) and item.aval.dtype is torch.bool


def takes_outside() -> bool:
    """Whether an integer may lie outside of its axis."""
    settings = config.current
    return settings.jax_results and not settings.check_static_indices


def _is_outside(item: Any, x: Array, axis: int) -> bool:
    """Whether an item is an out-of-range integer, which JAX treats like one in an index array."""
    return isinstance(item, _INTEGERS) and 0 <= axis < x.ndim and not -x.shape[axis] <= item < x.shape[axis]


def _resolve(item: slice, size: int) -> tuple[tuple[int, int, int], bool]:
    try:
        parts = [p if p is None else as_int("index", "slice bound", p) for p in (item.start, item.stop, item.step)]
    except IntegerConcretizationError as error:
        raise SliceConcretizationError(*error.args) from None
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


def of_sequence(items: Sequence[Any]) -> Any:
    """Return a list or tuple of integers, Arrays and such sequences as an array."""
    if not _holds_arrays(items):
        return numpy.asarray(items) if items else numpy.zeros(0, numpy.int64)
    return stack([as_index(of_sequence(item) if isinstance(item, (list, tuple)) else item) for item in items])


def _holds_arrays(items: Sequence[Any]) -> bool:
    return any(_holds_arrays(item) if isinstance(item, (list, tuple)) else isinstance(item, Array) for item in items)


def _as_item(item: Any) -> Any:
    """Return one index item, with an array of any library as an Array."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, (bool, numpy.bool_)):
        item = numpy.asarray(item)
    if python_scalar(item) is not None:
        return item
    if not isinstance(item, (Array, numpy.ndarray, torch.Tensor)):
        raise ArgumentError(
            message("index", "integers, slices, None, ... or arrays", type(item).__name__, "Convert it with gt.array.")
        )
    array = lift("index", item)
    return array if array.aval.dtype is torch.bool else as_index(array)


def _axes_of(item: Any) -> int:
    """Return the number of axes that an index item covers."""
    if _is_mask(item):
        return item.ndim
    return 0 if item is None else 1


def _unmask(x: Array, item: Any, axis: int) -> list[Any]:
    """Return what replaces a mask beginning at `axis`: the indices where it holds, or its value if it has no axes."""
    if not _is_mask(item):
        return [item]
    covered = x.shape[axis : axis + item.ndim]
    # as in NumPy, the axes of a mask without elements may be empty
    short = 0 in item.shape
    fits = all(n == m or (short and not n) for n, m in zip(item.shape, covered, strict=False))
    if not fits or len(covered) != item.ndim or axis < 0:
        got = f"{item.aval!r} for {x.aval!r}"
        raise BoundsError(message("index", "a mask with the shape of the axes it covers", got, "Check its shape."))
    host = whole(item, "mask").cpu().numpy()
    if not item.ndim:
        return [bool(host)]
    return [constant_array(p, x.aval.device) for p in numpy.nonzero(host)]
