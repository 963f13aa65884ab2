"""Functions of places in arrays. As in JAX they treat places outside of the array, and choose dtypes."""

from __future__ import annotations

import functools
from typing import Any

from gtrace import numpy as ours
from gtrace.core import ops
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.jax.keys import taking_keys

__all__ = ["bincount", "digitize", "searchsorted", "take", "take_along_axis"]


@functools.partial(taking_keys, "jax.numpy.take")
def take(
    a: Any, indices: Any, axis: int | None = None, out: None = None, mode: str | None = None,
    unique_indices: bool = False, indices_are_sorted: bool = False, fill_value: Any = None,
) -> Array:  # fmt: skip
    """``gt.take``; places outside the axis give `fill_value`, by default NaN, unless the mode says otherwise."""
    return ops.take(lift("take", a), indices, axis, mode=mode or "fill", fill_value=fill_value)


@functools.partial(taking_keys, "jax.numpy.take_along_axis")
def take_along_axis(
    arr: Any, indices: Any, axis: int | None = -1, mode: str | None = None, fill_value: Any = None, *,
    wrap_negative_indices: bool = True,
) -> Array:  # fmt: skip
    """``gt.take_along_axis``; places outside the axis give `fill_value`, as with `take`.

    Args:
        wrap_negative_indices: negative places count from the end; else they lie outside.
    """
    mode = mode or "fill"
    if not wrap_negative_indices:
        x, indices = lift("take_along_axis", arr), lift("take_along_axis", indices)
        outside = 0 if mode == "clip" else x.size if axis is None else x.shape[axis]
        indices = ops.where(indices < 0, outside, indices)
    return ops.take_along_axis(arr, indices, axis, mode=mode, fill_value=fill_value)


def searchsorted(
    a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan"
) -> Array:  # fmt: skip
    """``gt.searchsorted``, with the places as int32."""
    return ours.searchsorted(a, v, side, sorter).astype("int32")


def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Array:
    """``gt.numpy.bincount``; negative numbers count as 0."""
    return ours.bincount(ops.maximum(lift("bincount", x), 0), weights, minlength, length=length)


def digitize(x: Any, bins: Any, right: bool = False, *, method: str | None = None) -> Array:
    """``gt.numpy.digitize``, with the places as int32."""
    return ours.digitize(x, bins, right).astype("int32")
