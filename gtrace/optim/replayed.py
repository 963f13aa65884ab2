"""Updates that are replayed from a program, because their operations follow from the types of their arguments.

Adam needs fourteen operations for each parameter. Recording them one by one takes a tenth of a small model's step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy
import torch

from gtrace.extend import DType, Replayed, constructor
from gtrace.optim.base import GradientTransformation, Schedule, Update

_PLAIN = (type(None), bool, int, float, str, numpy.generic, numpy.dtype, torch.dtype, DType)


@attrs.frozen
class KnownSchedule:
    """A schedule made from numbers only, so it is known to be pure."""

    function: Schedule

    def __call__(self, count: Any) -> Any:
        """Return the value at a step."""
        return self.function(count)


def transformation(function: Callable[..., GradientTransformation]) -> Callable[..., Any]:
    """Return a function that makes transformations. Their updates are replayed if all arguments are numbers.

    For its errors see `constructor`.
    """
    checked = constructor(function)

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> GradientTransformation:
        made = checked(*args, **kwargs)
        if not all(map(_is_known, (*args, *kwargs.values()))):
            return made
        (update,) = updates_of([made])
        return GradientTransformation(made.init, Replayed(update, "an optimizer's update"))

    return make


def known_schedule(function: Callable[..., Schedule]) -> Callable[..., Schedule]:
    """Return a function that makes schedules; for its errors see `constructor`."""
    checked = constructor(function)

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Schedule:
        made: Schedule = checked(*args, **kwargs)
        return KnownSchedule(made) if all(map(_is_known, (*args, *kwargs.values()))) else made

    return make


def updates_of(transforms: Sequence[GradientTransformation]) -> list[Update]:
    """Return the updates for a combined transformation to call: unwrapped if it can replay all of them itself."""
    found = [t.update for t in transforms]
    known = [update.function for update in found if isinstance(update, Replayed)]
    return known if len(known) == len(found) else found


def _is_known(value: Any) -> bool:
    """Whether an argument is a number or a similar constant, or consists of them."""
    if isinstance(value, GradientTransformation):
        return isinstance(value.update, Replayed)
    if isinstance(value, (list, tuple)):
        return all(map(_is_known, value))
    if isinstance(value, dict):
        return all(map(_is_known, value.values()))
    return isinstance(value, (*_PLAIN, KnownSchedule))
