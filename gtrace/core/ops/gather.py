"""Primitives that read and write at indices in integer arrays."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from gtrace.core.backends.interpreter.row_indexing import add_rows, adds_rows, choose_rows, chooses_rows
from gtrace.core.backends.interpreter.short_sums import SHORT, rounded_once
from gtrace.core.base.devices import sent
from gtrace.core.base.errors import BoundsError, ShapeError, message
from gtrace.core.ops.batching import align, places, shifted
from gtrace.core.ops.checks import of_operand, reshaped
from gtrace.core.ops.declare import Aval, BadSample, Op, Sample, aval, bind, define
from gtrace.core.ops.index_bounds import clamped, is_inside
from gtrace.core.ops.logic import equal, logical_and, where
from gtrace.core.ops.operands import cast, promote
from gtrace.core.ops.samples import rng, uniform
from gtrace.core.ops.shape import broadcast_to, constant, moveaxis, reshape
from gtrace.core.ops.sharding_rules import indexed, indexed_put, picked, scattered
from gtrace.core.trace.array import Array, wrap
from gtrace.core.trace.convert import from_numpy, lift
from gtrace.core.trace.force import materialize


def constant_array(value: numpy.ndarray, device: torch.device) -> Array:
    """Return host data as an input of the program."""
    out = from_numpy(value)
    return out if device.type == "cpu" else wrap(sent(materialize(out, "index"), device))


# -- by index arrays


def _spread(x: torch.Tensor, indices: tuple[torch.Tensor, ...], dims: tuple[int, ...]) -> list[torch.Tensor | None]:
    places: list[torch.Tensor | None] = [None] * x.ndim
    for dim, index in zip(dims, indices, strict=True):
        places[dim] = index
    return places


def indexed_shape(shape: tuple[int, ...], dims: tuple[int, ...], places: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that index arrays of shape `places` on the axes `dims` select."""
    rest = [n for k, n in enumerate(shape) if k not in dims]
    start = index_place(dims)
    return (*rest[:start], *places, *rest[start:])


def index_place(dims: tuple[int, ...]) -> int:
    """Return the position of the index arrays' axes in the result: their own if adjacent, else the front."""
    return dims[0] if adjacent(dims) else 0


def _index_aval(avals: tuple[Aval, ...], dims: tuple[int, ...]) -> Aval:
    x, *indices = avals
    return reshaped(x, indexed_shape(x.shape, dims, _common_shape("index", indices)))


def _index_put_aval(avals: tuple[Aval, ...], dims: tuple[int, ...], **_: Any) -> Aval:
    x, u, *indices = avals
    places = _index_aval((x, *indices), dims).shape
    if u.dtype is not x.dtype or _common_shape("index_put", (u, reshaped(x, places))) != places:
        raise ShapeError(message("index_put", f"values of shape {places} and dtype {x.dtype}", repr(u)))
    return reshaped(x, x.shape)


def _common_shape(name: str, avals: Sequence[Aval]) -> tuple[int, ...]:
    try:
        return numpy.broadcast_shapes(*[a.shape for a in avals])
    except ValueError:
        raise ShapeError(message(name, "indices and values that broadcast", avals)) from None


def _gather_aval(avals: tuple[Aval, ...], axis: int) -> Aval:
    x, index = avals
    _check_within("gather", index, x, axis)
    return reshaped(x, index.shape)


def _scatter_add_aval(avals: tuple[Aval, ...], axis: int) -> Aval:
    x, index, u = avals
    _check_within("scatter_add", index, x, axis)
    _check_within("scatter_add", index, u, None)
    return reshaped(x, x.shape)


def _check_within(name: str, index: Aval, x: Aval, axis: int | None) -> None:
    """Raise if indices exceed the shape of `x` along an axis other than the one that they index."""
    sizes = zip(index.shape, x.shape, strict=False)
    if len(index.shape) != len(x.shape) or any(k != axis and n > m for k, (n, m) in enumerate(sizes)):
        got = f"{index!r} for {x!r} and axis {axis}"
        raise ShapeError(message(name, "indices no larger than the array, except along their axis", got))


def _index_vjp(ct: Array, needed: Any, *rest: Any, dims: tuple[int, ...]) -> list[Array | None]:
    x, *indices, _ = rest
    zeros = constant(0.0, x.aval)
    return [bind(index_put_op, (zeros, ct, *indices), (dims, (False,) * len(dims), True)), *[None] * len(indices)]


def adjacent(dims: tuple[int, ...]) -> bool:
    """Return whether each axis follows the one before it."""
    return all(b == a + 1 for a, b in itertools.pairwise(dims))


