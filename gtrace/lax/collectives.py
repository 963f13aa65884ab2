"""Collective operations over the examples of an enclosing ``vmap``, by its `axis_name`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, AxisNameError, ShapeError, message
from gtrace.core.ops.counts import unshortened
from gtrace.core.ops.declare import Array, bind
from gtrace.core.ops.gather import index_axis
from gtrace.core.ops.named_axes import all_gather_op, axis_index_op, pmax_op, pmin_op, ppermute_op, psum_op
from gtrace.core.ops.operands import cast, counting
from gtrace.core.ops.shape import as_int, normalize_axis
from gtrace.core.trace.convert import lift, new_place, python_scalar
from gtrace.core.trace.promotion import default_dtype
from gtrace.core.trace.record import thread

__all__ = [
    "all_gather", "all_to_all", "axis_index", "axis_size", "pbroadcast", "pmax", "pmean", "pmin", "ppermute",
    "pshuffle", "psum", "psum_scatter", "pswapaxes",
]  # fmt: skip

AxisName = str | tuple[str, ...]
Groups = Sequence[Sequence[int]] | None


def _axes(op: str, axis_name: Any) -> list[tuple[str, int]]:
    """Return the name and size of each axis.

    Raises:
        AxisNameError: no enclosing vmap has the name.
    """
    names = axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)
    sizes = dict(thread.axes)  # of two axes of one name, the inner one comes last
    for name in names:
        if name not in sizes:
            known = f" beside {', '.join(map(repr, sizes))}" if sizes else ""
            raise AxisNameError(
                message(op, "the axis_name of an enclosing vmap", f"{name!r}{known}", "Use gt.vmap(f, axis_name=...).")
            )
    return [(name, sizes[name]) for name in names]


def axis_size(axis_name: AxisName) -> int:
    """Return the number of examples of an axis, or of several together, as a Python int.

    Raises:
        ArgumentError: no enclosing vmap has the name.

    >>> gt.vmap(lambda x: x / gt.lax.axis_size("i"), axis_name="i")(gt.array([1., 2.]))
    Array([0.5, 1. ], dtype=float32)
    """
    total = 1
    for _, size in _axes("axis_size", axis_name):
        total *= size
    return total


@counting
def axis_index(axis_name: AxisName) -> Array:
    """Return the int64 index of the example along an axis; of several axes, the last one varies fastest.

    Raises:
        ArgumentError: no enclosing vmap has the name.

    >>> gt.vmap(lambda x: x * gt.lax.axis_index("i"), axis_name="i")(gt.array([5., 5., 5.]))
    Array([ 0.,  5., 10.], dtype=float32)
    """
    device = str(new_place(None))
    out: Any = None
    for name, size in _axes("axis_index", axis_name):
        place = bind(axis_index_op, (), (name, size, device))
        out = place if out is None else out * size + place
    if out is None:
        raise ArgumentError(message("axis_index", "at least one axis", "none", "Name an axis."))
    return out


def _group(op: str, axis_name: AxisName, groups: Sequence[Sequence[int]]) -> Array:
    """Return the indices of the examples in this example's group.

    Raises:
        ArgumentError: there are several axes, or the groups do not partition the indices into equal sizes.
    """
    axes = _axes(op, axis_name)
    if len(axes) != 1:
        raise ArgumentError(message(op, "one axis with axis_index_groups", repr(axis_name), "Name one."))
    size = axes[0][1]
    rows = [[as_int(op, "a place", place) for place in group] for group in groups]
    if sorted(place for row in rows for place in row) != list(range(size)) or len({len(row) for row in rows}) != 1:
        expected = f"groups of one size with each of {size} places once"
        raise ArgumentError(message(op, expected, repr(groups), "Check axis_index_groups."))
    table = [next(row for row in rows if place in row) for place in range(size)]
    return index_axis(ops.array(table), axis_index(axis_name), 0)


def _in_group(name: str, x: Any, axis_name: AxisName, groups: Groups, reduce: Any) -> Any:
    """Return a reduction over the group of this example, for each leaf."""
    assert groups is not None
    own = _group(name, axis_name, groups)
    return tree.map(lambda leaf: reduce(index_axis(all_gather(leaf, axis_name), own, 0), 0), x)


def psum(x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None) -> Any:
    """Return the sum of x over the examples of an axis, or of several. The transpose of psum is psum.

    Args:
        x: a pytree of arrays; booleans count as integers. A Python number gives a Python number.
        axis_index_groups: lists of indices that partition one axis; the sum is over the example's own list.

    Raises:
        ArgumentError: no enclosing vmap has the name, or the groups do not partition the axis.

    >>> gt.vmap(lambda x: x / gt.lax.psum(x, "i"), axis_name="i")(gt.array([1., 3.]))
    Array([0.25, 0.75], dtype=float32)
    """
    axes = _axes("psum", axis_name)
    if axis_index_groups is not None:
        return _in_group("psum", x, axis_name, axis_index_groups, ops.sum)

    def leaf(value: Any) -> Any:
        if type(value) is not Array and python_scalar(value) is not None:
            for _, size in axes:
                value = value * size
            return value
        out = lift("psum", value)
        if out.aval.dtype is torch.bool:
            out = cast(out, default_dtype(int))
        for axis in axes:
            out = bind(psum_op, (out,), axis)
        return out

    return tree.map(leaf, x)


def pmean(x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None) -> Any:
    """Return the mean of x over the examples of an axis, or of several.

    Args:
        x: a pytree of arrays.
        axis_index_groups: as for `psum`.

    Raises:
        ArgumentError: no enclosing vmap has the name.

    >>> gt.vmap(lambda x: x - gt.lax.pmean(x, "i"), axis_name="i")(gt.array([1., 3.]))
    Array([-1.,  1.], dtype=float32)
    """
    count = axis_size(axis_name) if axis_index_groups is None else len(axis_index_groups[0])

    def mean(leaf: Any) -> Any:
        wide = unshortened(leaf) if type(leaf) is Array else leaf
        out = psum(wide, axis_name, axis_index_groups=axis_index_groups) / count
        return out if wide is leaf else cast(out, leaf.aval.dtype)

    return tree.map(mean, x)


def pmax(x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None) -> Any:
    """Return the greatest x among the examples of an axis, or of several. Ties share the derivative.

    Args:
        x: a pytree of arrays.
        axis_index_groups: as for `psum`.

    Raises:
        ArgumentError: no enclosing vmap has the name.

    >>> gt.vmap(lambda x: gt.lax.pmax(x, "i"), axis_name="i", out_axes=None)(gt.array([1., 3.]))
    Array(3., dtype=float32)
    """
    if axis_index_groups is not None:
        return _in_group("pmax", x, axis_name, axis_index_groups, ops.max)
    return _over_axes("pmax", pmax_op, x, axis_name)


def pmin(x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None) -> Any:
    """Return the least x among the examples of an axis, or of several. Ties share the derivative.

    Args:
        x: a pytree of arrays.
        axis_index_groups: as for `psum`.

    Raises:
        ArgumentError: no enclosing vmap has the name.

    >>> gt.vmap(lambda x: gt.lax.pmin(x, "i"), axis_name="i", out_axes=None)(gt.array([1., 3.]))
    Array(1., dtype=float32)
    """
    if axis_index_groups is not None:
        return _in_group("pmin", x, axis_name, axis_index_groups, ops.min)
    return _over_axes("pmin", pmin_op, x, axis_name)


def _over_axes(name: str, op: Any, x: Any, axis_name: AxisName) -> Any:
    axes = _axes(name, axis_name)

    def leaf(value: Any) -> Array:
        out = lift(name, value)
        for axis in axes:
            out = bind(op, (out,), axis)
        return out

    return tree.map(leaf, x)


def all_gather(
    x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None, axis: int = 0, tiled: bool = False
) -> Any:
    """Return the stacked x of all examples of an axis, for each example.

    Args:
        x: a pytree of arrays.
        axis_name: of several axes, the last one varies fastest.
        axis_index_groups: as for `psum`; each example gets the x of its list, in that order.
        axis: the position of the new axis.
        tiled: concatenate along the existing `axis`, instead of stacking along a new one.

    Raises:
        ArgumentError: no enclosing vmap has the name.
        ShapeError: there is no such axis.

    >>> gt.vmap(lambda x: gt.lax.all_gather(x, "i"), axis_name="i", out_axes=None)(gt.array([1., 3.]))
    Array([1., 3.], dtype=float32)
    """
    axes = _axes("all_gather", axis_name)

    def leaf(value: Any) -> Array:
        x = lift("all_gather", value)
        place = normalize_axis("all_gather", axis, x.ndim + (not tiled))
        out, total = x, 1
        for name, size in reversed(axes):
            out = bind(all_gather_op, (out,), (name, size))
            total *= size
        out = ops.reshape(out, (total, *x.shape))
        if axis_index_groups is not None:
            out, total = (
                index_axis(out, _group("all_gather", axis_name, axis_index_groups), 0),
                len(axis_index_groups[0]),
            )
        out = ops.moveaxis(out, 0, place)
        return ops.reshape(out, (*x.shape[:place], total * x.shape[place], *x.shape[place + 1 :])) if tiled else out

    return tree.map(leaf, x)


def ppermute(x: Any, axis_name: str, perm: Sequence[tuple[int, int]]) -> Any:
    """Return the x of another example: for each pair (source, to), example `to` gets the x of `source`.

    Examples that receive nothing get zeros.

    Args:
        x: a pytree of arrays.
        axis_name: one axis.
        perm: pairs (source, to) of Python ints. Each index appears at most once as source, and at most once as `to`.

    Raises:
        ArgumentError: no enclosing vmap has the name, or `perm` repeats an index.
        ShapeError: an index is out of range.

    >>> turn = lambda x: gt.lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 0)])
    >>> gt.vmap(turn, axis_name="i")(gt.array([1., 2., 3.]))
    Array([3., 1., 2.], dtype=float32)
    """
    axes = _axes("ppermute", axis_name)
    if len(axes) != 1:
        raise ArgumentError(message("ppermute", "one axis", repr(axis_name), "Permute one axis after the other."))
    ((name, size),) = axes
    pairs = tuple((as_int("ppermute", "a place", source), as_int("ppermute", "a place", to)) for source, to in perm)
    for places in zip(*pairs, strict=True):
        if len(set(places)) != len(places):
            raise ArgumentError(message("ppermute", "each place once", repr(places), "Check perm."))
        if not all(0 <= place < size for place in places):
            raise ShapeError(message("ppermute", f"places in [0, {size})", repr(places), "Check perm."))
    return tree.map(lambda value: bind(ppermute_op, (lift("ppermute", value),), (name, size, pairs)), x)


def pshuffle(x: Any, axis_name: str, perm: Sequence[int]) -> Any:
    """Return for example k the x of example ``perm[k]``; see `ppermute`.

    >>> gt.vmap(lambda x: gt.lax.pshuffle(x, "i", [2, 0, 1]), axis_name="i")(gt.array([1., 2., 3.]))
    Array([3., 1., 2.], dtype=float32)
    """
    return ppermute(x, axis_name, [(source, to) for to, source in enumerate(perm)])


def pbroadcast(x: Any, axis_name: AxisName, source: int) -> Any:
    """Return the x of one example, for each example.

    >>> gt.vmap(lambda x: gt.lax.pbroadcast(x, "i", 1), axis_name="i")(gt.array([1., 2., 3.]))
    Array([2., 2., 2.], dtype=float32)
    """
    return tree.map(lambda leaf: index_axis(leaf, ops.array(as_int("pbroadcast", "source", source)), 0),
                    all_gather(x, axis_name))  # fmt: skip


def _own_part(name: str, x: Array, place: Array, axis: int, count: int, tiled: bool) -> Array:
    """Return an example's part of an axis: one slice, without the axis, or a block of slices.

    Raises:
        ShapeError: the axis does not have this number of parts.
    """
    size = x.shape[axis]
    if size % count if tiled else size != count:
        expected = f"a size that {count} divides" if tiled else f"the size {count}"
        got = f"{size} for axis {axis} of {x.aval!r}"
        raise ShapeError(message(name, expected, got, "Reshape the array, or look at tiled=."))
    if not tiled:
        return index_axis(x, place, axis)
    parts = ops.reshape(x, (*x.shape[:axis], count, size // count, *x.shape[axis + 1 :]))
    return index_axis(parts, place, axis)


def _places(name: str, axis_name: AxisName, groups: Groups) -> tuple[Array, int]:
    """Return the index of this example among those of its group, and their number."""
    own = axis_index(axis_name)
    if groups is None:
        return own, axis_size(axis_name)
    return ops.argmax(ops.equal(_group(name, axis_name, groups), own)), len(groups[0])


def psum_scatter(
    x: Any, axis_name: AxisName, *, scatter_dimension: int = 0, axis_index_groups: Groups = None, tiled: bool = False
) -> Any:
    """Return each example's part of `psum`.

    Args:
        x: a pytree of arrays.
        scatter_dimension: the axis that is split among the examples. It has one slice per example, and is removed.
        axis_index_groups: as for `psum`.
        tiled: keep the axis; each example gets an equal block of its slices.

    Raises:
        ArgumentError: no enclosing vmap has the name.
        ShapeError: the number of examples does not divide the axis.

    >>> gt.vmap(lambda x: gt.lax.psum_scatter(x, "i"), axis_name="i")(gt.array([[1., 2.], [3., 4.]]))
    Array([4., 6.], dtype=float32)
    """
    place, count = _places("psum_scatter", axis_name, axis_index_groups)

    def leaf(total: Array) -> Array:
        axis = normalize_axis("psum_scatter", scatter_dimension, total.ndim)
        return _own_part("psum_scatter", total, place, axis, count, tiled)

    lifted = tree.map(lambda value: lift("psum_scatter", value), x)
    return tree.map(leaf, psum(lifted, axis_name, axis_index_groups=axis_index_groups))


def all_to_all(
    x: Any, axis_name: AxisName, split_axis: int, concat_axis: int, *, axis_index_groups: Groups = None,
    tiled: bool = False,
) -> Any:  # fmt: skip
    """Send slice k of each example to example k; return the received slices.

    Args:
        x: a pytree of arrays.
        split_axis: the axis that is split among the examples. It has one slice per example, and is removed.
        concat_axis: the position of the new axis, along which received slices are stacked.
        axis_index_groups: as for `psum`.
        tiled: keep the axes: blocks of slices are cut along `split_axis`, and concatenated along `concat_axis`.

    Raises:
        ArgumentError: no enclosing vmap has the name.
        ShapeError: the number of examples does not divide the axis.

    >>> gt.vmap(lambda x: gt.lax.all_to_all(x, "i", 0, 0), axis_name="i")(gt.array([[1., 2.], [3., 4.]]))
    Array([[1., 3.],
           [2., 4.]], dtype=float32)
    """
    place, count = _places("all_to_all", axis_name, axis_index_groups)

    def leaf(value: Any) -> Array:
        whole = lift("all_to_all", value)
        split = normalize_axis("all_to_all", split_axis, whole.ndim)
        concat = normalize_axis("all_to_all", concat_axis, whole.ndim)
        found = all_gather(whole, axis_name, axis_index_groups=axis_index_groups)
        out = ops.moveaxis(_own_part("all_to_all", found, place, split + 1, count, tiled), 0, concat)
        if not tiled:
            return out
        return ops.reshape(out, (*out.shape[:concat], count * out.shape[concat + 1], *out.shape[concat + 2 :]))

    return tree.map(leaf, x)


def pswapaxes(x: Any, axis_name: AxisName, axis: int, *, axis_index_groups: Groups = None) -> Any:
    """Return x with an axis exchanged for the axis of examples; see `all_to_all`.

    >>> gt.vmap(lambda x: gt.lax.pswapaxes(x, "i", 0), axis_name="i")(gt.array([[1., 2.], [3., 4.]]))
    Array([[1., 3.],
           [2., 4.]], dtype=float32)
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)
