"""Gathers and scatters of slices, under the names and with the dimension numbers of jax.lax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.core.ops.declare import Array, lift
from gtrace.core.ops.index import getitem
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import as_shape
from gtrace.lax.options import GatherScatterMode

__all__ = [
    "GatherDimensionNumbers", "ScatterDimensionNumbers", "gather", "scatter", "scatter_add", "scatter_apply",
    "scatter_max", "scatter_min", "scatter_mul", "scatter_sub",
]  # fmt: skip


class GatherDimensionNumbers(NamedTuple):
    """The roles of axes in `gather`.

    Attributes:
        offset_dims: axes of the result that run within a slice.
        collapsed_slice_dims: axes of the operand with slices of one element, which the result lacks.
        start_index_map: the axis of the operand for each component of an index.
        operand_batching_dims: axes of the operand that are paired with axes of the indices.
        start_indices_batching_dims: these axes of the indices.
    """

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


class ScatterDimensionNumbers(NamedTuple):
    """The roles of axes in `scatter` and similar functions.

    Attributes:
        update_window_dims: axes of the updates that run within a slice.
        inserted_window_dims: axes of the operand with slices of one element, which the updates lack.
        scatter_dims_to_operand_dims: the axis of the operand for each component of an index.
        operand_batching_dims: axes of the operand that are paired with axes of the indices.
        scatter_indices_batching_dims: these axes of the indices.
    """

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


def _mode(name: str, mode: Any) -> str:
    """Return the name of a mode, by default "fill".

    Raises:
        ArgumentError: there is no such mode.
    """
    known = {None: "fill", "fill": "fill", "drop": "fill", "clip": "clip", "promise_in_bounds": "promise_in_bounds"}
    found = mode.value if isinstance(mode, GatherScatterMode) else mode
    if found not in known:
        expected = "clip, fill, drop or promise_in_bounds as mode"
        raise ArgumentError(message(name, expected, repr(mode), "Pass one of them."))
    return known[found]


def _places(
    name: str, x: Array, indices: Array, sizes: tuple[int, ...], numbers: GatherDimensionNumbers, mode: str
) -> tuple[list[Array], Array | None]:
    """Return the indices of all slices' elements, and which slices are in range; None: the caller does not ask.

    Args:
        sizes: the sizes of the slices, one for each axis of x.
        numbers: the roles of the axes of indices and x; those of results are not read.

    Returns:
        For each axis of x, broadcastable indices. Their axes are those of the indices without the last one, then those
        axes of slices that are neither collapsed nor batched.

    Raises:
        ShapeError: the indices have no components, or slices are larger than x.
        DtypeError: the indices are not integers.
    """
    if indices.aval.floating or indices.aval.dtype is torch.bool:
        raise DtypeError(message(name, "integers as indices", repr(indices.aval), "Use x.astype(gt.int32)."))
    if not x.ndim:
        raise ShapeError(message(name, "an operand with axes", repr(x.aval), "There is no axis to index."))
    if not indices.ndim or indices.shape[-1] != len(numbers.start_index_map) or len(sizes) != x.ndim:
        got = f"indices {indices.aval!r} with {numbers.start_index_map} and slices {sizes} for {x.aval!r}"
        raise ShapeError(message(name, "indices of as many components as are mapped to axes", got, "Check both."))
    if 0 not in indices.shape[:-1] and any(not 0 <= n <= whole for n, whole in zip(sizes, x.shape, strict=True)):
        got = f"{sizes} for {x.aval!r}"
        raise ShapeError(message(name, "slices within the operand", got, "Check the sizes."))
    _check_axes(name, x, indices, sizes, numbers)
    batch = indices.ndim - 1
    inner = [k for k in range(x.ndim) if k not in {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}]
    along = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    indices = cast(indices, torch.int64)
    places: list[Array] = []
    inside: Array | None = None
    for axis, (size, whole) in enumerate(zip(sizes, x.shape, strict=True)):
        start: Array | None = None
        if axis in numbers.start_index_map:
            start = getitem(indices, (..., numbers.start_index_map.index(axis)))
            if mode == "clip":
                start = ops.minimum(ops.maximum(start, 0), whole - size)
            elif mode == "fill":
                fits = ops.logical_and(start >= 0, start <= whole - size)
                inside = fits if inside is None else ops.logical_and(inside, fits)
        elif axis in along:
            where_ = along[axis]
            start = ops.reshape(
                ops.arange(whole, device=x.aval.device), (*(1,) * where_, whole, *(1,) * (batch - where_ - 1))
            )
        place = ops.arange(size, device=x.aval.device)
        if axis in inner:
            place = ops.reshape(place, (*(1 if k != axis else size for k in inner),))
        else:
            place = ops.reshape(place, (1,) * len(inner))
        if start is not None:
            place = ops.expand_dims(start, tuple(range(-len(inner), 0))) + place if inner else start + place[()]
        places.append(place)
    return places, None if inside is None else ops.expand_dims(
        inside, tuple(range(-len(inner), 0))
    ) if inner else inside


def _check_axes(
    name: str, x: Array, indices: Array, sizes: tuple[int, ...], numbers: GatherDimensionNumbers
) -> None:  # fmt: skip
    """Check the axes of the operand and the indices that dimension numbers name.

    Raises:
        ShapeError: an axis is out of range, repeated or out of order, or is named in two roles.
    """
    collapsed, mapped = numbers.collapsed_slice_dims, numbers.start_index_map
    paired, along = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    limit = indices.ndim - 1
    roles = (
        ("axes without slices", collapsed, x.ndim, True), ("axes of an index's components", mapped, x.ndim, False),
        ("paired axes of the operand", paired, x.ndim, True), ("paired axes of the indices", along, limit, False),
    )  # fmt: skip
    for what, axes, end, ordered in roles:
        in_order(name, what, axes, end, ordered)
    if set(paired) & {*collapsed, *mapped}:
        got = f"{paired} beside {collapsed} and {mapped}"
        raise ShapeError(message(name, "paired axes without another role", got, "Remove them elsewhere."))
    if [x.shape[k] for k in paired] != [indices.shape[k] for k in along]:
        got = f"{paired} of {x.aval!r} and {along} of {indices.aval!r}"
        raise ShapeError(message(name, "paired axes of equal sizes", got, "Name an axis of each."))
    if any(sizes[k] > 1 for k in (*collapsed, *paired)):
        got = f"{sizes} with {collapsed} and {paired}"
        raise ShapeError(message(name, "slices of one element along axes that results lack", got, "Use size 1."))


def in_order(name: str, what: str, axes: Sequence[int], end: int, ordered: bool = True) -> None:
    """Raise ShapeError unless the axes are different, from 0 up to, but excluding, `end`, and increase if `ordered`."""
    if len(set(axes)) != len(axes) or not all(0 <= k < end for k in axes) or (ordered and list(axes) != sorted(axes)):
        order = ", in increasing order" if ordered else ""
        expected = f"different {what} from 0 up to, but excluding, {end}{order}"
        raise ShapeError(message(name, expected, str(tuple(axes)), "Check the dimension numbers."))


def gather(
    operand: Any, start_indices: Any, dimension_numbers: GatherDimensionNumbers, slice_sizes: Sequence[int], *,
    unique_indices: bool = False, indices_are_sorted: bool = False, mode: Any = None, fill_value: Any = None,
) -> Array:  # fmt: skip
    """Return slices of an array at computed starts.

    Args:
        start_indices: integers; an index is a vector along the last axis.
        dimension_numbers: a `GatherDimensionNumbers`.
        slice_sizes: the size of the slices along each axis of the operand.
        unique_indices, indices_are_sorted: ignored.
        mode: the treatment of slices that exceed the operand. ``"fill"``: they are `fill_value`; ``"clip"``, or None:
            they are moved inside; ``"promise_in_bounds"``: unspecified.
        fill_value: None: NaN for floats, the least signed or the greatest unsigned integer, or True.

    Raises:
        ShapeError: sizes or indices do not fit the operand.
        DtypeError: the indices are not integers.

    >>> rows = gt.lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    >>> gt.lax.gather(gt.array([[1., 2.], [3., 4.]]), gt.array([[1], [0]]), rows, (1, 2))
    Array([[3., 4.],
           [1., 2.]], dtype=float32)
    """
    x, indices = lift("gather", operand), lift("gather", start_indices)
    sizes, how = as_shape("gather", slice_sizes), _mode("gather", "clip" if mode is None else mode)
    numbers = GatherDimensionNumbers(*(tuple(dims) for dims in dimension_numbers))
    places, inside = _places("gather", x, indices, sizes, numbers, how)
    batch = indices.ndim - 1
    inner = x.ndim - len(numbers.collapsed_slice_dims) - len(numbers.operand_batching_dims)
    in_order("gather", "axes of slices in the result", numbers.offset_dims, batch + inner)
    if len(numbers.offset_dims) != inner:
        got = f"{numbers.offset_dims} for slices of {inner} axes"
        raise ShapeError(message("gather", "an axis of the result for each axis of slices", got, "See offset_dims."))
    if inside is None:
        out = x.at[tuple(places)].get(mode="promise_in_bounds")
    else:
        # one index out of range turns the whole slice into the fill value
        first = ops.where(inside, places[0], x.shape[0])
        out = x.at[(first, *places[1:])].get(mode="fill", fill_value=fill_value)
    offsets = tuple(range(batch, out.ndim))
    return ops.moveaxis(out, offsets, numbers.offset_dims) if numbers.offset_dims else out


def _scattered(
    name: str, update: Callable[[Any, Any], Array], operand: Any, scatter_indices: Any, updates: Any, numbers: Any,
    mode: Any,
) -> Array:  # fmt: skip
    x, indices, u = lift(name, operand), lift(name, scatter_indices), lift(name, updates)
    numbers, how = ScatterDimensionNumbers(*(tuple(dims) for dims in numbers)), _mode(name, mode)
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    inner = [k for k in range(x.ndim) if k not in gone]
    if len(numbers.update_window_dims) != len(inner) or u.ndim != indices.ndim - 1 + len(inner):
        got = f"updates {u.aval!r} with {numbers!r} for {x.aval!r} and indices {indices.aval!r}"
        raise ShapeError(message(name, "updates with the axes of indices and slices", got, "Check the numbers."))
    in_order(name, "axes of slices in the updates", numbers.update_window_dims, u.ndim)
    window = iter([u.shape[k] for k in numbers.update_window_dims])
    sizes = tuple(1 if k in gone else next(window) for k in range(x.ndim))
    like = GatherDimensionNumbers(
        (), numbers.inserted_window_dims, numbers.scatter_dims_to_operand_dims, numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
    )  # fmt: skip
    places, inside = _places(name, x, indices, sizes, like, how)
    if inside is not None:
        places[0] = ops.where(inside, places[0], x.shape[0])
    u = ops.moveaxis(u, numbers.update_window_dims, tuple(range(indices.ndim - 1, u.ndim))) if inner else u
    return update(x.at[tuple(places)], u)


def scatter(
    operand: Any, scatter_indices: Any, updates: Any, dimension_numbers: ScatterDimensionNumbers, *,
    indices_are_sorted: bool = False, unique_indices: bool = False, mode: Any = None,
) -> Array:  # fmt: skip
    """Return an array with slices at computed starts replaced; overlapping slices may win in any order.

    Args:
        scatter_indices: integers; an index is a vector along the last axis.
        updates: the slices.
        dimension_numbers: a `ScatterDimensionNumbers`.
        indices_are_sorted, unique_indices: ignored.
        mode: the treatment of slices that exceed the operand. ``"drop"``, or None: they are dropped; ``"clip"``: they
            are moved inside; ``"promise_in_bounds"``: unspecified.

    Raises:
        ShapeError: updates or indices do not fit the operand.
        DtypeError: the indices are not integers.

    >>> each = gt.lax.ScatterDimensionNumbers((), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
    >>> gt.lax.scatter(gt.zeros(3), gt.array([[2], [0]]), gt.array([1., 2.]), each)
    Array([2., 0., 1.], dtype=float32)
    """
    update = lambda at, u: at.set(u, mode="drop")  # noqa: E731 - as its kin below
    return _scattered("scatter", update, operand, scatter_indices, updates, dimension_numbers, mode)


def _scatter(name: str, what: str, update: Callable[[Any, Any], Array], example: str) -> Callable[..., Array]:
    def function(
        operand: Any, scatter_indices: Any, updates: Any, dimension_numbers: ScatterDimensionNumbers, *,
        indices_are_sorted: bool = False, unique_indices: bool = False, mode: Any = None,
    ) -> Array:  # fmt: skip
        return _scattered(name, update, operand, scatter_indices, updates, dimension_numbers, mode)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""Return an array {what}; see `scatter`.

    >>> each = gt.lax.ScatterDimensionNumbers((), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
    >>> gt.lax.{name}(gt.array([5., 6.]), gt.array([[1], [1]]), gt.array([2., 3.]), each)
    Array({example}, dtype=float32)
    """
    return function


scatter_add = _scatter(
    "scatter_add", "with slices added at computed places", lambda at, u: at.add(u, mode="drop"), "[ 5., 11.]"
)
scatter_sub = _scatter(
    "scatter_sub", "with slices subtracted at computed places", lambda at, u: at.subtract(u, mode="drop"), "[5., 1.]"
)
scatter_mul = _scatter(
    "scatter_mul", "multiplied by slices at computed places", lambda at, u: at.multiply(u, mode="drop"), "[ 5., 36.]"
)
scatter_min = _scatter(
    "scatter_min", "lowered to slices at computed places", lambda at, u: at.min(u, mode="drop"), "[5., 2.]"
)
scatter_max = _scatter(
    "scatter_max", "raised to slices at computed places", lambda at, u: at.max(u, mode="drop"), "[5., 6.]"
)


def scatter_apply(
    operand: Any, scatter_indices: Any, func: Callable[[Array], Any], dimension_numbers: ScatterDimensionNumbers, *,
    update_shape: Sequence[int] = (), indices_are_sorted: bool = False, unique_indices: bool = False, mode: Any = None,
) -> Array:  # fmt: skip
    """Return an array with an elementwise function applied to slices at computed starts, once to each element.

    Args:
        update_shape: the shape that updates of `scatter` would have.

    >>> each = gt.lax.ScatterDimensionNumbers((), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
    >>> gt.lax.scatter_apply(gt.array([4., 9.]), gt.array([[1]]), gt.sqrt, each, update_shape=(1,))
    Array([4., 3.], dtype=float32)
    """
    x = lift("scatter_apply", operand)
    none = ops.full(x.shape, False, torch.bool, device=x.aval.device)
    marks = ops.full(as_shape("scatter_apply", update_shape), True, torch.bool, device=x.aval.device)
    set_ = lambda at, u: at.set(u, mode="drop")  # noqa: E731 - as above
    chosen = _scattered("scatter_apply", set_, none, scatter_indices, marks, dimension_numbers, mode)
    return ops.where(chosen, func(x), x)
