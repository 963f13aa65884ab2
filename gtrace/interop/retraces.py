"""Notices torch functions that are traced again and again for numbers among their arguments, and warns once of each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.errors import RetracingWarning, user_location, warn_at
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.trace.array import Array

MOST = 8
"""Times that a function is traced again for other numbers before it is warned of."""

NUMBERS = int, float, complex
"""Types of arguments that count: a boolean or a name chooses among few programs."""


class Retraces:
    """How often the functions of a table were traced for arguments that differ in numbers alone."""

    def __init__(self) -> None:
        self._traces: BoundedTable[Hashable, int] = BoundedTable(4096)
        self._warned: set[str] = set()

    def note(self, name: str, function: Hashable, structure: Hashable, leaves: Sequence[object]) -> None:
        """Note a trace.

        Args:
            name: of the function in the warning.
            structure, leaves: of its arguments.
        """
        numbers = [x for x in leaves if type(x) in NUMBERS]
        if not numbers:
            return
        kinds = [x.aval if type(x) is Array else type(x) if type(x) in NUMBERS else exact_key(x) for x in leaves]
        key = function, structure, *kinds
        count = self._traces.get(key, 0) + 1
        self._traces.remember(key, count)
        if count > MOST and name not in self._warned:
            self._warned.add(name)
            given = ", ".join(map(str, numbers[:8]))
            warn_at(
                f"[{name}] was traced {count} times, because numbers among its arguments are constants of the program:"
                f" now {given}. If they differ from call to call, pass a number as an array, such as gt.array(2.0), or"
                " use gtrace's own function.",
                user_location(),
                RetracingWarning,
            )
