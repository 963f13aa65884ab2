"""Tables of what can be made again: bounded, and without a pattern of use that makes all of it be made again.

Each table has a limit of entries. All tables together have a limit of bytes, the setting `program_memory`.
"""

from __future__ import annotations

import functools
import random
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from gtrace.core.base.config import Config, config
from gtrace.core.base.locks import ExclusiveLock

K = TypeVar("K")
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])

PART = 8
"""A full table forgets one entry in so many."""

SMALL = 400
"""Bytes of an entry that holds no program: a few objects, and its part of the table. Measured, and rounded up."""

PER_OPERATION = 500
"""Bytes of one operation in an entry that holds a program: its node, its call and its names. Measured likewise."""

PARTS = 16
"""What the tables hold is counted whenever they have got one part in so many of what they may hold."""

_draw = random.Random(0)  # of its own: the stream of the user's `random` stays as it is


class BoundedTable(dict[K, V]):
    """A dict that holds a bounded number of entries, as long as they are added by `remember`.

    A full table forgets an eighth of its entries, spread over all of it. Forgetting what was used least recently would
    forget everything before it is used again where a program goes through more entries than there is room for, in turn;
    here most of them stay. If all tables hold more than `program_memory`, each of them forgets so many.

    Interrupts and other threads are harmless: each step adds or removes one entry.

    Args:
        limit: the number of entries.
        weigh: bytes of an entry, about, or a function of its value that says so. What several tables hold counts once.
        stale: whether a value holds something that another table has forgotten; such entries go with it.

    >>> table = BoundedTable(8)
    >>> for k in range(20):
    ...     table.remember(k, str(k))
    >>> len(table) <= 8, 19 in table
    (True, True)
    """

    __slots__ = ("limit", "weigh", "stale", "__weakref__")

    def __init__(
        self, limit: int, weigh: int | Callable[[V], int] = SMALL, stale: Callable[[V], bool] | None = None
    ) -> None:
        super().__init__()
        self.limit = limit
        self.weigh = weigh
        self.stale = stale
        budget.add(self)

    def remember(self, key: K, value: V) -> None:
        """Add an entry; others may be forgotten."""
        if len(self) >= self.limit:
            self.shrink()
        weigh = self.weigh
        budget.expect(weigh if isinstance(weigh, int) else weigh(value))
        self[key] = value

    def forget(self, keys: Iterable[K]) -> None:
        """Remove entries, as far as they are there."""
        for key in keys:
            self.pop(key, None)

    def shrink(self) -> None:
        """Forget one entry in `PART`, at least one."""
        self.forget(spread(self, PART))

    def drop_stale(self) -> None:
        """Forget entries that hold what another table has forgotten."""
        stale = self.stale
        if stale is not None:
            self.forget([key for key, value in self.copy().items() if stale(value)])

    @property
    def held(self) -> int:
        """The bytes of all entries, about."""
        weigh = self.weigh
        return len(self) * weigh if isinstance(weigh, int) else sum(map(weigh, self.copy().values()))


def spread(keys: Iterable[K], part: int) -> list[K]:
    """Return one in `part` of the keys, at least one, spread over all of them; others each time."""
    every = list(keys)
    return every[_draw.randrange(min(part, len(every) or 1)) :: part]


class Budget:
    """Keeps what all tables hold within the setting `program_memory`.

    Their entries are counted anew now and then. Sums that are kept up to date would need a lock at each change.
    """

    def __init__(self) -> None:
        self._tables: dict[int, weakref.ref[BoundedTable[Any, Any]]] = {}
        self._expected = 0  # bytes since the last count; threads may lose some, as nothing depends on the exact sum
        self._counting = ExclusiveLock()
        self._limit = 0
        config.watch(self._configure)

    def _configure(self, settings: Config) -> None:
        self._limit = settings.program_memory

    def add(self, table: BoundedTable[Any, Any]) -> None:
        """Count a table, as long as it lives."""
        identity = id(table)
        self._tables[identity] = weakref.ref(table, lambda _: self._tables.pop(identity, None))

    def expect(self, count: int) -> None:
        """Make room for an entry of so many bytes, which stays until the next count."""
        self._expected += count
        if self._expected * PARTS > self._limit:
            self._expected = 0
            self._counting.run(self._settle, self._limit - count, wait=0)

    @property
    def held(self) -> int:
        """The bytes that all tables hold, about."""
        return sum([table.held for table in self._alive()])

    def _settle(self, limit: int) -> None:
        tables = self._alive()
        while self.held > limit:
            before = sum(map(len, tables))
            for table in tables:
                table.shrink()
            for table in tables:
                table.drop_stale()
            if sum(map(len, tables)) >= before:  # what is left cannot be forgotten
                return

    def _alive(self) -> list[BoundedTable[Any, Any]]:
        """Return the tables that hold anything."""
        return [table for ref in self._tables.copy().values() if (table := ref())]


budget = Budget()
"""That of this process."""


def remembered(limit: int, weigh: Callable[[Any], int]) -> Callable[[F], F]:
    """Return a decorator for a function whose results are kept in a `BoundedTable`, by its arguments.

    Args:
        weigh: gives the bytes of a result.

    >>> @remembered(8, lambda result: SMALL)
    ... def double(x):
    ...     print("doubling")
    ...     return 2 * x
    >>> double(1), double(1)
    doubling
    (2, 2)
    """

    def decorate(function: F) -> F:
        table: BoundedTable[Any, tuple[Any]] = BoundedTable(limit, lambda found: weigh(found[0]))

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            found = table.get(args)
            if found is None:
                found = (function(*args),)
                table.remember(args, found)
            return found[0]

        return call  # type: ignore[return-value]

    return decorate