def _batch_places(size: int, flags: Any, indices: Any, dims: tuple[int, ...]) -> tuple[list[Array], tuple[int, ...]]:
    """Return index arrays and their axes that index each example by its own indices."""
    device = indices[0].aval.device
    ndim = max(index.ndim - flag for index, flag in zip(indices, flags, strict=True))
    rows = reshape(places(size, device), (size, *(1,) * ndim))
    shape = (size, *numpy.broadcast_shapes(*[i.shape[flag:] for i, flag in zip(indices, flags, strict=True)]))
    return [broadcast_to(i, shape) for i in (rows, *indices)], (0, *(d + 1 for d in dims))


def _index_batch(op: Op, size: int, batched: Any, operands: Any, dims: tuple[int, ...]) -> Array:
    x, *indices = operands
    ndim = indices[0].ndim - batched[1]
    place = index_place(dims)
    if not any(batched[1:]):
        out = bind(op, operands, (tuple(d + 1 for d in dims),))
        return out if adjacent(dims) else moveaxis(out, ndim, 0)
    if not batched[0]:
        shape = (size, *indices[0].shape[batched[1] :])
        indices = [broadcast_to(i, shape) for i in indices]
        return moveaxis(bind(op, (x, *indices), (dims,)), place, 0)
    indices, axes = _batch_places(size, batched[1:], indices, dims)
    out = bind(op, (x, *indices), (axes,))
    # in `out` the index axes come right after the batch axis
    return moveaxis(out, tuple(range(1, 1 + ndim)), tuple(range(1 + place, 1 + place + ndim)))


def _index_put_batch(
    op: Op, size: int, batched: Any, operands: Any, dims: tuple[int, ...], loose: tuple[bool, ...], accumulate: bool
) -> Array:
    x, u, *indices = operands
    ndim = indices[0].ndim - batched[2]
    x, u = align(size, batched[:2], (x, u))
    place = index_place(dims)
    if not any(batched[2:]):
        u = u if adjacent(dims) else moveaxis(u, 0, ndim)
        return bind(op, (x, u, *indices), (tuple(d + 1 for d in dims), loose, accumulate))
    indices, axes = _batch_places(size, batched[2:], indices, dims)
    u = moveaxis(u, tuple(range(1 + place, 1 + place + ndim)), tuple(range(1, 1 + ndim)))
    return bind(op, (x, u, *indices), (axes, (False, *loose), accumulate))


def _index_samples() -> list[Sample]:
    x = uniform(-2, 2, 4, 5, 3)
    i, j = rng(1).integers(0, 3, (2, 3)), rng(2).integers(-4, 4, (3,))
    return [Sample((x, i)), Sample((x, (i, j))), Sample((x, (slice(None), i))), Sample((x, (i, slice(1, 3), j % 3)))]


index_op = define(
    "index", lambda x, *indices, dims: torch.ops.aten.index.Tensor(x, _spread(x, indices, dims)),
    direct=lambda avals, dims: choose_rows if dims == (0,) and chooses_rows(*avals) else None,
    params=("dims",), arity=None, indices=True, shape=_index_aval,
    vjp=_index_vjp, linear=(0,), factors=indexed, batch=_index_batch, span=of_operand, samples=_index_samples,
    errors=lambda: [BadSample((numpy.ones((2, 3)), (0, 0, 0)), {}, BoundsError, r"at most 2")],
    reference=lambda x, index: x[index], user=lambda x, index: lift("index", x)[index],
    keeps=slice(1),
)  # fmt: skip


def _adds_rows(avals: tuple[Aval, ...], dims: tuple[int, ...], accumulate: bool) -> bool:
    """Whether an update adds whole rows at indices of the first axis."""
    x, u, *indices = avals
    return accumulate and dims == (0,) and adds_rows(x, u, indices[0])


def _written_last(x: Array, u: Array, indices: Any, near: Any, dims: tuple[int, ...], loose: tuple[bool, ...]) -> Array:
    """Return which values of an update are in its result: of several for one place, only one is.

    The update writes the number of each value in place of the value.

    Args:
        near: the indices, moved inside of their axes. A value that is left out finds the number of another, or -1.
    """
    device, count = x.aval.device, tuple(range(len(dims)))
    numbers = reshape(places(indices[0].size, device), indices[0].shape)
    none = constant(-1, aval(tuple(x.aval.shape[dim] for dim in dims), torch.int64, device))
    written = bind(index_put_op, (none, numbers, *indices), (count, loose, False))
    found = equal(bind(index_op, (written, *near), (count,)), numbers)
    return reshape(found, (*found.shape, *(1,) * (u.ndim - index_place(dims) - found.ndim)))


