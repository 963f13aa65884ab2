"""Bounded tables of values that can be computed again.

Each table has a limit of entries. All tables together have a limit of bytes, the setting `program_memory`. No pattern
of use makes a table compute all its values again.
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
"""A full table drops one entry in this many."""

SMALL = 400
"""Bytes of an entry without a program: a few objects and its share of the table. Measured, and rounded up."""

PER_OPERATION = 500
"""Bytes of one operation in an entry with a program: its node, call and names. Measured, and rounded up."""

PARTS = 16
"""The tables are counted whenever they have grown by one part in this many of the limit."""

_draw = random.Random(0)  # a generator of its own, so the user's `random` is not advanced


class BoundedTable(dict[K, V]):
    """A dict that holds a bounded number of entries, if they are added by `remember`.

    A full table drops an eighth of its entries, spread over the whole table. A program may cycle through more entries
    than fit. Dropping the least recently used ones would then lose each entry before its next use. If all tables exceed
    `program_memory`, each of them drops an eighth.

    Interrupts and other threads are harmless: each step adds or removes one entry.

    Args:
        limit: the number of entries.
        weigh: the approximate bytes of an entry, or a function of its value. If several tables hold a value, one of
            them counts it.
        stale: tells whether a value refers to an entry that another table has dropped. Such entries are dropped too.

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
        """Add an entry; this may drop others."""
        if len(self) >= self.limit:
            self.shrink()
        weigh = self.weigh
        budget.expect(weigh if isinstance(weigh, int) else weigh(value))
        self[key] = value

    def forget(self, keys: Iterable[K]) -> None:
        """Remove the entries of these keys, if present."""
        for key in keys:
            self.pop(key, None)

    def shrink(self) -> None:
        """Drop one entry in `PART`, at least one."""
        self.forget(spread(self, PART))

    def drop_stale(self) -> None:
        """Drop entries that refer to dropped entries of another table."""
        stale = self.stale
        if stale is not None:
            self.forget([key for key, value in self.copy().items() if stale(value)])

    @property
    def held(self) -> int:
        """The approximate bytes of all entries."""
        weigh = self.weigh
        return len(self) * weigh if isinstance(weigh, int) else sum(map(weigh, self.copy().values()))


def spread(keys: Iterable[K], part: int) -> list[K]:
    """Return one in `part` of the keys, at least one, spread over all of them. Each call chooses others."""
    every = list(keys)
    return every[_draw.randrange(min(part, len(every) or 1)) :: part]


class Budget:
    """Keeps all tables together within the setting `program_memory`.

    It counts their entries anew now and then. Running sums would need a lock at each change.
    """

    def __init__(self) -> None:
        self._tables: dict[int, weakref.ref[BoundedTable[Any, Any]]] = {}
        self._expected = 0  # bytes since the last count; threads may lose some, because nothing needs the exact sum
        self._counting = ExclusiveLock()
        self._limit = 0
        config.watch(self._configure)

    def _configure(self, settings: Config) -> None:
        self._limit = settings.program_memory

    def add(self, table: BoundedTable[Any, Any]) -> None:
        """Count a table for as long as it lives."""
        identity = id(table)
        self._tables[identity] = weakref.ref(table, lambda _: self._tables.pop(identity, None))

    def expect(self, count: int) -> None:
        """Make room for an entry of this many bytes. They are counted until the next count."""
        self._expected += count
        if self._expected * PARTS > self._limit:
            self._expected = 0
            self._counting.run(self.shrink, self._limit - count, wait=0)

    @property
    def held(self) -> int:
        """The approximate bytes of all tables."""
        return sum([table.held for table in self._alive()])

    def shrink(self, limit: int) -> None:
        """Drop entries of all tables until these hold so many bytes at most."""
        tables = self._alive()
        while self.held > limit:
            before = sum(map(len, tables))
            for table in tables:
                table.shrink()
            for table in tables:
                table.drop_stale()
            if sum(map(len, tables)) >= before:  # the remaining entries cannot be dropped
                return

    def _alive(self) -> list[BoundedTable[Any, Any]]:
        """Return the tables that are not empty."""
        return [table for ref in self._tables.copy().values() if (table := ref())]


budget = Budget()
"""The budget of this process."""


def remembered(
    limit: int, weigh: Callable[[Any], int] = lambda result: SMALL, key: Callable[[Any], Any] = lambda args: args
) -> Callable[[F], F]:
    """Return a decorator that keeps the results of a function in a `BoundedTable`, by its arguments.

    Args:
        weigh: a function from a result to its bytes.
        key: a function from the tuples of arguments and keywords to their key, such as `exact_key`.

    >>> @remembered(8)
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
        def call(*args: Any, **kwargs: Any) -> Any:
            known = key((args, tuple(kwargs.items())))
            found = table.get(known)
            if found is None:
                found = (function(*args, **kwargs),)
                table.remember(known, found)
            return found[0]

        return call  # type: ignore[return-value]

    return decorate
