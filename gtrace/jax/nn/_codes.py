"""``jax.nn.one_hot``, which compares, so that it takes numbers of any dtype."""

from __future__ import annotations

import warnings
from typing import Any

from gtrace.extend import Array, as_dtype, as_size, cast, default_dtype, normalize_axis, ops
from gtrace.numpy import asarray


def one_hot(x: Any, num_classes: Any, *, dtype: Any = None, axis: int = -1) -> Array:
    """Return a vector with a one at index x for each number of x, and zeros for others. Floats give a warning.

    >>> import gtrace.jax as jax
    >>> jax.nn.one_hot([0, 5], 2)
    Array([[1., 0.],
           [0., 0.]], dtype=float32)
    """
    values = asarray(x)
    if not values.aval.floating:
        return ops.one_hot(values, num_classes, dtype, axis)
    warnings.warn("[one_hot] expected integers, got floats: use x.astype(int)", DeprecationWarning, 2)
    place = normalize_axis("one_hot", axis, values.ndim + 1)
    count = as_size("one_hot", "num_classes", num_classes)
    classes = cast(ops.arange(count, device=values.aval.device), values.aval.dtype)
    classes = classes.reshape((count, *(1,) * (values.ndim - place)))
    found = ops.equal(ops.expand_dims(values, place), classes)
    return cast(found, default_dtype(float) if dtype is None else as_dtype(dtype))
