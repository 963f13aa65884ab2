"""Functions related to softmax: softmin, relaxed samples of categories, and standardization."""

from __future__ import annotations

from typing import Any

import torch

from gtrace.extend import Array, cast, lift, normalize_axes, normalize_axis, ops, replayable
from gtrace.nn.common import floating, widened
from gtrace.random.continuous import gumbel

__all__ = ["gumbel_softmax", "softmin", "standardize"]


@replayable
def softmin(x: Any, axis: Any = -1) -> Array:
    """Return softmax(-x) over `axis`.

    >>> gt.round(gt.nn.softmin(gt.array([0., 1.])), 4)
    Array([0.7311, 0.2689], dtype=float32)
    """
    return ops.softmax(-floating("softmin", x), axis)


@replayable
def gumbel_softmax(logits: Any, key: Any, tau: Any = 1.0, hard: bool = False, axis: int = -1) -> Array:
    """Return softmax((logits + g) / tau) for Gumbel noise g: a relaxed sample of a category (Jang et al., 2016).

    Args:
        logits: floating array of unnormalized log-probabilities.
        key: a key, used up.
        tau: temperature, above 0; a small one gives almost one-hot vectors.
        hard: return a one-hot vector, with the derivative of the relaxed one.
        axis: the axis of the categories.

    Raises:
        ShapeError: there is no such axis.
        ArgumentError, DtypeError, KeyReuseError: the key is missing, invalid or already used.

    >>> gt.nn.gumbel_softmax(gt.array([0., 50., 0.]), gt.random.key(0), hard=True)
    Array([0., 1., 0.], dtype=float32)
    """
    logits = floating("gumbel_softmax", logits)
    axis = normalize_axis("gumbel_softmax", axis, logits.ndim)
    soft = ops.softmax((logits + gumbel(key, logits.shape, logits.aval.dtype)) / tau, axis)
    if not hard:
        return soft
    chosen = ops.one_hot(ops.argmax(soft, axis), logits.shape[axis], soft.aval.dtype, axis)
    return chosen + (soft - ops.stop_gradient(soft))  # the difference is exactly 0


@replayable
def standardize(
    x: Any, axis: Any = -1, mean: Any = None, variance: Any = None, epsilon: float = 1e-5, where: Any = None
) -> Array:
    """Return (x - mean) / sqrt(variance + epsilon), with the mean and variance of x over `axis` unless given.

    Args:
        x: floating array; integers become float32.
        axis: an axis, several, or None for all.
        mean, variance: arrays that broadcast to x; the computed variance is about this mean.
        where: a mask that broadcasts to x; mean and variance ignore other elements.

    Raises:
        ShapeError: there is no such axis, or shapes do not broadcast.

    >>> gt.round(gt.nn.standardize(gt.array([1., 3.])), 4)
    Array([-1.,  1.], dtype=float32)
    """
    x = floating("standardize", x)
    wide = widened(x)
    axes = normalize_axes("standardize", axis, x.ndim)
    keep = None if where is None else ops.broadcast_to(lift("standardize", where), x.shape)

    def average(values: Array) -> Array:
        if keep is None:
            return ops.mean(values, axes, keepdims=True)
        count = ops.sum(
            cast(keep if keep.aval.dtype is torch.bool else keep != 0, values.aval.dtype), axes, keepdims=True
        )
        return ops.sum(ops.where(keep, values, 0.0), axes, keepdims=True) / count

    deviation = wide - (average(wide) if mean is None else mean)
    spread = average(ops.square(deviation)) if variance is None else widened(floating("standardize", variance))
    return cast(deviation * ops.rsqrt(spread + epsilon), x.aval.dtype)
