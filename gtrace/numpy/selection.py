"""Choosing and replacing elements: by conditions, by places, and in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.gather import gather_op
from gtrace.core.ops.ndarray_methods import compress
from gtrace.core.ops.operands import cast, counting, promote_arrays
from gtrace.core.ops.shape import as_int, normalize_axis
from gtrace.core.ops.unique import lexicographic
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind, distinct
from gtrace.core.trace.convert import lift
from gtrace.numpy.filling import like
from gtrace.numpy.shapes import refuse_inplace, resize

__all__ = [
    "argpartition", "argwhere", "choose", "extract", "flatnonzero", "lexsort", "partition", "piecewise", "put",
    "put_along_axis", "select",
]  # fmt: skip


@counting
def argwhere(x: Any, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Return the indices of the elements that are not zero as rows, int64.

    Args:
        size, fill_value: as in `nonzero`.

    >>> gnp.argwhere(gnp.array([[0, 3], [5, 0]]))
    Array([[0, 1],
           [1, 0]], dtype=int64)
    """
    x = lift("argwhere", x)
    if x.ndim:
        return ops.stack(ops.nonzero(x, size=size, fill_value=fill_value), 1)
    rows = ops.nonzero(ops.reshape(x, (1,)), size=size, fill_value=fill_value)[0]
    return ops.reshape(rows, (rows.size, 1))[:, :0]


