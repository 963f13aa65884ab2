"""Interning: one live object per key, so that identity is equality. Unused objects are freed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from gtrace.core.base.bounded_tables import SMALL, BoundedTable
from gtrace.core.base.locks import new_lock

T = TypeVar("T")


class _Ref(weakref.ref[Any]):
    """A weak reference that knows its key."""

    __slots__ = ("key",)
    key: Hashable


class InternTable(Generic[T]):
    """Objects by key: recent ones, and all others in use.

    It is safe with threads, because a miss takes a lock. It is safe with signal handlers and finalizers that intern
    during a miss, because one ``setdefault`` enters an object. An unused object leaves the table.

    Args:
        keep: how many recent objects the table itself keeps alive.
        weigh: the bytes of an object, or a function that computes them.

    Attributes:
        recent: the recent objects, for fast lookups. A key that is missing here may still be interned.
    """

    def __init__(self, keep: int = 4096, weigh: int | Callable[[T], int] = SMALL) -> None:
        self.recent: BoundedTable[Hashable, T] = BoundedTable(keep, weigh)
        self._refs: dict[Hashable, _Ref] = {}
        self._dead: list[_Ref] = []
        self._lock = new_lock()

    def __len__(self) -> int:
        """The number of objects in use."""
        return sum(ref() is not None for ref in list(self._refs.values()))

    def intern(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the object of `key`; make it if there is none.

        >>> table = InternTable()
        >>> table.intern(1, lambda: frozenset([1])) is table.intern(1, lambda: frozenset([1]))
        True
        """
        found = self.recent.get(key)
        if found is not None:
            return found
        known = self._refs.get(key)
        found = None if known is None else known()
        if found is None:
            return self._enter(key, make())
        self._note(key, found)
        return found

    def _enter(self, key: Hashable, made: T) -> T:
        # queue dead references without the lock: an object may die at any time, even while this thread holds it
        ref = _Ref(made, self._dead.append)
        ref.key = key
        with self._lock:
            while self._dead:
                gone = self._dead.pop()
                if self._refs.get(gone.key) is gone:
                    del self._refs[gone.key]
            found: T | None = self._refs.setdefault(key, ref)()
            if found is None:
                self._refs[key] = ref
                found = made
        self._note(key, found)
        return found

    def _note(self, key: Hashable, found: T) -> None:
        if self.recent.limit:
            self.recent.remember(key, found)
