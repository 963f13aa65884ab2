"""Schedules: numbers, such as learning rates, as functions of the number of updates so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gtrace.extend import ArgumentError, lift, message, ops
from gtrace.optim.base import Schedule
from gtrace.optim.replayed import known_schedule

__all__ = [
    "constant_schedule", "cosine_decay_schedule", "exponential_decay", "join_schedules", "linear_schedule",
    "piecewise_constant_schedule", "polynomial_schedule", "warmup_cosine_decay_schedule",
]  # fmt: skip


def _positive(name: str, what: str, value: Any) -> None:
    if not value > 0:
        raise ArgumentError(message(f"optim.{name}", f"{what} above 0", repr(value), "Pass a number of steps."))


@known_schedule
def constant_schedule(value: Any) -> Schedule:
    """Return the schedule that is always `value`.

    >>> constant_schedule(0.1)(5)
    0.1
    """
    return lambda count: value


@known_schedule
def polynomial_schedule(
    init_value: Any, end_value: Any, power: Any, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """Return a schedule between two values, by a power of the remaining steps.

    Args:
        transition_steps: the number of steps.
        transition_begin: the first step.

    Raises:
        ArgumentError: there are no steps.

    >>> float(polynomial_schedule(1.0, 0.0, 2, 10)(5))
    0.25
    """
    _positive("polynomial_schedule", "transition_steps", transition_steps)

    def schedule(count: Any) -> Any:
        left = 1 - ops.clip(lift("optim", count) - transition_begin, 0, transition_steps) / transition_steps
        return (init_value - end_value) * left**power + end_value

    return schedule


@known_schedule
def linear_schedule(init_value: Any, end_value: Any, transition_steps: int, transition_begin: int = 0) -> Schedule:
    """Return a linear schedule between two values; see `polynomial_schedule`.

    >>> float(linear_schedule(1.0, 0.0, 10)(5))
    0.5
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


@known_schedule
def piecewise_constant_schedule(init_value: Any, boundaries_and_scales: Mapping[int, float] | None = None) -> Schedule:
    """Return a schedule that is multiplied by a number at each boundary.

    Raises:
        ArgumentError: a scale is negative.

    >>> float(piecewise_constant_schedule(1.0, {2: 0.5, 4: 0.5})(3))
    0.5
    """
    scales = sorted((boundaries_and_scales or {}).items())
    if any(scale < 0 for _, scale in scales):
        got = repr(boundaries_and_scales)
        raise ArgumentError(message("optim.piecewise_constant_schedule", "scales >= 0", got, "Change them."))

    def schedule(count: Any) -> Any:
        value = init_value
        for boundary, scale in scales:
            value = value * ops.where(lift("optim", count) < boundary, 1.0, scale)
        return value

    return schedule


@known_schedule
def exponential_decay(
    init_value: Any,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: Any = None,
) -> Schedule:
    """Return init_value * decay_rate ** (steps / transition_steps).

    Args:
        transition_begin: the first step that counts.
        staircase: round the exponent down.
        end_value: the value at which the decay stops.

    Raises:
        ArgumentError: there are no steps, or the rate is not above 0.

    >>> float(exponential_decay(1.0, 10, 0.25)(5))
    0.5
    """
    _positive("exponential_decay", "transition_steps", transition_steps)
    _positive("exponential_decay", "decay_rate", decay_rate)

    def schedule(count: Any) -> Any:
        steps = lift("optim", count) - transition_begin
        exponent = ops.floor(steps / transition_steps) if staircase else steps / transition_steps
        value = ops.where(steps <= 0, init_value, init_value * ops.power(decay_rate, exponent))
        return value if end_value is None else (ops.maximum if decay_rate < 1.0 else ops.minimum)(value, end_value)

    return schedule


@known_schedule
def cosine_decay_schedule(init_value: Any, decay_steps: int, alpha: Any = 0.0, exponent: Any = 1.0) -> Schedule:
    """Return half a period of a cosine (Loshchilov and Hutter, 2016), from `init_value` to `alpha` times it.

    Args:
        exponent: the exponent of the cosine.

    Raises:
        ArgumentError: there are no steps.

    >>> round(float(cosine_decay_schedule(1.0, 10)(5)), 6)
    0.5
    """
    _positive("cosine_decay_schedule", "decay_steps", decay_steps)

    def schedule(count: Any) -> Any:
        wave = 0.5 * (1 + ops.cos(ops.minimum(lift("optim", count), decay_steps) * (math.pi / decay_steps)))
        return init_value * ((1 - alpha) * wave**exponent + alpha)

    return schedule


@known_schedule
def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Return a sequence of schedules; each counts from its own boundary.

    Raises:
        ArgumentError: the number of boundaries is not one less than that of schedules.

    >>> schedule = join_schedules([linear_schedule(0.0, 1.0, 4), constant_schedule(0.5)], [4])
    >>> [float(schedule(count)) for count in (2, 3, 4)]
    [0.5, 0.75, 0.5]
    """
    if len(boundaries) != len(schedules) - 1:
        got = f"{len(boundaries)} for {len(schedules)} schedules"
        raise ArgumentError(message("optim.join_schedules", "a boundary between each two schedules", got, "Add some."))
    first, *others = schedules
    parts = list(zip(boundaries, others, strict=True))

    def schedule(count: Any) -> Any:
        value = first(count)
        for boundary, later in parts:
            value = ops.where(lift("optim", count) < boundary, value, later(lift("optim", count) - boundary))
        return value

    return schedule


@known_schedule
def warmup_cosine_decay_schedule(
    init_value: Any, peak_value: Any, warmup_steps: int, decay_steps: int, end_value: Any = 0.0, exponent: Any = 1.0
) -> Schedule:
    """Return a linear warmup to `peak_value`, then half a period of a cosine.

    Args:
        warmup_steps: the steps of the warmup.
        decay_steps: the steps of both.
        end_value: the value after all steps.
        exponent: the exponent of the cosine.

    Raises:
        ArgumentError: one of them has no steps.

    >>> round(float(warmup_cosine_decay_schedule(0.0, 1.0, 10, 30)(20)), 6)
    0.5
    """
    alpha = 0.0 if peak_value == 0 else end_value / peak_value
    return join_schedules(
        [
            linear_schedule(init_value, peak_value, warmup_steps),
            cosine_decay_schedule(peak_value, decay_steps - warmup_steps, alpha, exponent),
        ],
        [warmup_steps],
    )