@counting
def flatnonzero(x: Any, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Return the places in the flattened array of the elements that are not zero, int64.

    Args:
        size, fill_value: as in `nonzero`.

    >>> gnp.flatnonzero(gnp.array([[0, 3], [5, 0]]))
    Array([1, 2], dtype=int64)
    """
    return ops.nonzero(ops.ravel(x), size=size, fill_value=fill_value)[0]


def extract(condition: Any, x: Any, *, size: int | None = None, fill_value: Any = 0) -> Array:
    """Return the elements of x where `condition`, of the same size, holds.

    Args:
        size, fill_value: as in `compress`.

    >>> gnp.extract(gnp.array([True, False]), gnp.array([1, 2]))
    Array([1], dtype=int64)
    """
    return compress(ops.ravel(ops.array(condition)), ops.ravel(ops.array(x)), 0, size=size, fill_value=fill_value)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Array:
    """Return at each place the choice of the first condition that holds there, or `default`.

    Raises:
        ArgumentError: no conditions, or not as many as choices.

    >>> x = gnp.arange(4)
    >>> gnp.select([x < 1, x > 2], [x - 10, x + 10])
    Array([-10,   0,   0,  13], dtype=int64)
    """
    if not len(condlist) or len(condlist) != len(choicelist):
        got = f"{len(condlist)} and {len(choicelist)}"
        raise ArgumentError(message("select", "as many conditions as choices, at least one", got, "Match them."))
    *choices, out = promote_arrays("select", *choicelist, default)
    conditions = [lift("select", c) for c in condlist]
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        out = ops.where(condition, choice, out)
    return out


def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Array:
    """Return for each element the function of the last condition that holds there, in the dtype of x.

    Every function is applied to all of x. Its derivative counts only where it is chosen.

    Args:
        funclist: functions of x, or numbers: one for each condition, and perhaps one more for where none holds.
        args, kw: passed on to the functions.

    Raises:
        ArgumentError: another number of functions.

    >>> x = gnp.array([-1., 2.])
    >>> gnp.piecewise(x, [x < 0, x >= 0], [lambda v: -v, lambda v: v * 10])
    Array([ 1., 20.], dtype=float32)
    """
    x = lift("piecewise", x)
    single = not isinstance(condlist, (list, tuple)) and lift("piecewise", condlist).ndim <= x.ndim
    conditions = [ops.array(c) for c in ([condlist] if single else condlist)]
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        got = f"{len(funclist)} for {len(conditions)} conditions"
        raise ArgumentError(message("piecewise", "a function for each condition, or one more", got, "Match them."))
    found = [f(x, *args, **kw) if callable(f) else f for f in funclist]
    values = [like(v, x) for v in found]
    out = values[-1] if len(values) > len(conditions) else ops.full((), 0, x.aval.dtype, device=x.aval.device)
    out = ops.broadcast_to(out, x.shape)
    for condition, value in zip(conditions, values, strict=False):
        out = ops.where(condition, value, out)
    return out


def choose(a: Any, choices: Any, *, mode: str = "raise") -> Array:
    """Return at each place the element of the choice whose number is in `a`; all of them broadcast.

    Args:
        mode: for numbers outside. ``"raise"``: an error when run; ``"wrap"``: counted around; ``"clip"``: the nearest.

    >>> gnp.choose(gnp.array([0, 1]), [gnp.array([1, 2]), gnp.array([10, 20])])
    Array([ 1, 20], dtype=int64)
    """
    items = promote_arrays("choose", *[ops.array(c) for c in choices])
    index = cast(ops.array(a), torch.int64)
    if mode not in ("raise", "wrap", "clip"):
        raise ArgumentError(message("choose", "raise, wrap or clip as mode", repr(mode), "Pass one of them."))
    if mode != "raise":
        index = ops.remainder(index, len(items)) if mode == "wrap" else ops.clip(index, 0, len(items) - 1)
    index, *items = ops.broadcast_arrays(index, *items)
    # not take_along_axis, which counts negative places from the end, and takes the nearest place outside
    return bind(gather_op, (ops.stack(items), ops.expand_dims(index, 0)), (0,))[0]


def put(x: Any, ind: Any, v: Any, mode: str | None = None, *, inplace: bool = False) -> Array:
    """Return x with the elements at places `ind` of the flattened array replaced by v, repeated as often as needed.

    Args:
        mode: for places outside. None: left out; ``"raise"``: an error when run; ``"wrap"``: counted around;
            ``"clip"``: the nearest end.
        inplace: must stay False: Arrays never change.

    >>> gnp.put(gnp.zeros(3), gnp.array([0, 2]), 1.)
    Array([1., 0., 1.], dtype=float32)
    """
    refuse_inplace("put", inplace)
    x, places = lift("put", x), ops.ravel(cast(ops.array(ind), torch.int64))
    if mode not in (None, "raise", "wrap", "clip"):
        raise ArgumentError(message("put", "raise, wrap or clip as mode", repr(mode), "Pass one of them."))
    if mode in ("wrap", "clip"):
        places = ops.remainder(places, x.size) if mode == "wrap" else ops.clip(places, 0, x.size - 1)
    values = like(v, x)
    if not values.size:
        return distinct(x)
    values = resize(values, (places.size,))
    checks = None if mode is None else "promise_in_bounds"  # of "raise", torch itself finds a place outside
    return ops.reshape(ops.ravel(x).at[places].set(values, mode=checks), x.shape)


def put_along_axis(
    x: Any, indices: Any, values: Any, axis: int | None, inplace: bool = False, *, mode: str | None = None
) -> Array:
    """Return x with the elements at `indices` along `axis` replaced, matched in the other axes as in `take_along_axis`.

    Args:
        axis: None: of the flattened array.
        inplace: must stay False: Arrays never change.
        mode: for places outside, as for ``x.at[places].set``; None: they are left out.

    >>> gnp.put_along_axis(gnp.zeros((2, 2)), gnp.array([[1], [0]]), 5., 1)
    Array([[0., 5.],
           [5., 0.]], dtype=float32)
    """
    refuse_inplace("put_along_axis", inplace)
    x, index = lift("put_along_axis", x), cast(ops.array(indices), torch.int64)
    if axis is None:
        return ops.reshape(put_along_axis(ops.ravel(x), index, values, 0, mode=mode), x.shape)
    if index.ndim != x.ndim:
        got = f"{x.aval!r} and {index.aval!r}"
        raise ShapeError(message("put_along_axis", "as many axes in both", got, "Use expand_dims."))
    place = normalize_axis("put_along_axis", axis, x.ndim)
    shape = tuple(index.shape[k] if k == place else n for k, n in enumerate(x.shape))
    places = [
        ops.reshape(ops.arange(n, device=x.aval.device), (n, *(1,) * (x.ndim - 1 - k))) for k, n in enumerate(x.shape)
    ]
    places[place] = index
    chosen = tuple(ops.broadcast_to(p, shape) for p in places)
    return x.at[chosen].set(like(values, x), mode=mode)


@counting
def lexsort(keys: Any, axis: int = -1) -> Array:
    """Return the order of elements by several keys, the last of which counts most, as int64.

    >>> gnp.lexsort((gnp.array([1, 0, 2]), gnp.array([5, 5, 1])))
    Array([2, 1, 0], dtype=int64)
    """
    arrays = [ops.array(k) for k in keys]
    if not arrays or len({k.shape for k in arrays}) > 1:
        got = " and ".join(repr(k.aval) for k in arrays) or "none"
        raise ShapeError(message("lexsort", "keys of one shape", got, "Pass at least one."))
    if not arrays[0].ndim:
        return ops.full((), 0, torch.int64, device=arrays[0].aval.device)
    if arrays[0].ndim == 1:
        return lexicographic(arrays)
    order = ops.argsort(arrays[0], axis)
    for key in arrays[1:]:
        order = ops.take_along_axis(order, ops.argsort(ops.take_along_axis(key, order, axis), axis), axis)
    return order


def partition(x: Any, kth: Any, axis: int | None = -1) -> Array:
    """Return x in an order along `axis` in which element `kth` is where sorting puts it, between smaller and larger.

    They are sorted altogether.

    >>> gnp.partition(gnp.array([3, 1, 2]), 1)
    Array([1, 2, 3], dtype=int64)
    """
    x, axis = _ranked("partition", x, kth, axis)
    return ops.sort(x, axis)


def argpartition(x: Any, kth: Any, axis: int | None = -1) -> Array:
    """Return the indices that order x as `partition` does.

    >>> gnp.argpartition(gnp.array([3, 1, 2]), 1)
    Array([1, 2, 0], dtype=int64)
    """
    x, axis = _ranked("argpartition", x, kth, axis)
    return ops.argsort(x, axis)


def _ranked(op: str, x: Any, kth: Any, axis: int | None) -> tuple[Array, int]:
    x = lift(op, x)
    if axis is None:
        x, axis = ops.ravel(x), 0
    axis = normalize_axis(op, axis, x.ndim)
    for k in kth if isinstance(kth, (list, tuple)) else (kth,):
        normalize_axis(op, as_int(op, "kth", k), x.shape[axis])
    return x, axis
