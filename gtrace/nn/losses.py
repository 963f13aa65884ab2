"""Regression losses: squared and absolute errors, likelihoods, distances and margins.

Each takes ``reduction="mean"``, ``"sum"`` or ``"none"``. Operands must have one shape, because broadcasting would hide
mistakes. Losses of 16-bit floats are computed and returned in float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.extend import (
    ArgumentError,
    Array,
    ShapeError,
    as_index,
    cast,
    message,
    normalize_axis,
    ops,
    promote_arrays,
    replayable,
)
from gtrace.nn.common import check_number, floating, like_shapes, reduced, vector_norm, widened

__all__ = [
    "cosine_embedding_loss", "cosine_similarity", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "l1_loss",
    "margin_ranking_loss", "mse_loss", "multi_margin_loss", "pairwise_distance", "poisson_nll_loss", "smooth_l1_loss",
    "soft_margin_loss", "triplet_margin_loss",
]  # fmt: skip

# -- errors


@replayable
def mse_loss(predictions: Any, targets: Any, reduction: str = "mean") -> Array:
    """Return the squared differences.

    Raises:
        ShapeError: shapes that differ.
        ArgumentError: an unknown reduction.

    >>> gt.nn.mse_loss(gt.array([1., 2.]), gt.array([1., 4.]))
    Array(2., dtype=float32)
    """
    x, y = like_shapes("mse_loss", predictions, targets)
    return reduced("mse_loss", ops.square(x - y), reduction)


@replayable
def l1_loss(predictions: Any, targets: Any, reduction: str = "mean") -> Array:
    """Return the absolute differences.

    Raises:
        ShapeError: shapes that differ.
        ArgumentError: an unknown reduction.

    >>> gt.nn.l1_loss(gt.array([1., 2.]), gt.array([1., 4.]))
    Array(1., dtype=float32)
    """
    x, y = like_shapes("l1_loss", predictions, targets)
    return reduced("l1_loss", ops.absolute(x - y), reduction)


def _huber(x: Array, y: Array, delta: float) -> Array:
    size = ops.absolute(x - y)
    inner = ops.minimum(size, delta)
    return inner * (size - inner * 0.5)


@replayable
def huber_loss(predictions: Any, targets: Any, reduction: str = "mean", delta: float = 1.0) -> Array:
    """Return half the squared difference up to delta, and delta * (|difference| - delta / 2) beyond.

    Raises:
        ShapeError: shapes that differ.
        ArgumentError: an unknown reduction, or a delta that is not above 0.

    >>> gt.nn.huber_loss(gt.array([1., 2.]), gt.array([2., 5.]), reduction="none")
    Array([0.5, 2.5], dtype=float32)
    """
    x, y = like_shapes("huber_loss", predictions, targets)
    bound = check_number("huber_loss", "delta", delta, 0.0)
    if bound == 0:
        raise ArgumentError(message("huber_loss", "a delta above 0", "0", "Use l1_loss."))
    return reduced("huber_loss", _huber(x, y, bound), reduction)


@replayable
def smooth_l1_loss(predictions: Any, targets: Any, reduction: str = "mean", beta: float = 1.0) -> Array:
    """Return the Huber loss of delta = beta, divided by beta; for beta = 0, the absolute differences.

    Raises:
        ShapeError: shapes that differ.
        ArgumentError: an unknown reduction, or a negative beta.

    >>> gt.nn.smooth_l1_loss(gt.array([1., 2.]), gt.array([2., 6.]), reduction="none", beta=2.0)
    Array([0.25, 3.  ], dtype=float32)
    """
    x, y = like_shapes("smooth_l1_loss", predictions, targets)
    bound = check_number("smooth_l1_loss", "beta", beta, 0.0)
    values = ops.absolute(x - y) if bound == 0 else _huber(x, y, bound) / bound
    return reduced("smooth_l1_loss", values, reduction)


# -- likelihoods


@replayable
def poisson_nll_loss(
    predictions: Any,
    targets: Any,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Array:
    """Return the negative log-likelihood of counts, without the term that depends only on the targets.

    Args:
        predictions: the rate; with `log_input`, its logarithm.
        targets: the counts.
        full: add Stirling's approximation of log(targets!), for counts above 1.
        eps: added to the rate before the logarithm.

    Raises:
        ShapeError: shapes differ.
        ArgumentError: the reduction is unknown.

    >>> gt.nn.poisson_nll_loss(gt.array([0., 0.]), gt.array([1., 3.]))
    Array(1., dtype=float32)
    """
    x, y = like_shapes("poisson_nll_loss", predictions, targets)
    values = ops.exp(x) - y * x if log_input else x - y * ops.log(x + eps)
    if full:
        many = y > 1
        count = ops.where(many, y, 1.0)
        stirling = count * ops.log(count) - count + ops.log(count * (2.0 * math.pi)) * 0.5
        values = values + ops.where(many, stirling, 0.0)
    return reduced("poisson_nll_loss", values, reduction)


@replayable
def gaussian_nll_loss(
    predictions: Any, targets: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Array:
    """Return the negative log-likelihood of normal distributions, without the constant unless `full`.

    Args:
        predictions: the means.
        targets: the observed values.
        var: the variances, which broadcast to the means; or one for each vector of the last axis, without that axis.
            They are at least eps; the derivative ignores this bound.
        full: add log(2 * pi) / 2.

    Raises:
        ShapeError: shapes do not fit.
        ArgumentError: the reduction is unknown.

    >>> gt.nn.gaussian_nll_loss(gt.array([1., 2.]), gt.array([1., 4.]), gt.ones(2))
    Array(1., dtype=float32)
    """
    x, y = like_shapes("gaussian_nll_loss", predictions, targets)
    spread = widened(floating("gaussian_nll_loss", var))
    if x.ndim and spread.shape == x.shape[:-1]:
        spread = ops.expand_dims(spread, -1)
    spread = ops.broadcast_to(spread, x.shape)
    spread = spread + ops.stop_gradient(ops.maximum(spread, eps) - spread)
    values = (ops.log(spread) + ops.square(x - y) / spread) * 0.5
    return reduced("gaussian_nll_loss", values + 0.5 * math.log(2 * math.pi) if full else values, reduction)


# -- distances


@replayable
def cosine_similarity(x1: Any, x2: Any, axis: int = 1, eps: float = 1e-8) -> Array:
    """Return the cosines of the angles between vectors along `axis`; the arrays broadcast.

    Args:
        eps: the lower bound of the vectors' lengths.

    Raises:
        ShapeError: there is no such axis, or shapes do not broadcast.

    >>> gt.round(gt.nn.cosine_similarity(gt.array([[1., 0.]]), gt.array([[1., 1.]])), 4)
    Array([0.7071], dtype=float32)
    """
    x, y = promote_arrays("cosine_similarity", x1, x2, floating=True)
    product = x * y
    axis = normalize_axis("cosine_similarity", axis, product.ndim)
    # in 16 bits eps would be 0
    x, y = (widened(ops.broadcast_to(z, product.shape)) for z in (x, y))
    lengths = [ops.maximum(vector_norm("cosine_similarity", z, 2, axis), eps) for z in (x, y)]
    return cast(ops.sum(x * y, axis) / lengths[0] / lengths[1], product.aval.dtype)


@replayable
def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False) -> Array:
    """Return the p-norms over the last axis of x1 - x2 + eps; the arrays broadcast.

    Raises:
        ArgumentError: p is not a number above 0.
        ShapeError: shapes do not broadcast, or an array is 0-d.

    >>> gt.round(gt.nn.pairwise_distance(gt.array([[0., 0.]]), gt.array([[3., 4.]])), 4)
    Array([5.], dtype=float32)
    """
    x, y = promote_arrays("pairwise_distance", x1, x2, floating=True)
    difference = widened(x) - widened(y) + eps
    axis = normalize_axis("pairwise_distance", -1, difference.ndim)
    return cast(vector_norm("pairwise_distance", difference, p, axis, keepdims), x.aval.dtype)


# -- margins


@replayable
def soft_margin_loss(predictions: Any, targets: Any, reduction: str = "mean") -> Array:
    """Return log(1 + exp(-targets * predictions)), for targets of -1 and 1.

    Raises:
        ShapeError: shapes that differ.
        ArgumentError: an unknown reduction.

    >>> gt.round(gt.nn.soft_margin_loss(gt.array([0., 1000.]), gt.array([1., -1.]), reduction="none"), 4)
    Array([6.931e-01, 1.000e+03], dtype=float32)
    """
    x, y = like_shapes("soft_margin_loss", predictions, targets)
    return reduced("soft_margin_loss", ops.softplus(-(y * x)), reduction)


@replayable
def hinge_embedding_loss(predictions: Any, targets: Any, margin: float = 1.0, reduction: str = "mean") -> Array:
    """Return the predictions where the target is 1, and max(0, margin - prediction) where it is -1.

    Raises:
        ShapeError: shapes that differ.
        ArgumentError: an unknown reduction.

    >>> gt.nn.hinge_embedding_loss(gt.array([0.5, 0.25]), gt.array([1., -1.]), reduction="none")
    Array([0.5 , 0.75], dtype=float32)
    """
    x, y = like_shapes("hinge_embedding_loss", predictions, targets)
    values = ops.where(y != -1, x, 0.0) + ops.where(y != 1, ops.relu(margin - x), 0.0)
    return reduced("hinge_embedding_loss", values, reduction)


@replayable
def margin_ranking_loss(x1: Any, x2: Any, targets: Any, margin: float = 0.0, reduction: str = "mean") -> Array:
    """Return max(0, margin - targets * (x1 - x2)): for target 1, x1 should be larger, for -1, x2.

    Raises:
        ShapeError: shapes that differ.
        ArgumentError: an unknown reduction.

    >>> gt.nn.margin_ranking_loss(gt.array([1., 2.]), gt.array([3., 0.]), gt.array([1., 1.]), reduction="none")
    Array([2., 0.], dtype=float32)
    """
    x, y, z = like_shapes("margin_ranking_loss", x1, x2, targets)
    return reduced("margin_ranking_loss", ops.relu(margin - z * (x - y)), reduction)


@replayable
def cosine_embedding_loss(x1: Any, x2: Any, targets: Any, margin: float = 0.0, reduction: str = "mean") -> Array:
    """Return 1 - c where the target is 1 and max(0, c - margin) where it is -1; c is the cosine along the last axis.

    Args:
        x1, x2: vectors, (..., features).
        targets: 1 or -1 for each, of shape (...).

    Raises:
        ShapeError: shapes that do not fit.
        ArgumentError: an unknown reduction.

    >>> x, y = gt.array([[1., 0.], [1., 0.]]), gt.array([[0., 1.], [2., 0.]])
    >>> gt.nn.cosine_embedding_loss(x, y, gt.array([1, -1]), reduction="none")
    Array([1., 1.], dtype=float32)
    """
    x, y = like_shapes("cosine_embedding_loss", x1, x2)
    label = floating("cosine_embedding_loss", targets)
    if not x.ndim or label.shape != x.shape[:-1]:
        got = f"{label.aval!r} for {x.aval!r}"
        raise ShapeError(message("cosine_embedding_loss", "one target for each vector", got, "Check the shapes."))
    tiny = 1e-12  # as in torch: under the root, so that zeros have a cosine
    lengths = (ops.sum(ops.square(x), -1) + tiny) * (ops.sum(ops.square(y), -1) + tiny)
    cosine = ops.sum(x * y, -1) * ops.rsqrt(lengths)
    values = ops.where(label == 1, 1.0 - cosine, ops.where(label == -1, ops.relu(cosine - margin), 0.0))
    return reduced("cosine_embedding_loss", values, reduction)


@replayable
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Array:
    """Return max(0, margin + d(anchor, positive) - d(anchor, negative)), with d as `pairwise_distance`.

    Args:
        anchor, positive, negative: vectors, (..., features).
        swap: use d(positive, negative) as the last distance where it is smaller (Balntas et al., 2016).

    Raises:
        ShapeError: shapes that differ.
        ArgumentError: an unknown reduction.

    >>> a, b = gt.array([[0., 0.]]), gt.array([[3., 4.]])
    >>> gt.round(gt.nn.triplet_margin_loss(a, b, b), 4)
    Array(1., dtype=float32)
    """
    x, near, far = like_shapes("triplet_margin_loss", anchor, positive, negative)
    distance = pairwise_distance(x, far, p, eps)
    if swap:
        distance = ops.minimum(distance, pairwise_distance(near, far, p, eps))
    values = ops.relu(pairwise_distance(x, near, p, eps) - distance + margin)
    return reduced("triplet_margin_loss", values, reduction)


@replayable
def multi_margin_loss(
    predictions: Any, targets: Any, p: int = 1, margin: float = 1.0, weight: Any = None, reduction: str = "mean"
) -> Array:
    """Return the sum over the wrong classes i of max(0, margin - x[target] + x[i]) ** p, over the number of classes.

    Args:
        predictions: floating, (..., classes).
        targets: integers, (...).
        p: 1 or 2.
        weight: a factor for each class; that of the target applies.

    Raises:
        ShapeError: shapes do not fit.
        ArgumentError: p is invalid, or the reduction is unknown.
        DtypeError: the targets are not integers.

    >>> gt.nn.multi_margin_loss(gt.array([[0., 1., 3.]]), gt.array([2]), margin=4.0)
    Array(1., dtype=float32)
    """
    x, label = widened(floating("multi_margin_loss", predictions)), as_index(targets)
    if not x.ndim or label.shape != x.shape[:-1]:
        got = f"{label.aval!r} for {x.aval!r}"
        raise ShapeError(message("multi_margin_loss", "one target for each row of classes", got, "Check the shapes."))
    if p not in (1, 2):
        raise ArgumentError(message("multi_margin_loss", "1 or 2 as p", repr(p), "Pass one of them."))
    own = ops.take_along_axis(x, ops.expand_dims(label, -1), -1)
    values = ops.relu(margin - own + x)
    values = values if p == 1 else ops.square(values)
    if weight is not None:
        factors = floating("multi_margin_loss", weight)
        if factors.shape != x.shape[-1:]:
            got = f"{factors.aval!r} for {x.aval!r}"
            raise ShapeError(message("multi_margin_loss", "a weight for each class", got, "Check the sizes."))
        values = values * ops.expand_dims(ops.take(factors, label, 0), -1)
    # the target's own term is a constant, and omitted
    others = ops.where(ops.one_hot(label, x.shape[-1], torch.bool), 0.0, values)
    return reduced("multi_margin_loss", ops.sum(others, -1) / float(x.shape[-1]), reduction)
