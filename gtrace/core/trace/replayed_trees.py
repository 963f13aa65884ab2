"""Pure functions of pytrees that are replayed from a program, because their operations follow from types.

An optimizer's update needs fourteen operations for each parameter. Recording them one by one takes a tenth of a small
model's step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from gtrace.core.base import tree
from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.config import config
from gtrace.core.base.mechanisms import TEMPLATES
from gtrace.core.base.torch_modes import callers_default_dtype
from gtrace.core.trace.array import Array
from gtrace.core.trace.replayable import Template, weight

MAX_PROGRAMS = 16
"""The number of argument types for which a function's program is kept."""


class Replayed:
    """A pure function of pytrees of Arrays, whose recording follows from their structure and types.

    It runs for the first two calls with arguments of the same types. The second call keeps its program, which is
    replayed from then on.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self._name = function, name
        # whether there will be a program, before there is one
        self._programs: BoundedTable[Hashable, Template | bool] = BoundedTable(
            MAX_PROGRAMS, lambda found: weight(found if isinstance(found, Template) else None)
        )

    def __call__(self, *args: Any) -> Any:
        """Return the results."""
        leaves, structure = tree.flatten(args)
        if not TEMPLATES.on or not _are_arrays(leaves):
            return self.function(*args)
        settings = config.current
        kinds = tuple([x.aval for x in leaves])
        key = structure, kinds, settings.x64, settings.jax_results, callers_default_dtype()
        program = self._programs.get(key)
        if program is True:
            program = Template.of(lambda arrays: self.function(*structure.unflatten(arrays)), kinds, self._name)
            self._programs.remember(key, program)
        if program is None:
            results = self.function(*args)
            # structures compare keys of dicts by ==, where 1 is True
            again = _are_arrays(tree.leaves(results)) and not tree.number_keys(structure)
            self._programs.remember(key, again)
            return results
        if program is False:
            return self.function(*args)
        return program.replay(leaves)


def _are_arrays(leaves: list[Any]) -> bool:
    return {x.__class__ for x in leaves} <= {Array}
