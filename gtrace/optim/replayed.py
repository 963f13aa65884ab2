"""Updates that are replayed from a program, because their operations follow from the types of their arguments.

Adam needs fourteen operations for each parameter. Recording them one by one takes a tenth of a small model's step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs
import numpy
import torch

from gtrace.extend import (
    TEMPLATES,
    Array,
    BoundedTable,
    DType,
    Template,
    callers_default_dtype,
    config,
    constructor,
    tree,
    weight,
)
from gtrace.optim.base import GradientTransformation, Params, Schedule, State, Update, Updates

MAX_PROGRAMS = 16
"""The number of argument types for which an update's program is kept."""

_PLAIN = (type(None), bool, int, float, str, numpy.generic, numpy.dtype, torch.dtype, DType)


@attrs.frozen
class KnownSchedule:
    """A schedule made from numbers only, so it is known to be pure."""

    function: Schedule

    def __call__(self, count: Any) -> Any:
        """Return the value at a step."""
        return self.function(count)


class ReplayedUpdate:
    """An `update` of a transformation made from numbers only, so it is known to be pure.

    It runs for the first two calls with arguments of the same types. The second call keeps its program, which is
    replayed from then on.
    """

    def __init__(self, function: Update) -> None:
        self.function = function
        # whether there will be a program, before there is one
        self._programs: BoundedTable[Hashable, Template | bool] = BoundedTable(
            MAX_PROGRAMS, lambda found: weight(found if isinstance(found, Template) else None)
        )

    def __call__(self, updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        """Return the updates and the new state."""
        leaves, structure = tree.flatten((updates, state, params))
        if not TEMPLATES.on or not _are_arrays(leaves):
            return self.function(updates, state, params)
        settings = config.current
        kinds = tuple([x.aval for x in leaves])
        key = structure, kinds, settings.x64, settings.jax_results, callers_default_dtype()
        program = self._programs.get(key)
        if program is True:
            program = Template.of(
                lambda arrays: self.function(*structure.unflatten(arrays)), kinds, "an optimizer's update"
            )
            self._programs.remember(key, program)
        if program is None:
            results = self.function(updates, state, params)
            # structures compare keys of dicts by ==, where 1 is True
            again = _are_arrays(tree.leaves(results)) and not tree.number_keys(structure)
            self._programs.remember(key, again)
            return results
        if program is False:
            return self.function(updates, state, params)
        return program.replay(leaves)


def _are_arrays(leaves: list[Any]) -> bool:
    return {x.__class__ for x in leaves} <= {Array}


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
        return GradientTransformation(made.init, ReplayedUpdate(*updates_of([made])))

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
    known = [update.function for update in found if isinstance(update, ReplayedUpdate)]
    return known if len(known) == len(found) else found


def _is_known(value: Any) -> bool:
    """Whether an argument is a number or a similar constant, or consists of them."""
    if isinstance(value, GradientTransformation):
        return isinstance(value.update, ReplayedUpdate)
    if isinstance(value, (list, tuple)):
        return all(map(_is_known, value))
    if isinstance(value, dict):
        return all(map(_is_known, value.values()))
    return isinstance(value, (*_PLAIN, KnownSchedule))
