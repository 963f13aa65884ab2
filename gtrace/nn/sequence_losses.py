"""The loss of sequences whose alignment with their labels is unknown."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy

from gtrace.extend import ArgumentError, Array, ShapeError, as_index, as_int, cast, message, ops, scan
from gtrace.nn.common import check_reduction, floating, reduced, widened

__all__ = ["ctc_loss"]


def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Array:
    """Return -log of the probability of label sequences, summed over their alignments with the steps.

    Source: Graves et al., 2006. Derivatives are with respect to the given logarithms. torch assumes that
    ``log_softmax`` computed them, and omits a part of the derivative. Derivatives by its operand are the same.

    Args:
        log_probs: log probabilities of the classes at each step, (T, N, C), or (T, C) for one sequence.
        targets: classes other than `blank`, (N, S), or those of all sequences one after the other, (sum of
            `target_lengths`,); (S,) for one sequence.
        input_lengths: the numbers of valid steps, integers (N,), or () for one sequence; numbers above T count as T.
        target_lengths: the numbers of valid labels, likewise. For concatenated targets, pass a list instead of an
            Array: the longest length is then known, which saves work.
        blank: the class that means no label.
        reduction: "none"; "sum"; or "mean", of the losses divided by the lengths of their targets.
        zero_infinity: for sequences too short for their labels, return 0 with derivative 0, instead of infinity.

    Raises:
        ShapeError: shapes do not fit.
        ArgumentError: there is no such blank, or the reduction is unknown.
        DtypeError: labels or lengths are not integers.

    >>> steps = gt.nn.log_softmax(gt.zeros((2, 1, 2)), -1)
    >>> gt.round(gt.exp(-gt.nn.ctc_loss(steps, gt.array([[1]]), [2], [1])), 4)  # of 4 alignments: -1, 1-, 11
    Array(0.75, dtype=float32)
    """
    x = floating("ctc_loss", log_probs)
    check_reduction("ctc_loss", reduction)
    if x.ndim not in (2, 3):
        expected = "log-probabilities of (steps, batch, classes) or (steps, classes)"
        raise ShapeError(message("ctc_loss", expected, repr(x.aval), "Check the shapes."))
    single = x.ndim == 2
    wide = widened(ops.expand_dims(x, 1) if single else x)
    steps, size, classes = wide.shape
    none = as_int("ctc_loss", "blank", blank)
    if not 0 <= none < classes:
        raise ArgumentError(message("ctc_loss", f"a blank from 0 to {classes - 1}", str(none), "It is a class."))
    inputs, counts = (_lengths(z, size, single) for z in (input_lengths, target_lengths))
    labels = _labels(targets, target_lengths, counts, size, single)
    places = ops.arange(labels.shape[1], device=x.aval.device)
    labels = ops.where(places < ops.expand_dims(counts, 1), labels, none)

    # the states of an alignment: the labels, with blanks between and around them
    blanks = ops.full((size, 1), none, labels.aval.dtype, device=x.aval.device)
    pairs = ops.stack([ops.broadcast_to(blanks, labels.shape), labels], -1)
    states = ops.concat([ops.reshape(pairs, (size, 2 * labels.shape[1])), blanks], 1)
    width = states.shape[1]
    scores = ops.take_along_axis(wide, ops.broadcast_to(ops.expand_dims(states, 0), (steps, size, width)), 2)
    # a blank may be left out between different labels
    leaps = ops.logical_and(ops.not_equal(states, none), ops.not_equal(states, _shifted(states, 2, none)))
    start = ops.where(ops.equal(ops.arange(width, device=x.aval.device), 0), 0.0, -math.inf)
    start = ops.broadcast_to(cast(start, wide.aval.dtype), (size, width))
    running = ops.expand_dims(ops.arange(steps, device=x.aval.device), 1) < inputs

    def step(total: Array, now: tuple[Array, Array]) -> tuple[Array, None]:
        score, on = now
        leapt = ops.where(leaps, _shifted(total, 2, -math.inf), -math.inf)
        moved = _log_sum_exp(total, _shifted(total, 1, -math.inf), leapt) + score
        return ops.where(ops.expand_dims(on, 1), moved, total), None

    total, _ = scan(step, start, (scores, running))
    last = ops.expand_dims(ops.multiply(counts, 2), 1)
    ends = ops.take_along_axis(total, ops.concat([last, ops.clip(last - 1, 0, None)], 1), 1)
    losses = -_log_sum_exp(ends[:, 0], ops.where(ops.equal(counts, 0), -math.inf, ends[:, 1]))
    if zero_infinity:
        losses = ops.where(ops.equal(losses, math.inf), 0.0, losses)
    if reduction == "mean":
        losses = losses / cast(ops.clip(counts, 1, None), losses.aval.dtype)
    return reduced("ctc_loss", ops.reshape(losses, ()) if single else losses, reduction)


def _lengths(value: Any, size: int, single: bool) -> Array:
    lengths = as_index(numpy.asarray(value) if isinstance(value, (tuple, list)) else value)
    if lengths.shape != (size,) and not (single and not lengths.ndim):
        expected = f"lengths of shape ({size},)"
        raise ShapeError(message("ctc_loss", expected, repr(lengths.aval), "One length for each sequence."))
    return ops.reshape(lengths, (size,))


def _labels(targets: Any, given: Any, counts: Array, size: int, single: bool) -> Array:
    labels = as_index(targets)
    if single and labels.ndim == 1:
        return ops.expand_dims(labels, 0)
    if labels.ndim == 2 and labels.shape[0] == size:
        return labels
    if labels.ndim != 1:
        expected = f"targets of ({size}, length), or one after the other"
        raise ShapeError(message("ctc_loss", expected, repr(labels.aval), "Check the shapes."))
    known = isinstance(given, (tuple, list, numpy.ndarray)) and len(given)
    longest = builtins.min(labels.shape[0], int(numpy.max(given))) if known else labels.shape[0]
    if not longest:
        return ops.broadcast_to(ops.expand_dims(labels[:0], 0), (size, 0))
    starts = ops.expand_dims(ops.cumsum(counts, 0) - counts, 1)
    return ops.take(
        labels, ops.clip(starts + ops.arange(longest, device=labels.aval.device), 0, labels.shape[0] - 1), 0
    )


def _shifted(x: Array, by: int, value: Any) -> Array:
    """Return (batch, states) moved to later states, with `value` before them."""
    by = builtins.min(by, x.shape[1])
    front = ops.full((x.shape[0], by), value, x.aval.dtype, device=x.aval.device)
    return ops.concat([front, x[:, : x.shape[1] - by]], 1)


def _log_sum_exp(*terms: Array) -> Array:
    """Return log(sum exp), with derivatives of 0 where all terms are -inf."""
    high = terms[0]
    for term in terms[1:]:
        high = ops.maximum(high, term)
    high = ops.stop_gradient(high)
    dead = ops.equal(high, -math.inf)
    high = ops.where(dead, 0.0, high)
    total = ops.exp(terms[0] - high)
    for term in terms[1:]:
        total = total + ops.exp(term - high)
    return ops.where(dead, -math.inf, high + ops.log(ops.where(dead, 1.0, total)))
