"""Transformations that multiply updates, and weight decay."""

from __future__ import annotations

from typing import Any, NamedTuple

from gtrace.extend import ArgumentError, Array, cast, is_short, lift, message, ops, tree
from gtrace.optim.base import (
    EmptyState,
    GradientTransformation,
    Params,
    Schedule,
    State,
    Updates,
    first_count,
    need_params,
    root_mean_square,
    stateless,
)
from gtrace.optim.masking import masked
from gtrace.optim.replayed import transformation

__all__ = [
    "ScaleByScheduleState", "add_decayed_weights", "scale", "scale_by_learning_rate", "scale_by_param_block_rms",
    "scale_by_schedule",
]  # fmt: skip


@transformation
def scale(step_size: Any) -> GradientTransformation:
    """Return a transformation that multiplies updates by a number.

    >>> gt.optim.scale(-0.5).update(gt.array(3.0), gt.optim.EmptyState())[0]
    Array(-1.5, dtype=float32)
    """
    return stateless(lambda updates, params: tree.map(lambda g: g * step_size, updates))


class ScaleByScheduleState(NamedTuple):
    """State of `scale_by_schedule` and of weight decay by a schedule.

    Attributes:
        count: int32, the number of updates so far.
    """

    count: Array  # type: ignore[assignment] # optax's name, also of a tuple's method


def _times(factor: Any, x: Array) -> Array:
    """Return factor * x in the dtype of x; the factor is a number or an array of any dtype."""
    return x * (cast(factor, x.aval.dtype) if type(factor) is Array else factor)


@transformation
def scale_by_schedule(step_size_fn: Schedule) -> GradientTransformation:
    """Return a transformation that multiplies updates by a function of the number of updates so far.

    >>> opt = gt.optim.scale_by_schedule(lambda count: 1.0 + count)
    >>> state = opt.init(gt.array(0.0))
    >>> for _ in range(3):
    ...     out, state = opt.update(gt.array(2.0), state)
    >>> out
    Array(6., dtype=float32)
    """

    def update(updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        factor = step_size_fn(state.count)
        return tree.map(lambda g: _times(factor, g), updates), ScaleByScheduleState(state.count + 1)

    return GradientTransformation(lambda params: ScaleByScheduleState(first_count(params)), update)


@transformation
def scale_by_learning_rate(learning_rate: Any, *, flip_sign: bool = True) -> GradientTransformation:
    """Return a transformation that multiplies by a learning rate or schedule, negated unless `flip_sign` is False.

    Raises:
        ArgumentError: the learning rate is negative, NaN, or neither a number nor a schedule.

    >>> opt = gt.optim.scale_by_learning_rate(0.5)
    >>> opt.update(gt.array(3.0), opt.init(gt.array(0.0)))[0]
    Array(-1.5, dtype=float32)
    """
    sequence = isinstance(learning_rate, (str, list, tuple))
    if sequence or not (callable(learning_rate) or hasattr(learning_rate, "__rmul__")):
        fix = "Parameters go to optimizer.init(params), and to optimizer.update(grads, state, params)."
        got = type(learning_rate).__name__
        raise ArgumentError(message("optim", "a number or a schedule as learning_rate", got, fix))
    if isinstance(learning_rate, (int, float)) and not learning_rate >= 0:
        fix = "Updates go downhill by themselves; to go uphill, negate the loss."
        raise ArgumentError(message("optim", "a learning rate of at least 0", repr(learning_rate), fix))
    sign = -1 if flip_sign else 1
    if callable(learning_rate):
        return scale_by_schedule(lambda count: sign * learning_rate(count))
    return scale(sign * learning_rate)


@transformation
def scale_by_param_block_rms(min_scale: float = 1e-3) -> GradientTransformation:
    """Return a transformation that multiplies each update by its parameter's root mean square, at least `min_scale`.

    >>> params = gt.array([3.0, 3.0])
    >>> opt = gt.optim.scale_by_param_block_rms()
    >>> opt.update(gt.array([1.0, -2.0]), opt.init(params), params)[0]
    Array([ 3., -6.], dtype=float32)
    """

    def scaled(g: Any, p: Any) -> Array:
        p = lift("optim", p)
        size = ops.maximum(root_mean_square(p), min_scale)
        return g * (cast(size, p.aval.dtype) if is_short(p.aval.dtype) else size)

    return stateless(lambda updates, params: tree.map(scaled, updates, need_params("scale_by_param_block_rms", params)))


@transformation
def add_decayed_weights(weight_decay: Any = 0.0, mask: Any = None) -> GradientTransformation:
    """Return a transformation that adds the parameters, times a number or a schedule, to their updates.

    Args:
        mask: selects the parameters that decay; see `masked`.

    >>> opt = gt.optim.add_decayed_weights(0.1)
    >>> opt.update(gt.array(1.0), opt.init(None), gt.array(5.0))[0]
    Array(1.5, dtype=float32)
    """

    def init(params: Params) -> State:
        return ScaleByScheduleState(first_count(params)) if callable(weight_decay) else EmptyState()

    def update(updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        params = need_params("add_decayed_weights", params)
        factor = weight_decay
        if callable(weight_decay):
            factor, state = weight_decay(state.count), ScaleByScheduleState(state.count + 1)
        elif type(factor) in (int, float) and factor == 0:
            return updates, state
        return tree.map(lambda g, p: g + _times(factor, lift("optim", p)), updates, params), state

    decay = GradientTransformation(init, update)
    return decay if mask is None else masked(decay, mask)
