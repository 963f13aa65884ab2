"""What comparisons with the recorded program found, kept in the store for later processes."""

from __future__ import annotations

import atexit
import random
from collections.abc import Callable

from gtrace.core.backends.request import digest
from gtrace.core.backends.toolchain import toolchain
from gtrace.core.base.locks import new_lock
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.cache.folder import AGREED, WRONG
from gtrace.core.runtime.cache.store import Store


class Findings:
    """Forms that were wrong, and forms that agreed. A form is given in words, which are equal in each process.

    The words are asked for only if something is known. Findings depend on the toolchain too.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._store: Store | None = None
        self._wrong: dict[str, str] = {}
        self._agreed: dict[str, str] = {}
        self._new: dict[str, str] = {}  # that agreed in this process
        self._draws = random.Random()  # so that programs draw what they drew without gtrace

    def wrong(self, form: Callable[[], str]) -> str:
        """Return what an earlier process found wrong with a form that no compiler made; empty: nothing."""
        with self._lock:
            self._read()
            known = self._wrong
        return known.get(_name(form()), "") if known else ""

    def keep_wrong(self, form: str, problem: str) -> None:
        """Have no later process run a form that no compiler made."""
        with self._lock:
            self._read()
            if self._store is not None:
                self._store.extend(WRONG, {_name(form): problem})
                self._wrong = self._store.table(WRONG)

    def agreed(self, form: Callable[[], str]) -> float | None:
        """Return the seconds of a comparison in which a form agreed in an earlier process; None: there was none."""
        with self._lock:
            self._read()
            known = self._agreed
        found = known.get(_name(form())) if known else None
        try:
            return None if found is None else max(float(found), 0.0)
        except ValueError:
            return None  # it is compared again

    def keep_agreed(self, form: str, seconds: float) -> None:
        """Have later processes know that a form agreed, in a comparison that took so many seconds."""
        with self._lock:
            self._read()
            if self._store is not None:
                self._new[_name(form)] = f"{seconds:.3g}"

    def since(self, seconds: float, share: float) -> float:
        """Return for how long a form that agreed in an earlier process may be taken to have run since, in seconds.

        It is drawn, so that processes compare about as often as one would that runs as long as all of them.

        Args:
            seconds: that a comparison takes.
            share: the fraction of the time for comparisons.
        """
        return self._draws.random() * seconds / share if share else 0.0

    def save(self) -> None:
        """Write which forms agreed."""
        with self._lock:
            if self._store is not None and self._new:
                self._store.extend(AGREED, self._new)
                self._new = {}

    def _read(self) -> None:
        store = artifacts.store
        if store is self._store:
            return
        self._store, self._new = store, {}
        self._wrong, self._agreed = ({}, {}) if store is None else (store.table(WRONG), store.table(AGREED))


def _name(form: str) -> str:
    return digest(form, *(f"{name}: {value}" for name, value in toolchain().items()))


findings = Findings()
"""The findings of this process."""

atexit.register(findings.save)
