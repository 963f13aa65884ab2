"""Result types and rules derived from torch, kept on disk as text for later processes.

Deriving a rule takes 1 to 100 ms. Deriving a type takes a second if torch imports modules for it. Later processes
read the text.
"""

from __future__ import annotations

import atexit
import hashlib
from collections.abc import Callable, Hashable
from typing import TypeVar

from gtrace.core.backends.toolchain import toolchain
from gtrace.core.base.bounded_tables import SMALL, BoundedTable
from gtrace.core.base.locks import new_lock
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.cache.folder import DERIVED
from gtrace.core.runtime.cache.store import Store

T = TypeVar("T")

MAX_NEW = 4096
"""The number of texts that a process keeps for later ones."""


class Derivations:
    """A table of texts by key. It is read from the store at first use, and written when the process ends."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._known: dict[str, str] = {}
        self._new: BoundedTable[str, str] = BoundedTable(MAX_NEW, lambda text: SMALL + len(text))
        self._lock = new_lock()

    def find(self, key: Hashable, read: Callable[[str], T]) -> T | None:
        """Return the value that this or an earlier process kept; None if there is none, or it is unreadable.

        Args:
            key: its `repr` identifies the value in every process.
            read: parses the text; raises ValueError for a damaged one.
        """
        if artifacts.store is None:
            return None
        with self._lock:
            self._read(artifacts.store)
            name = _name(key)
            text = self._new.get(name) or self._known.get(name)
        if text is None:
            return None
        try:
            return read(text)
        except ValueError:
            return None  # it is derived and kept again

    def keep(self, key: Hashable, text: str) -> None:
        """Keep a text for later processes."""
        if artifacts.store is None:
            return
        with self._lock:
            self._read(artifacts.store)
            self._new.remember(_name(key), text)

    def save(self) -> None:
        """Write new texts."""
        with self._lock:
            if self._store is not None and self._new:
                self._store.extend(DERIVED, self._new)
                self._known |= self._new
                self._new.clear()

    def _read(self, store: Store) -> None:
        if store is not self._store:
            self._store, self._known = store, store.table(DERIVED)
            self._new.clear()


def _name(key: Hashable) -> str:
    # rules depend on torch, and on the gtrace operations that they use
    text = f"{toolchain()['torch']} {toolchain()['gtrace']} {key!r}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


derivations = Derivations()
"""The table of this process."""

atexit.register(derivations.save)
