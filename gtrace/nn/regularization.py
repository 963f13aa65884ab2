"""Dropout and embeddings."""

from __future__ import annotations

import math
from typing import Any

from gtrace.extend import (
    ArgumentError,
    Array,
    ShapeError,
    as_index,
    as_int,
    constant,
    lift,
    message,
    normalize_axes,
    ops,
)
from gtrace.nn.common import check_number, floating
from gtrace.random.discrete import bernoulli
from gtrace.random.keys import key_beside

__all__ = ["alpha_dropout", "dropout", "embedding"]


def _key_beside(name: str, x: Array, key: Any) -> Any:
    """Return a key on the device of its array."""
    if key is None:
        raise ArgumentError(message(name, "a key", "None", "Pass key=gt.random.key(seed), or training=False."))
    return key_beside(name, key, x)


def dropout(x: Any, rate: float, key: Any = None, *, training: bool = True, broadcast_axes: Any = ()) -> Array:
    """Return x with random elements set to 0, and the others divided by 1 - rate (Srivastava et al., 2014).

    Args:
        x: floating array; integers become float32.
        rate: the probability that an element is dropped, a number in [0, 1].
        key: a key, used up; optional if nothing is dropped.
        training: if False, x is returned unchanged.
        broadcast_axes: axes along which elements are dropped or kept together.

    Raises:
        ArgumentError: the rate is outside [0, 1], or the key is missing.
        ShapeError: there is no such axis.

    >>> gt.nn.dropout(gt.ones(6), 0.5, gt.random.key(0))
    Array([0., 0., 2., 2., 0., 2.], dtype=float32)
    """
    x = floating("dropout", x)
    rate = check_number("dropout", "rate", rate, 0.0, 1.0)
    shared = normalize_axes("dropout", broadcast_axes, x.ndim)
    if not training or rate == 0:
        return x
    if rate == 1:
        return constant(0.0, x.aval)
    drawn = _key_beside("dropout", x, key)
    keep = bernoulli(drawn, 1.0 - rate, tuple(1 if k in shared else n for k, n in enumerate(x.shape)))
    return ops.where(keep, x / (1.0 - rate), 0.0)


_SATURATION = -1.7580993408473766  # the limit of selu for very negative arguments


def alpha_dropout(x: Any, rate: float, key: Any = None, *, training: bool = True) -> Array:
    """Return x with random elements set to the limit of selu, scaled so that mean and variance stay.

    For use after `selu` (Klambauer et al., 2017).

    Args:
        x: floating array; integers become float32.
        rate: the probability that an element is dropped, a number in [0, 1].
        key: a key, used up; optional if nothing is dropped.
        training: if False, x is returned unchanged.

    Raises:
        ArgumentError: the rate is outside [0, 1], or the key is missing.

    >>> gt.round(gt.nn.alpha_dropout(gt.ones(3), 0.5, gt.random.key(0)), 4)
    Array([-0.7792, -0.7792,  1.6656], dtype=float32)
    """
    x = floating("alpha_dropout", x)
    rate = check_number("alpha_dropout", "rate", rate, 0.0, 1.0)
    if not training or rate == 0:
        return x
    if rate == 1:
        return constant(0.0, x.aval)
    drawn = _key_beside("alpha_dropout", x, key)
    scale = 1.0 / math.sqrt((1.0 - rate) * (1.0 + rate * _SATURATION**2))
    kept = ops.where(bernoulli(drawn, 1.0 - rate, x.shape), x, _SATURATION)
    return kept * scale - scale * rate * _SATURATION


def embedding(indices: Any, table: Any, padding_idx: int | None = None) -> Array:
    """Return the rows of `table` at `indices`, of shape ``indices.shape + table.shape[1:]``.

    Args:
        indices: integers; negative ones count from the end, and out-of-range ones mean the nearest row.
        table: the rows, at least one dimension.
        padding_idx: a row without a derivative.

    Raises:
        ShapeError: the table has no dimensions, or `padding_idx` is not a row.
        BoundsError: the table has no rows.
        DtypeError: the indices are not integers.

    >>> gt.nn.embedding(gt.array([1, 0]), gt.array([[1., 2.], [3., 4.]]))
    Array([[3., 4.],
           [1., 2.]], dtype=float32)
    """
    places, table = as_index(indices), lift("embedding", table)
    if not table.ndim:
        raise ShapeError(message("embedding", "a table with rows", repr(table.aval), "Pass (rows, features)."))
    rows = ops.take(table, places, 0)
    if padding_idx is None:
        return rows
    count, row = table.shape[0], as_int("embedding", "padding_idx", padding_idx)
    if not -count <= row < count:
        raise ShapeError(message("embedding", f"a padding_idx in [{-count}, {count})", str(row), "Name a row."))
    row %= count
    padding = (places == row) | (places == row - count)
    if row == 0:
        padding |= places < -count  # such indices mean the first row
    if row == count - 1:
        padding |= places >= count
    padding = ops.expand_dims(padding, tuple(range(places.ndim, places.ndim + table.ndim - 1)))
    return ops.where(padding, ops.stop_gradient(rows), rows)
