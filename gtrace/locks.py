"""Locks that an interrupt cannot leave held, and that a forked process may use at once."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator


def new_lock() -> threading.RLock:
    """Return a re-entrant lock that is free in a forked process, whichever thread of the parent held it.

    Re-entrant, because a signal handler or a finalizer may run in the middle of what it guards. It is the interpreter's
    own: in a `__enter__` or `__exit__` written in Python, Ctrl-C could strike while the lock is held and no `with`
    statement knows of it, and every other thread would wait for ever.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


class ExclusiveLock:
    """A lock for work that must not be entered twice, and which others may decide not to wait for."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._thread: int | None = None

    def forked(self) -> None:
        """Begin anew, as in a process that was forked: the fork did not copy the thread that has the lock."""
        self._thread = None

    @contextlib.contextmanager
    def taken(self, wait: bool) -> Iterator[bool]:
        """Within the block, have the lock, if it was free; yields whether it was.

        A signal handler or a finalizer that interrupts the work of this thread does not get it.

        Args:
            wait: until it is free.
        """
        me = threading.get_ident()
        if self._thread == me:
            yield False
            return
        try:
            got = self._lock.acquire(blocking=wait)
            if got:
                self._thread = me
            yield got
        finally:
            if self._thread == me:
                self._thread = None
            try:  # whatever `got` says: Ctrl-C may have struck before it was assigned
                self._lock.release()
            except RuntimeError:
                pass  # another thread has it


_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()


def _forked() -> None:
    for lock in _locks:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does with its own


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_forked)
