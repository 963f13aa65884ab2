"""Tables of what can be made again: bounded, and without a pattern of use that makes all of it be made again."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

PART = 8
"""A full table forgets one entry in so many."""

_draw = random.Random(0)  # of its own: the stream of the user's `random` stays as it is


class BoundedTable(dict[K, V]):
    """A dict that holds a bounded number of entries, as long as they are added by `remember`.

    A full table forgets an eighth of its entries, spread over all of it. Forgetting what was used least recently would
    forget everything before it is used again where a program goes through more entries than there is room for, in turn;
    here most of them stay.

    Interrupts and other threads are harmless: each step adds or removes one entry.

    Args:
        limit: the number of entries.

    >>> table = BoundedTable(8)
    >>> for k in range(20):
    ...     table.remember(k, str(k))
    >>> len(table) <= 8, 19 in table
    (True, True)
    """

    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def remember(self, key: K, value: V) -> None:
        """Add an entry; others may be forgotten."""
        if len(self) >= self.limit:
            self.forget(spread(self, PART))
        self[key] = value

    def forget(self, keys: Iterable[K]) -> None:
        """Remove entries, as far as they are there."""
        for key in keys:
            self.pop(key, None)


def spread(keys: Iterable[K], part: int) -> list[K]:
    """Return one in `part` of the keys, at least one, spread over all of them; others each time."""
    every = list(keys)
    return every[_draw.randrange(min(part, len(every) or 1)) :: part]
