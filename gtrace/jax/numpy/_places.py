"""Functions of places in arrays. As in JAX they treat places outside of the array, and choose dtypes."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy
import torch

from gtrace import numpy as ours
from gtrace.errors import BoundsError
from gtrace.extend import (
    INTEGERS,
    LONG,
    READ_MODES,
    Array,
    DtypeError,
    as_dtype,
    as_index,
    cast,
    default_dtype,
    index_axis,
    is_placeholder,
    lift,
    message,
    mode_name,
    negatives_outside,
    ops,
    places_where,
    promote_arrays,
    weakened,
    whole,
    with_axis,
)
from gtrace.jax.keys import taking_keys
from gtrace.jax.weakness import with_weakness

__all__ = [
    "bincount", "choose", "delete", "digitize", "ravel_multi_index", "searchsorted", "take",
    "take_along_axis", "tri", "unravel_index",
]  # fmt: skip


@functools.partial(taking_keys, "jax.numpy.take")
def take(
    a: Any, indices: Any, axis: int | None = None, out: None = None, mode: Any = None,
    unique_indices: bool = False, indices_are_sorted: bool = False, fill_value: Any = None,
) -> Array:  # fmt: skip
    """``gt.take``; places outside the axis give `fill_value`, by default NaN, unless the mode says otherwise.

    Booleans are the places 0 and 1.

    Raises:
        BoundsError: the axis is empty but the indices are not.
    """
    x = lift("take", a)
    if getattr(indices, "dtype", type(indices)) in ("bool", bool):
        indices = cast(lift("take", indices), torch.int32)
    if not x.size and as_index(indices).size and not (x.size if axis is None else x.shape[axis]):
        got = f"indices for {x.aval!r}"
        raise BoundsError(message("take", "an axis with elements", got, "Check the axis."))
    return ops.take(x, indices, axis, mode=mode or "fill", fill_value=fill_value)


_MOST = numpy.iinfo(numpy.int32).max


@functools.partial(taking_keys, "jax.numpy.take_along_axis")
def take_along_axis(
    arr: Any, indices: Any, axis: int | None = -1, mode: Any = None, fill_value: Any = None, *,
    wrap_negative_indices: bool = True,
) -> Array:  # fmt: skip
    """``gt.take_along_axis``; places outside the axis give `fill_value`, as with `take`.

    Args:
        mode: also ``"one_hot"``: places outside give 0.
        wrap_negative_indices: negative places count from the end; else they lie outside.
    """
    mode = mode_name("take_along_axis", mode or "fill", (*READ_MODES, "one_hot"))
    if mode == "one_hot":
        mode, fill_value = "fill", 0
    if not wrap_negative_indices and mode != "promise_in_bounds":
        indices = negatives_outside(as_index(indices), nearest=mode == "clip")[0]
    return ops.take_along_axis(arr, indices, axis, mode=mode, fill_value=fill_value)


def searchsorted(
    a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan"
) -> Array:  # fmt: skip
    """``gt.searchsorted``, with the places as int32, or as int64 where int32 cannot hold the last one."""
    return _fitted(ours.searchsorted(a, v, side, sorter), a)


def _fitted(places: Array, among: Any) -> Array:
    return places.astype("int32" if numpy.size(among) <= _MOST else int)


def tri(N: int, M: int | None = None, k: Any = 0, dtype: Any = None) -> Array:  # noqa: N803 - JAX's names
    """``gt.numpy.tri``; k may be an array of one integer, also while tracing."""
    if not isinstance(k, Array):
        return ours.tri(N, M, k, dtype)
    rows, columns = ops.arange(N), ops.arange(N if M is None else M)
    return cast(ops.greater_equal(ops.expand_dims(ops.add(rows, k), 1), columns), as_dtype(dtype or float))


def unravel_index(indices: Any, shape: Any) -> tuple[Array, ...]:
    """``gt.numpy.unravel_index``, in the dtype of the indices; that of booleans is a weak integer."""
    places = lift("unravel_index", indices)
    if places.aval.dtype is torch.bool:
        places = weakened(places, default_dtype(int))
    fitted = weakened if places.aval.weak else cast
    return tuple([fitted(x, places.aval.dtype) for x in ours.unravel_index(places, shape)])


def ravel_multi_index(
    multi_index: Any, dims: Any, mode: str = "raise", order: str = "C", *, dtype: Any = None
) -> Array:  # fmt: skip
    """``gt.numpy.ravel_multi_index`` in the dtype of the indices.

    Args:
        mode: also ``"raise"``: an index outside its axis raises, for which indices must have values; ``"ignore"``:
            nothing is checked.

    Raises:
        BoundsError: an index lies outside.
        DtypeError: the indices are no integers, or the dtype does not hold the last place.
    """
    name = "ravel_multi_index"
    axes = promote_arrays(name, *[_integers(name, x) for x in multi_index])
    kind = axes[0].aval.dtype if dtype is None else as_dtype(dtype)
    total = math.prod(dims)
    if kind not in INTEGERS or total - 1 > torch.iinfo(kind).max:
        got = f"{LONG[kind]} for {total}"
        raise DtypeError(message(name, "an integer dtype for as many places", got, "Pass a wider dtype=."))
    if mode == "raise":
        for index, size in zip(axes, dims, strict=False):
            _refuse_outside(name, index, size)
    out = ours.ravel_multi_index(
        [cast(x, torch.int64) for x in axes], dims, None if mode in ("raise", "ignore") else mode, order
    )
    return cast(out, kind)


@functools.partial(with_weakness, "jax.numpy.choose")
def choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Array:
    """``gt.numpy.choose``; with mode ``"raise"`` the numbers must have values, and lie inside.

    Raises:
        BoundsError: a number lies outside.
        DtypeError: the numbers are no integers.
    """
    index = _integers("choose", a)
    if mode == "raise":
        _refuse_outside("choose", index, len(choices))
    return ours.choose(index, choices, mode=mode)


def _integers(name: str, x: Any) -> Array:
    index = ops.array(x)
    if index.aval.dtype not in INTEGERS:
        raise DtypeError(message(name, "integers", repr(index.aval), "Use x.astype(int)."))
    return index


def _refuse_outside(name: str, index: Array, size: int) -> None:
    """Raise if an index does not lie in [0, size)."""
    values = whole(index, "mode")
    if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < size:
        fix = 'Use mode="wrap" or mode="clip".'
        raise BoundsError(message(name, f"indices in [0, {size})", f"others in {index.aval!r}", fix))


@functools.partial(taking_keys, "jax.numpy.delete")
def delete(arr: Any, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False) -> Array:
    """``gt.numpy.delete``; one place, or places that are unique, may be values of a traced function.

    Args:
        assume_unique_indices: no place is given twice, and nothing checks that they lie inside: places before the
            first mean the first one, and those after the last the last one.
    """
    known = not isinstance(obj, Array) or obj.aval.dtype is torch.bool
    if known or not (assume_unique_indices or (is_placeholder(obj) and obj.size == 1)):
        return ours.delete(arr, obj, axis)
    x, axis = with_axis("delete", arr, axis)
    size = x.shape[axis]
    places = ops.ravel(obj)
    places = ops.clip(ops.where(places < 0, places + size, places), 0, size)
    kept = ops.ones(size, "bool", device=x.aval.device).at[places].set(False)
    return index_axis(x, places_where("delete", kept, size - obj.size), axis)


def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Array:
    """``gt.numpy.bincount``; negative numbers count as 0."""
    return ours.bincount(ops.maximum(lift("bincount", x), 0), weights, minlength, length=length)


def digitize(x: Any, bins: Any, right: bool = False, *, method: str | None = None) -> Array:
    """``gt.numpy.digitize``, with the places in the dtype of those of `searchsorted`."""
    return _fitted(ours.digitize(x, bins, right), bins)
