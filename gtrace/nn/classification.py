"""Losses of probabilities: cross entropies and divergences."""

from __future__ import annotations

from typing import Any

from gtrace.extend import (
    Array,
    ShapeError,
    as_index,
    as_int,
    bind,
    cast,
    custom_jvp,
    gather_op,
    lift,
    message,
    normalize_axis,
    ops,
    promote_arrays,
    replayable,
)
from gtrace.nn.common import check_number, check_reduction, floating, like_shapes, reduced, widened

__all__ = ["binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "kl_div", "nll_loss"]

# -- classes


def _class_axis(name: str, x: Array, axis: Any) -> int:
    """Return the axis of the classes; a vector has only one.

    Raises:
        ShapeError: there is no such axis.
    """
    return 0 if x.ndim == 1 and axis == 1 else normalize_axis(name, axis, x.ndim)


def _class_weights(name: str, weight: Any, x: Array, axis: int) -> Array | None:
    """Return a one-dimensional array with a weight for each class.

    Raises:
        ShapeError: it has another shape.
    """
    if weight is None:
        return None
    factors = floating(name, weight)
    if factors.shape != (x.shape[axis],):
        got = f"{factors.aval!r} for {x.aval!r}"
        raise ShapeError(message(name, f"a weight of shape {(x.shape[axis],)}", got, "Classes are on `axis`."))
    return cast(factors, x.aval.dtype)


def _spread(weights: Array, x: Array, axis: int) -> Array:
    """Return the weights broadcast along the class axis of x."""
    return ops.reshape(weights, tuple(n if k == axis else 1 for k, n in enumerate(x.shape)))


def _nll(
    name: str,
    log_probs: Array,
    targets: Array,
    weights: Array | None,
    ignore_index: Any,
    reduction: str,
    axis: int,
    smoothing: float,
) -> Array:
    """Return the negative log-probabilities of the targets, mixed with those of all classes by `smoothing`.

    Raises:
        ShapeError: the targets have another shape.
    """
    check_reduction(name, reduction)
    expected = log_probs.shape[:axis] + log_probs.shape[axis + 1 :]
    if targets.shape != expected:
        got = f"{targets.aval!r} for {log_probs.aval!r} with classes on axis {axis}"
        raise ShapeError(message(name, f"integer targets of shape {expected}", got, "Check the shapes, or pass axis=."))
    ignored = targets == as_int(name, "ignore_index", ignore_index)
    # not take_along_axis, which counts negative indices from the end: -1 would be the last class
    known = ops.where(ignored, 0, targets)
    values = -ops.squeeze(bind(gather_op, (log_probs, ops.expand_dims(known, axis)), (axis,)), axis)
    share = None if weights is None else ops.take(weights, known, 0, mode="promise_in_bounds")
    if share is not None:
        values = values * share
    if smoothing:
        by_class = log_probs if weights is None else log_probs * _spread(weights, log_probs, axis)
        rest = ops.sum(by_class, axis) * (-smoothing / log_probs.shape[axis])
        values = values * (1.0 - smoothing) + rest
    values = ops.where(ignored, 0.0, values)
    if reduction != "mean":
        return reduced(name, values, reduction)
    counted = cast(~ignored, values.aval.dtype) if share is None else ops.where(ignored, 0.0, share)
    return ops.sum(values) / ops.sum(counted)


@replayable
def cross_entropy(
    logits: Any,
    targets: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    axis: int = 1,
) -> Array:
    """Return the cross entropy between softmax(logits) and the targets, without overflow.

    Args:
        logits: floating, (batch, classes, ...), or (classes,).
        targets: integers, with the shape of the logits without `axis`; or floating probabilities with their shape.
        weight: a factor for each class. The mean of integer targets is weighted by the targets' factors.
        ignore_index: an integer target to ignore. If all are ignored, the mean is NaN, as in torch.
        reduction: "mean", "sum" or "none".
        label_smoothing: the share of a uniform distribution in the targets, in [0, 1].
        axis: the axis of the classes.

    Raises:
        ShapeError: shapes do not fit.
        ArgumentError: the reduction is unknown, or the smoothing outside [0, 1].
        ExecutionError: (at the run) an integer target is not a class.

    >>> gt.round(gt.nn.cross_entropy(gt.array([[0., 0.], [1e4, -1e4]]), gt.array([0, 1]), reduction="none"), 4)
    Array([6.931e-01, 2.000e+04], dtype=float32)
    """
    name = "cross_entropy"
    smoothing = check_number(name, "label_smoothing", label_smoothing, 0.0, 1.0)
    check_reduction(name, reduction)
    x, goal = widened(floating(name, logits)), lift(name, targets)
    axis = _class_axis(name, x, axis)
    weights = _class_weights(name, weight, x, axis)
    log_probs = ops.log_softmax(x, axis)
    if not goal.aval.floating:
        return _nll(name, log_probs, as_index(goal), weights, ignore_index, reduction, axis, smoothing)
    if goal.shape != x.shape:
        fix = "Class numbers are integers: use x.astype(gt.int64)."
        raise ShapeError(message(name, f"probabilities of shape {x.shape}", repr(goal.aval), fix))
    if smoothing:
        goal = widened(goal) * (1.0 - smoothing) + smoothing / x.shape[axis]
    terms = goal * log_probs
    values = -ops.sum(terms if weights is None else terms * _spread(weights, x, axis), axis)
    return reduced(name, values, reduction)


@replayable
def nll_loss(
    log_probs: Any,
    targets: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    axis: int = 1,
) -> Array:
    """Return the negative log-probabilities of the targets.

    Args:
        log_probs: floating, (batch, classes, ...), or (classes,), as from `log_softmax`.
        targets: integers, with that shape without `axis`.
        weight: a factor for each class. The mean is weighted by the targets' factors.
        ignore_index: a target to ignore. If all are ignored, the mean is NaN, as in torch.
        reduction: "mean", "sum" or "none".
        axis: the axis of the classes.

    Raises:
        ShapeError: shapes do not fit.
        DtypeError: the targets are not integers.
        ArgumentError: the reduction is unknown.
        ExecutionError: (at the run) a target is not a class.

    >>> gt.nn.nll_loss(gt.array([[-1., -2.], [-3., -4.]]), gt.array([0, 1]))
    Array(2.5, dtype=float32)
    """
    x, goal = widened(floating("nll_loss", log_probs)), as_index(targets)
    axis = _class_axis("nll_loss", x, axis)
    weights = _class_weights("nll_loss", weight, x, axis)
    return _nll("nll_loss", x, goal, weights, ignore_index, reduction, axis, 0.0)


# -- two classes


@custom_jvp
def _limited_log(p: Array) -> Array:
    """Return log(p), at least -100, with a derivative of at most 1e12."""
    none = p == 0
    return ops.where(none, -100.0, ops.maximum(ops.log(ops.where(none, 1.0, p)), -100.0))


@_limited_log.defjvp
def _limited_log_jvp(primals: Any, tangents: Any) -> Any:
    (p,), (t,) = primals, tangents
    return _limited_log(p), t / ops.maximum(p, 1e-12)


@custom_jvp
def _limited_log_of_rest(p: Array) -> Array:
    """Return log(1 - p), at least -100, with a derivative of at least -1e12."""
    certain = p == 1
    return ops.where(certain, -100.0, ops.maximum(ops.log1p(-ops.where(certain, 0.0, p)), -100.0))


@_limited_log_of_rest.defjvp
def _limited_log_of_rest_jvp(primals: Any, tangents: Any) -> Any:
    (p,), (t,) = primals, tangents
    return _limited_log_of_rest(p), -t / ops.maximum(1.0 - p, 1e-12)


@replayable
def binary_cross_entropy(probs: Any, targets: Any, weight: Any = None, reduction: str = "mean") -> Array:
    """Return -targets * log(probs) - (1 - targets) * log(1 - probs).

    As in torch, a logarithm is at least -100, and its derivative at most 1e12: a probability of exactly 0 or 1 that is
    wrong has that gradient. `binary_cross_entropy_with_logits` has no such limits.

    Args:
        probs: in [0, 1].
        targets: in [0, 1], of the same shape.
        weight: a factor for each element, which broadcasts.

    Raises:
        ShapeError: shapes do not fit.
        ArgumentError: the reduction is unknown.

    >>> gt.round(gt.nn.binary_cross_entropy(gt.array([0.5, 0.0]), gt.array([1., 1.]), reduction="none"), 4)
    Array([  0.6931, 100.    ], dtype=float32)
    """
    p, y = like_shapes("binary_cross_entropy", probs, targets)
    values = -(y * _limited_log(p) + (1.0 - y) * _limited_log_of_rest(p))
    return reduced("binary_cross_entropy", _weighted("binary_cross_entropy", values, weight), reduction)


@replayable
def binary_cross_entropy_with_logits(
    logits: Any, targets: Any, weight: Any = None, pos_weight: Any = None, reduction: str = "mean"
) -> Array:
    """Return the cross entropy between sigmoid(logits) and the targets, without overflow or cancellation.

    Args:
        logits: floating array.
        targets: in [0, 1], of the same shape.
        weight: a factor for each element, which broadcasts.
        pos_weight: a factor for the positive part of the targets, which broadcasts.

    Raises:
        ShapeError: shapes do not fit.
        ArgumentError: the reduction is unknown.

    >>> x = gt.array([0., 1e4])
    >>> gt.round(gt.nn.binary_cross_entropy_with_logits(x, gt.array([1., 0.]), reduction="none"), 4)
    Array([6.931e-01, 1.000e+04], dtype=float32)
    """
    name = "binary_cross_entropy_with_logits"
    x, y = like_shapes(name, logits, targets)
    # two softplus functions instead of one and a difference, which would cancel for small losses
    positive = _weighted(name, y * ops.softplus(-x), pos_weight)
    return reduced(name, _weighted(name, positive + (1.0 - y) * ops.softplus(x), weight), reduction)


def _weighted(name: str, values: Array, weight: Any) -> Array:
    """Return values * weight.

    Raises:
        ShapeError: the weight does not broadcast to them.
    """
    if weight is None:
        return values
    out = values * promote_arrays(name, weight, floating=True)[0]
    if out.shape != values.shape:
        got = f"{lift(name, weight).aval!r} for {values.aval!r}"
        raise ShapeError(message(name, f"a weight that broadcasts to {values.shape}", got, "Check the shapes."))
    return out


# -- divergences


@replayable
def kl_div(log_probs: Any, targets: Any, reduction: str = "mean", log_target: bool = False) -> Array:
    """Return targets * (log(targets) - log_probs), the terms of the Kullback-Leibler divergence.

    Args:
        log_probs: logarithms of the predicted probabilities.
        targets: probabilities; with `log_target`, their logarithms.
        reduction: "mean" (over all elements), "batchmean" (the sum over the size of axis 0, which is the divergence),
            "sum" or "none".

    Raises:
        ShapeError: shapes differ.
        ArgumentError: the reduction is unknown.

    >>> p = gt.array([[0.5, 0.5]])
    >>> gt.round(gt.nn.kl_div(gt.log(p), gt.array([[1., 0.]]), reduction="batchmean"), 4)
    Array(0.6931, dtype=float32)
    """
    x, y = like_shapes("kl_div", log_probs, targets)
    check_reduction("kl_div", reduction, ("none", "mean", "batchmean", "sum"))
    if log_target:
        values = ops.exp(y) * (y - x)
    else:
        none = y == 0
        values = ops.where(none, 0.0, y * ops.log(ops.where(none, 1.0, y))) - y * x
    if reduction != "batchmean":
        return reduced("kl_div", values, reduction)
    if not values.ndim:
        raise ShapeError(message("kl_div", "a batch on axis 0", repr(values.aval), 'Use reduction="sum".'))
    return ops.sum(values) / float(values.shape[0])
