"""Traces that hold for many sizes, by kind of call.

A kind of call is what its trace depends on besides sizes. The first sizes of a kind are traced as they are. At the
second ones, the numbers that differ are left open: the trace notes what it looks at, and holds for all sizes of which
that is true. Other sizes get a version of their own, so a function that branches on a size has one for each branch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import attrs

from gtrace.core.base.bounded_tables import SMALL, BoundedTable
from gtrace.core.base.open_numbers import Value
from gtrace.interop.aten.open_sizes import Opened

T = TypeVar("T", bound="Weighed")


class Weighed(Protocol):
    """A trace that knows its approximate bytes."""

    @property
    def weight(self) -> int: ...


MOST_VERSIONS = 8
"""The number of versions of a kind of call; afterwards sizes that fit none of them are traced as they are."""

MAX_KINDS = 4096
"""The number of kinds of calls whose versions are kept."""


@attrs.frozen(eq=False)
class Version(Generic[T]):
    """A trace with open sizes.

    Attributes:
        places: the open ones among the numbers of a call.
        fixed: the numbers of its call, with None for the open ones.
        program: a function from the open numbers to those of the trace; None: the trace does not hold for them.
        trace: what was traced.
    """

    places: tuple[int, ...]
    fixed: tuple[int | None, ...]
    program: Callable[..., list[Value] | None]
    trace: T

    def numbers(self, given: Sequence[int]) -> list[Value] | None:
        """Return the numbers of the trace for a call with these numbers; None if it does not hold for them."""
        if any(n is not None and n != own for n, own in zip(self.fixed, given, strict=True)):
            return None
        try:
            return self.program(*[given[k] for k in self.places])
        except ArithmeticError:  # something is divided by a number that is zero now
            return None


class Kind(Generic[T]):
    """The versions of a kind of call."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._first = tuple(numbers)
        self._varying: set[int] = set()
        self._versions: list[Version[T]] = []
        self._left = MOST_VERSIONS

    @property
    def weight(self) -> int:
        """The approximate bytes of its versions."""
        return SMALL + sum(version.trace.weight for version in self._versions)

    def bound(self, numbers: Sequence[int], bind: Callable[[T, list[Value]], Any]) -> Any:
        """Return a call with these numbers, by the first version that holds for them; None if there is none.

        Args:
            bind: binds the open numbers of a trace; returns None if the trace does not hold for them after all.
        """
        for version in self._versions.copy():
            found = version.numbers(numbers)
            if found is not None:
                call = bind(version.trace, found)
                if call is not None:
                    return call
        return None

    def extend(
        self,
        numbers: Sequence[int],
        trace: Callable[[Collection[int]], tuple[Opened, T]],
        is_right: Callable[[T, list[Value]], bool],
    ) -> None:
        """Add a version with open sizes, after a call with these numbers was traced as it is.

        Args:
            trace: traces the call with open numbers at some places.
            is_right: whether a trace gives the call as it is, for its numbers.
        """
        self._varying |= {k for k, (n, own) in enumerate(zip(self._first, numbers, strict=True)) if n != own}
        if not self._varying or not self._left:
            return
        self._left -= 1
        places = tuple(sorted(self._varying))
        try:
            opened, known = trace(places)
            program = opened.program()
            values = program(*[numbers[k] for k in places])
            right = values is not None and is_right(known, values)
        except Exception:  # noqa: BLE001 - whatever a function raises for open sizes, it did not for its own
            right = False
        if not right:
            self._left = self._left if self._versions else 0
            return
        fixed = tuple([None if k in places else n for k, n in enumerate(numbers)])
        self._versions.append(Version(places, fixed, program, known))


def kinds() -> BoundedTable[Hashable, Kind[Any]]:
    """Return a table of kinds of calls."""
    return BoundedTable(MAX_KINDS, lambda kind: kind.weight)