def update_reference(x: numpy.ndarray, index: Any, u: numpy.ndarray, name: str) -> numpy.ndarray:
    """Return what NumPy makes of ``x.at[index].name(u)``, one update after the other."""
    out = x.copy()
    if name == "set":
        out[index] = u
    else:
        ufuncs = {"add": numpy.add, "multiply": numpy.multiply, "min": numpy.minimum, "max": numpy.maximum}
        ufuncs[name].at(out, index, u)
    return out


def _index_put_impl(
    x: torch.Tensor, u: torch.Tensor, *indices: torch.Tensor, dims: tuple[int, ...], loose: tuple[bool, ...],
    accumulate: bool, put: Callable[..., torch.Tensor] = torch.ops.aten.index_put.default, rows: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Return x with u at the indices in range.

    Args:
        loose: which index arrays may be out of range.
        put: torch's index_put; its in-place variant, if x is a new array.
        rows: whether whole rows are added.
    """
    if accumulate and x.dtype in SHORT and indices[0].numel() > 1:
        # torch's kernel rounds after each addition
        wide = [y.to(torch.float32) for y in (x, u)]
        return _index_put_impl(*wide, *indices, dims=dims, loose=loose, accumulate=True, rows=rows).to(x.dtype)
    if not any(loose):
        return torch.ops.aten.index_put.default(x, _spread(x, indices, dims), u, accumulate)
    near = list(indices)
    taken: Any = None
    spare = loose.index(True)
    widened = not accumulate and indices[spare].numel() > 1
    for k, index in enumerate(indices):
        if loose[k] and not (widened and k == spare):
            size = x.shape[dims[k]]
            near[k] = torch.clamp(index, -size, size - 1)
            same = torch.eq(near[k], index)
            taken = same if taken is None else torch.logical_and(taken, same)
    if not widened:
        # an omitted element adds nothing, or writes the old value; -0.0 changes no float, but 0.0 changes -0.0
        places = _spread(x, tuple(near), dims)
        ndim = u.ndim - index_place(dims)
        taken = taken if taken.ndim == ndim else taken.reshape([*taken.shape, *(1,) * (ndim - taken.ndim)])
        nothing: Any = -0.0 if x.is_floating_point() else False
        kept = torch.where(taken, u, nothing if accumulate else torch.ops.aten.index.Tensor(x, places))
        if rows:
            return add_rows(x, kept, near[0])
        return torch.ops.aten.index_put.default(x, places, kept, accumulate)
    # values for one index are written in any order, so writing the old value could win. Omitted elements go to an extra
    # last index of an axis. The shift gives -1 for negative indices and 0 for others, faster than `where`
    axis, index = dims[spare], indices[spare]
    size = x.shape[axis]
    chosen = torch.clamp(torch.add(index, torch.bitwise_and(index >> 63, size)), -1, size)
    near[spare] = chosen if taken is None else torch.where(taken, chosen, size)
    longer = torch.cat([x, x.narrow(axis, 0, 1)], axis)
    return put(longer, _spread(x, tuple(near), dims), u, False).narrow(axis, 0, size)


def _index_put_direct(avals: tuple[Aval, ...], **params: Any) -> Callable[..., torch.Tensor] | None:
    rows = _adds_rows(avals, params["dims"], params["accumulate"])
    if not any(params["loose"]):
        return add_rows if rows else None
    return functools.partial(_index_put_impl, **params, put=torch.ops.aten.index_put_.default, rows=rows)


def _index_put_vjp(
    ct: Array, needed: Any, *rest: Any, dims: tuple[int, ...], loose: tuple[bool, ...], accumulate: bool
) -> list[Array | None]:
    x, u, *indices, _ = rest
    params = dims, loose, accumulate
    into_x = ct if accumulate else bind(index_put_op, (ct, constant(0.0, u.aval), *indices), params)
    into_u = None
    if needed[1]:
        sizes = [x.aval.shape[dim] for dim in dims]
        near = [clamped(i, n) if check else i for i, n, check in zip(indices, sizes, loose, strict=True)]
        into_u = bind(index_op, (ct, *near), (dims,))
        if not accumulate and indices[0].size > 1:
            into_u = where(_written_last(x, u, indices, near, dims, loose), into_u, 0.0)
        elif any(loose):
            into_u = where(inside(indices, sizes, loose, dims, len(u.aval.shape)), into_u, 0.0)
    return [into_x, into_u, *[None] * len(indices)]


def inside(
    indices: Sequence[Array], sizes: Sequence[int], loose: Sequence[bool], dims: tuple[int, ...], ndim: int
) -> Array:
    """Return where index arrays are in range, broadcastable to the elements read or written there.

    Args:
        indices: index arrays of one shape.
        loose: flags those that may be out of range; at least one.
        dims: the axes that they index.
        ndim: the number of dimensions of the elements.
    """
    tests = [is_inside(i, n) for i, n, check in zip(indices, sizes, loose, strict=True) if check]
    found = functools.reduce(logical_and, tests)
    return reshape(found, (*found.shape, *(1,) * (ndim - index_place(dims) - found.ndim)))


def _index_put_reference(x: Any, index: Any, u: Any, name: str, mode: str | None = None) -> numpy.ndarray:
    kept = (index >= -len(x)) & (index < len(x))
    return update_reference(x, index[kept], u[kept], name)


index_put_op = define(
    "index_put", _index_put_impl, direct=_index_put_direct, params=("dims", "loose", "accumulate"), arity=None,
    indices=True, shape=_index_put_aval, vjp=_index_put_vjp, linear=(0, 1), batch=_index_put_batch, factors=indexed_put,
    samples=lambda: [Sample((uniform(-2, 2, 5, 3), numpy.array([0, 3]), uniform(-2, 2, 2, 3, seed=1), name),
                            {"mode": "promise_in_bounds"}) for name in ("set", "add")]
    + [Sample((uniform(-2, 2, 5, 3), numpy.array([-2, 7, 0]), uniform(-2, 2, 3, 3, seed=1), name))
       for name in ("set", "add")],
    reference=_index_put_reference,
    user=lambda x, index, u, name, mode=None: getattr(lift("at", x).at[lift("at", index)], name)(u, mode=mode),
    keeps=slice(1),
)  # fmt: skip


# -- along one axis


gather_op = define(
    "gather", lambda x, index, axis: torch.gather(x, axis, index), params=("axis",), arity=2, indices=True,
    shape=_gather_aval,
    vjp=lambda ct, needed, x, index, out, axis: (
        bind(scatter_add_op, (constant(0.0, x.aval), index, ct), (axis,)), None,
    ),
    linear=(0,), factors=picked, batch=shifted("axis"), span=of_operand,
    samples=lambda: [Sample((uniform(-2, 2, 3, 4), rng(1).integers(0, 3, (2, 4)), 0)),
                     Sample((uniform(-2, 2, 3, 4), rng(1).integers(0, 4, (3, 2)), -1))],
    reference=numpy.take_along_axis, user=lambda x, index, axis: bind(
        gather_op, (lift("gather", x), cast(lift("gather", index), torch.int64)), (axis % lift("gather", x).ndim,)
    ),
    keeps=slice(1),
)  # fmt: skip
"""The elements of x at int64 indices along an axis, as torch.gather picks them; the indices are in range."""


def _scatter_add_reference(x: numpy.ndarray, index: numpy.ndarray, u: numpy.ndarray, axis: int) -> numpy.ndarray:
    out = x.copy()
    for place in numpy.ndindex(index.shape):
        out[(*place[:axis], index[place], *place[axis + 1 :])] += u[place]
    return out


@rounded_once
def _scatter_add(x: torch.Tensor, index: torch.Tensor, u: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.scatter_add(x, axis, index, u)


scatter_add_op = define(
    "scatter_add", _scatter_add, params=("axis",), arity=3,
    indices=True, shape=_scatter_add_aval,
    vjp=lambda ct, needed, x, index, u, out, axis: (ct, None, bind(gather_op, (ct, index), (axis,))),
    linear=(0, 2), batch=shifted("axis"), factors=scattered,
    samples=lambda: [Sample((uniform(-2, 2, 3, 4), rng(1).integers(0, 3, (2, 4)), uniform(-2, 2, 2, 4, seed=2), 0))],
    reference=_scatter_add_reference,
    user=lambda x, index, u, axis: bind(scatter_add_op, (*_same_dtype(x, u, index),), (axis,)),
    keeps=slice(1),
)  # fmt: skip


def _same_dtype(x: Any, u: Any, index: Any) -> tuple[Any, Any, Any]:
    x, u = promote("scatter_add", lift("", x), lift("", u))
    return x, cast(lift("scatter_add", index), torch.int64), u


def index_axis(x: Array, index: Array, axis: int) -> Array:
    """Return x at the indices `index` of one axis."""
    return bind(index_op, (x, index), ((axis,),))


def take_constant(x: Array, places: numpy.ndarray, axis: int) -> Array:
    """Return the slices of x at indices that are known while recording."""
    return index_axis(x, constant_array(numpy.ascontiguousarray(places, dtype=numpy.int64), x.aval.device), axis)
