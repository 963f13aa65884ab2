"""Slicing, joining, splitting and flipping."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy
import torch

from gtrace.core.base.errors import ShapeError, message
from gtrace.core.ops.batching import prefixed, shifted, whole
from gtrace.core.ops.checks import of_operand, reshaped, same_kind
from gtrace.core.ops.declare import Array, Aval, BadSample, Sample, bind, define, lift
from gtrace.core.ops.operands import cast, promote, promote_arrays
from gtrace.core.ops.samples import uniform
from gtrace.core.ops.shape import as_int, constant, expand_dims, normalize_axes, normalize_axis, ravel, squeeze
from gtrace.core.ops.sharding_rules import along, sliced, unsliced, updated
from gtrace.core.passes.channels_last import join_in_layout
from gtrace.core.trace.bind import distinct
from gtrace.core.trace.promotion import as_dtype
from gtrace.core.trace.replayable import replayable

__all__ = ["concat", "concatenate", "stack", "unstack", "split", "flip"]

# -- slices

Bounds = tuple[tuple[int, int, int], ...]
"""start, stop and step > 0 of a slice for each axis, all in range."""


def _slice(x: Any, bounds: Bounds) -> Any:
    return x[tuple(slice(*b) for b in bounds)]


def _unslice_impl(x: torch.Tensor, shape: tuple[int, ...], bounds: Bounds) -> torch.Tensor:
    # one axis at a time, each time embedding into zeros
    for axis in reversed(range(len(shape))):
        start, stop, step = bounds[axis]
        if (start, stop, step) != (0, shape[axis], 1):
            sizes = [*x.shape]
            sizes[axis] = shape[axis]
            x = torch.slice_scatter(x.new_zeros(sizes), x, axis, start, stop, step)
    return x


slice_op = define(
    "slice", _slice, uniform=True, moves=True, view=True, params=("bounds",), linear=True,
    vjp=lambda ct, needed, x, out, bounds: (bind(_unslice, (ct,), (x.aval.shape, bounds)),),
    batch=prefixed(bounds=whole), span=of_operand, factors=sliced,
    samples=lambda: [Sample((uniform(-2, 2, 5, 6), ((1, 4, 1), (0, 6, 2)))), Sample((uniform(-2, 2, 5), ((2, 2, 1),)))],
    reference=_slice,
    user=lambda x, bounds: slice_bounds(lift("slice", x), bounds),
    keeps=slice(None),
)  # fmt: skip
_unslice = define(
    "unslice", _unslice_impl, params=("shape", "bounds"),
    shape=lambda avals, shape, bounds: reshaped(avals[0], shape),
    vjp=lambda ct, needed, x, out, shape, bounds: (slice_bounds(ct, bounds),), linear=True,
    batch=prefixed(shape=int, bounds=whole), factors=unsliced,
    samples=lambda: [Sample((uniform(-2, 2, 3, 3), (5, 6), ((1, 4, 1), (0, 6, 2))))],
    reference=lambda x, shape, bounds: _update_reference(numpy.zeros(shape, x.dtype), x, bounds),
    user=lambda x, shape, bounds: bind(_unslice, (lift("unslice", x),), (shape, bounds)),
    keeps=slice(None),
)  # fmt: skip


def slice_bounds(x: Array, bounds: Bounds) -> Array:
    """Return x[start:stop:step, ...] for bounds within the axes."""
    if all(b == (0, n, 1) for b, n in zip(bounds, x.shape, strict=True)):
        return x
    return bind(slice_op, (x,), (bounds,))


def slice_axis(x: Array, axis: int, start: int, stop: int) -> Array:
    """Return the elements of x from `start` to `stop` along one axis."""
    return slice_bounds(x, tuple((start, stop, 1) if k == axis else (0, n, 1) for k, n in enumerate(x.shape)))


def neighbours(x: Array, axis: int, distance: int, fill: Any) -> Array:
    """Return the elements that stand `distance` before along an axis, or after it if negative; `fill` at the end."""
    size, width = x.shape[axis], abs(distance)
    end = slice_axis(x, axis, 0, width)
    filled = constant(fill, end.aval)
    if distance < 0:
        return concat([slice_axis(x, axis, width, size), filled], axis)
    return concat([filled, slice_axis(x, axis, 0, size - width)], axis)


def update_impl(x: torch.Tensor, u: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    views = [x]
    for axis, (start, stop, step) in enumerate(bounds[:-1]):
        index = [slice(None)] * axis + [slice(start, stop, step)]
        views.append(views[-1][tuple(index)])
    for axis in reversed(range(len(bounds))):
        u = torch.slice_scatter(views[axis], u, axis, *bounds[axis])
    return u


def _update_reference(x: numpy.ndarray, u: numpy.ndarray, bounds: Bounds) -> numpy.ndarray:
    out = x.copy()
    out[tuple(slice(*b) for b in bounds)] = u
    return out


_slice_update = define(
    "slice_update", update_impl, params=("bounds",), arity=2, linear=True,
    vjp=lambda ct, needed, x, u, out, bounds: (
        bind(_slice_update, (ct, constant(0.0, u.aval)), (bounds,)), slice_bounds(ct, bounds),
    ),
    shape=same_kind, batch=prefixed(bounds=whole), factors=updated,
    samples=lambda: [Sample((uniform(-2, 2, 5, 6), uniform(-2, 2, 3, 3, seed=1), ((1, 4, 1), (0, 6, 2))))],
    reference=_update_reference,
    user=lambda x, u, bounds: bind(_slice_update, promote_arrays("slice_update", x, u), (bounds,)),
    keeps=slice(1),
)  # fmt: skip


def slice_update(x: Array, u: Array, bounds: Bounds) -> Array:
    """Return x with ``x[start:stop:step, ...]`` replaced by u, which has the shape of that slice."""
    return bind(_slice_update, (x, u), (bounds,)) if bounds else u


# -- joining and splitting


def _concat_vjp(ct: Array, needed: Any, *rest: Any, axis: int) -> list[Array | None]:
    arrays, start, out = rest[:-1], 0, []
    for need, x in zip(needed, arrays, strict=True):
        stop = start + x.aval.shape[axis]
        out.append(slice_axis(ct, axis, start, stop) if need else None)
        start = stop
    return out


def _check_concat(op: str, avals: tuple[Aval, ...], axis: int) -> None:
    first = avals[0].shape
    for a in avals:
        if len(a.shape) != len(first) or any(
            n != m for k, (n, m) in enumerate(zip(a.shape, first, strict=True)) if k != axis
        ):
            raise ShapeError(message("concat", f"arrays equal in every axis but {axis}", avals, "Reshape or pad one."))


def _concat_shape(avals: tuple[Aval, ...], axis: int) -> tuple[int, ...]:
    first = avals[0].shape
    return (*first[:axis], sum(a.shape[axis] for a in avals), *first[axis + 1 :])


_concat = define(
    "concat", lambda *xs, axis: torch.cat(xs, dim=axis),
    direct=lambda avals, axis: lambda *xs: join_in_layout(xs, axis), moves=True, params=("axis",), arity=None,
    check=_check_concat, shape=_concat_shape,
    vjp=_concat_vjp, linear=True, batch=shifted("axis"), factors=along("axis"),
    samples=lambda: [Sample(([uniform(-2, 2, 2, 3), uniform(-2, 2, 1, 3, seed=1)],)),
                     Sample(([uniform(-2, 2, 2, 3), uniform(-2, 2, 2, 1, seed=1)],), {"axis": -1})],
    errors=lambda: [BadSample(([numpy.ones((2, 3)), numpy.ones((2, 4))],), {}, ShapeError, r"equal in every axis")],
    reference=numpy.concatenate, user=lambda xs, axis=0: concat(xs, axis),
    keeps=slice(None),
)  # fmt: skip


@replayable
def concat(arrays: Sequence[Any], axis: int | None = 0, *, dtype: Any = None) -> Array:
    """Return the arrays joined along an existing axis; None flattens them first.

    Args:
        dtype: the dtype of the result; None: the common dtype.

    Raises:
        ShapeError: the arrays differ in another axis.

    >>> gt.concat([gt.zeros(2), gt.ones(1)])
    Array([0., 0., 1.], dtype=float32)
    """
    if not len(arrays):
        raise ShapeError(message("concat", "at least one array", "none", "Pass a non-empty sequence."))
    operands = promote("concat", *[lift("concat", x) for x in arrays])
    if dtype is not None:
        operands = [cast(x, as_dtype(dtype)) for x in operands]  # type: ignore[arg-type]
    if axis is None:
        operands = [ravel(x) for x in operands]
        axis = 0
    ndim = len(operands[0].aval.shape)
    if not ndim:
        raise ShapeError(message("concat", "arrays with a dimension", "0-d arrays", "Use gt.stack."))
    return bind(_concat, operands, (normalize_axis("concat", axis, ndim),))


concatenate = concat


@replayable
def stack(arrays: Sequence[Any], axis: int = 0, *, dtype: Any = None) -> Array:
    """Return the arrays joined along a new axis.

    Raises:
        ShapeError: the shapes differ.

    >>> gt.stack([gt.zeros(2), gt.ones(2)], axis=1).shape
    (2, 2)
    """
    lifted = [lift("stack", x) for x in arrays]
    if len({x.shape for x in lifted}) > 1:
        raise ShapeError(
            message("stack", "arrays of one shape", [x.aval for x in lifted], "Broadcast or pad them first.")
        )
    return concat([expand_dims(x, axis) for x in lifted], axis, dtype=dtype) if lifted else concat([])


@replayable
def split(x: Any, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Return x cut along `axis` into a number of equal parts, or before each of the given indices.

    Raises:
        ShapeError: the axis does not divide into equal parts.

    >>> [part.shape for part in gt.split(gt.zeros((6, 2)), [1, 4])]
    [(1, 2), (3, 2), (2, 2)]
    """
    x = lift("split", x)
    axis = normalize_axis("split", axis, x.ndim)
    size = x.shape[axis]
    if not numpy.ndim(indices_or_sections):
        count = as_int("split", "number of parts", indices_or_sections)
        if count < 1 or size % count:
            expected = f"a number of parts that divides {size}"
            raise ShapeError(message("split", expected, str(count), "Pass indices instead."))
        bounds = [k * (size // count) for k in range(count + 1)]
    else:
        places = [as_int("split", "index", k) for k in indices_or_sections]  # type: ignore[union-attr]
        bounds = [0, *(min(max(k + size if k < 0 else k, 0), size) for k in places), size]
    parts = [slice_axis(x, axis, a, max(a, b)) for a, b in pairwise(bounds)]
    return [distinct(part) if part is x else part for part in parts]


def unstack(x: Any, axis: int = 0) -> tuple[Array, ...]:
    """Return the slices of x along `axis`, without that axis.

    >>> gt.unstack(gt.array([[1, 2], [3, 4]]))
    (Array([1, 2], dtype=int64), Array([3, 4], dtype=int64))
    """
    x = lift("unstack", x)
    axis = normalize_axis("unstack", axis, x.ndim)
    return tuple(squeeze(slice_axis(x, axis, k, k + 1), axis) for k in range(x.shape[axis]))


# -- flip


flip_op = define(
    "flip", lambda x, axes: torch.flip(x, axes), uniform=True, params=("axes",), shape=same_kind,
    vjp=lambda ct, needed, x, out, axes: (bind(flip_op, (ct,), (axes,)),), linear=True, batch=shifted("axes"),
    factors=along("axes"),
    span=of_operand, samples=lambda: [Sample((uniform(-2, 2, 3, 4), a)) for a in [(0,), (0, 1)]],
    reference=numpy.flip, user=lambda x, axes: flip(x, axes),
    keeps=slice(None),
)  # fmt: skip


def flip(x: Any, axis: Any = None) -> Array:
    """Return x with the order of elements reversed along `axis` (None: every axis).

    >>> gt.flip(gt.arange(3))
    Array([2, 1, 0], dtype=int64)
    """
    x = lift("flip", x)
    axes = normalize_axes("flip", axis, x.ndim)
    return bind(flip_op, (x,), (axes,)) if axes else distinct(x)
