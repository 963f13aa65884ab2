"""How each process ends, told to the others: a process that waits in vain says which one is missing, and why.

Notes are kept in the store of ``torch.distributed``. A process writes one when it ends, and when a call fails. So they
cost a program that works nothing.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Iterator, Sequence

import attrs
from torch import distributed

from gtrace.core.base.errors import DistributedError, is_users, user_location

GRACE = 2.0
"""Seconds in which other processes notice a failure too, and say where they are."""

_STATES = ("failed", "ended", "followed", "knows", "waits")
"""What a note says of a process: an error ended it; it ended without one; the end of another one ended it; it waited in
vain, and knows why, or does not yet. A process may leave several notes: the first of these counts."""

_NAMED = 4
"""Processes that a message names; of more it gives the number."""


@attrs.define(eq=False)
class Notes:
    """The notes of this program's processes.

    Attributes:
        store: torch's; a connection of its own, because another thread may wait in the common one.
        rank: of this process.
        count: how many processes there are.
        found: what `missing` has returned last.
        lost: whether the store is gone, with the process that keeps it.
    """

    store: distributed.Store
    rank: int
    count: int
    found: str = ""
    lost: bool = False

    @classmethod
    def of(cls, store: distributed.Store, rank: int, count: int) -> Notes:
        """Return the notes in a store."""
        own = store.clone()  # type: ignore[attr-defined] # the stubs lack it
        own.set_timeout(datetime.timedelta(seconds=GRACE))
        return cls(own, rank, count)

    def end(self) -> bool:
        """Note how this process ends; return whether by an error."""
        error = getattr(sys, "last_value", None)
        if error is None:
            self._write("ended", "")
            return False
        if isinstance(error, DistributedError) and self.found:
            self._write("followed", self.found)
            return True
        text = ": ".join(filter(None, (type(error).__name__, str(error).strip().split("\n")[0])))
        if " (at " not in text:
            text += f" (at {_line(error)})"
        self._write("failed", text)
        return True

    def missing(self, name: str, seconds: float, limit: float) -> str:
        """Return in words which processes are the reason that a call of this one failed.

        Args:
            name: of the call.
            seconds: how long it took.
            limit: how long it may take.
        """
        where = f"{name} at {user_location()}"
        self._write("waits", where)
        notes = self.read(_STATES)
        self._write("knows", where)
        self.found = self._reason(where, notes, f"has not come within {limit:g} s" if seconds >= limit else "")
        return self.found

    def _reason(self, where: str, notes: dict[int, tuple[str, str]] | None, late: str) -> str:
        if notes is None:
            launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            return f"{'the launcher' if launcher else 'rank 0'}, which keeps the store, has ended"
        followed = [text for state, text in notes.values() if state == "followed"]
        words = {
            "failed": "has ended with {}", "ended": "has come to its end", "knows": "waits in {}",
            "waits": "waits in {}", "": late or "has ended without a word, as if it was killed",
        }  # fmt: skip
        reasons = [(rank, *note) for rank, note in notes.items() if note[0] in ("failed", "ended", "")]
        if not reasons and followed:
            return followed[0]
        # all wait, in different places
        every = notes | {self.rank: ("waits", where)}
        reasons = reasons or [(rank, *every[rank]) for rank in sorted(every)]
        more = f", and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
        return "; ".join(f"rank {rank} {words[state].format(text)}" for rank, state, text in reasons[:_NAMED]) + more

    def wait_for_readers(self) -> None:
        """Wait until each other process has ended or knows why it waits in vain, for `GRACE` at most."""
        self.read(_STATES[:-1])

    def read(self, states: Sequence[str]) -> dict[int, tuple[str, str]] | None:
        """Return each other process's note once all have one of these states, or after `GRACE`.

        Returns:
            By rank, the state, empty if there is none, and the text; None if the store is gone.
        """
        until = time.monotonic() + GRACE
        try:
            while not self.lost:
                found = dict(self._others())
                if all(state in states for state, _ in found.values()) or time.monotonic() > until:
                    return found
                time.sleep(0.05)
        except RuntimeError:
            self.lost = True
        return None

    def _others(self) -> Iterator[tuple[int, tuple[str, str]]]:
        for rank in range(self.count):
            if rank != self.rank:
                state = next((state for state in _STATES if self.store.check([_key(state, rank)])), "")
                yield rank, (state, self.store.get(_key(state, rank)).decode() if state else "")

    def _write(self, state: str, text: str) -> None:
        try:
            if not self.lost:
                self.store.set(_key(state, self.rank), text)
        except RuntimeError:
            self.lost = True


def _key(state: str, rank: int) -> str:
    return f"gtrace/{state}/{rank}"


def _line(error: BaseException) -> str:
    """Return the innermost line of the user's that an error went through."""
    found, traceback = "a line of a library", error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if is_users(name):
            found = f"{name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found
