"""Collective operations over the examples of an enclosing ``vmap``, by its `axis_name`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gtrace import tree
from gtrace.errors import ArgumentError, ShapeError, message
from gtrace.ir.aval import as_device
from gtrace.ops.named_axes import all_gather_op, axis_index_op, pmax_op, pmin_op, ppermute_op, psum_op
from gtrace.ops.promote import cast, counting
from gtrace.ops.shape import as_int, moveaxis, normalize_axis, reshape
from gtrace.trace.array import Array
from gtrace.trace.bind import bind
from gtrace.trace.convert import lift, python_scalar
from gtrace.trace.number_rules import default_dtype
from gtrace.trace.record import thread

__all__ = ["all_gather", "axis_index", "axis_size", "pmax", "pmean", "pmin", "ppermute", "psum"]

AxisName = str | tuple[str, ...]


def _axes(op: str, axis_name: Any) -> list[tuple[str, int]]:
    """Return the name and size of each axis.

    Raises:
        ArgumentError: no enclosing vmap has the name.
    """
    names = axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)
    sizes = dict(thread.axes)  # of two axes of one name, the inner one comes last
    for name in names:
        if name not in sizes:
            known = f" beside {', '.join(map(repr, sizes))}" if sizes else ""
            raise ArgumentError(
                message(op, "the axis_name of an enclosing vmap", f"{name!r}{known}", "Use gt.vmap(f, axis_name=...).")
            )
    return [(name, sizes[name]) for name in names]


def axis_size(axis_name: AxisName) -> int:
    """Return the number of examples of an axis, or of several together, as a Python int.

    Raises:
        ArgumentError: no enclosing vmap has the name.

    >>> import gtrace as gt
    >>> gt.vmap(lambda x: x / gt.lax.axis_size("i"), axis_name="i")(gt.array([1., 2.]))
    Array([0.5, 1. ], dtype=float32)
    """
    total = 1
    for _, size in _axes("axis_size", axis_name):
        total *= size
    return total


@counting
def axis_index(axis_name: AxisName) -> Array:
    """Return the place of the example along an axis, as int64; of several axes, counted with the last one fastest.

    Raises:
        ArgumentError: no enclosing vmap has the name.

    >>> import gtrace as gt
    >>> gt.vmap(lambda x: x * gt.lax.axis_index("i"), axis_name="i")(gt.array([5., 5., 5.]))
    Array([ 0.,  5., 10.], dtype=float32)
    """
    device = str(as_device(None))
    out: Any = None
    for name, size in _axes("axis_index", axis_name):
        place = bind(axis_index_op, (), (name, size, device))
        out = place if out is None else out * size + place
    if out is None:
        raise ArgumentError(message("axis_index", "at least one axis", "none", "Name an axis."))
    return out


def psum(x: Any, axis_name: AxisName) -> Any:
    """Return the sum of x over the examples of an axis, or of several. The transpose of psum is psum.

    Args:
        x: a pytree of arrays; booleans count as integers. A Python number gives a Python number.

    Raises:
        ArgumentError: no enclosing vmap has the name.

    >>> import gtrace as gt
    >>> gt.vmap(lambda x: x / gt.lax.psum(x, "i"), axis_name="i")(gt.array([1., 3.]))
    Array([0.25, 0.75], dtype=float32)
    """
    axes = _axes("psum", axis_name)

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


def pmean(x: Any, axis_name: AxisName) -> Any:
    """Return the mean of x over the examples of an axis, or of several.

    Args:
        x: a pytree of arrays.

    Raises:
        ArgumentError: no enclosing vmap has the name.

    >>> import gtrace as gt
    >>> gt.vmap(lambda x: x - gt.lax.pmean(x, "i"), axis_name="i")(gt.array([1., 3.]))
    Array([-1.,  1.], dtype=float32)
    """
    count = axis_size(axis_name)
    return tree.map(lambda total: total / count, psum(x, axis_name))


def pmax(x: Any, axis_name: AxisName) -> Any:
    """Return the greatest x among the examples of an axis, or of several. Ties share the derivative.

    Args:
        x: a pytree of arrays.

    Raises:
        ArgumentError: no enclosing vmap has the name.

    >>> import gtrace as gt
    >>> gt.vmap(lambda x: gt.lax.pmax(x, "i"), axis_name="i", out_axes=None)(gt.array([1., 3.]))
    Array(3., dtype=float32)
    """
    return _over_axes("pmax", pmax_op, x, axis_name)


def pmin(x: Any, axis_name: AxisName) -> Any:
    """Return the least x among the examples of an axis, or of several. Ties share the derivative.

    Args:
        x: a pytree of arrays.

    Raises:
        ArgumentError: no enclosing vmap has the name.

    >>> import gtrace as gt
    >>> gt.vmap(lambda x: gt.lax.pmin(x, "i"), axis_name="i", out_axes=None)(gt.array([1., 3.]))
    Array(1., dtype=float32)
    """
    return _over_axes("pmin", pmin_op, x, axis_name)


def _over_axes(name: str, op: Any, x: Any, axis_name: AxisName) -> Any:
    axes = _axes(name, axis_name)

    def leaf(value: Any) -> Array:
        out = lift(name, value)
        for axis in axes:
            out = bind(op, (out,), axis)
        return out

    return tree.map(leaf, x)


def all_gather(x: Any, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Any:
    """Return the x of all examples of an axis, stacked, for each of them.

    Args:
        x: a pytree of arrays.
        axis_name: of several axes, the last one is the fastest.
        axis: the place of the new axis.
        tiled: concatenate along an `axis` that x has, instead of stacking along a new one.

    Raises:
        ArgumentError: no enclosing vmap has the name.
        ShapeError: no such axis.

    >>> import gtrace as gt
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
        out = moveaxis(reshape(out, (total, *x.shape)), 0, place)
        return reshape(out, (*x.shape[:place], total * x.shape[place], *x.shape[place + 1 :])) if tiled else out

    return tree.map(leaf, x)


def ppermute(x: Any, axis_name: str, perm: Sequence[tuple[int, int]]) -> Any:
    """Return the x of another example: that of place `source` goes to place `to`.

    Places that receive nothing get zeros.

    Args:
        x: a pytree of arrays.
        axis_name: one axis.
        perm: pairs (source, to) of Python ints, each place at most once among the sources and once among the others.

    Raises:
        ArgumentError: no enclosing vmap has the name, or `perm` names a place twice.
        ShapeError: a place outside the axis.

    >>> import gtrace as gt
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
