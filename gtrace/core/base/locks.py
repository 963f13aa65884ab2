"""Locks that an interrupt cannot leave held, and that a forked process may use at once."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable


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

    def run(self, work: Callable[..., object], *args: object, wait: float) -> bool:
        """Do the work while nobody else does any; returns whether it was done.

        A signal handler or a finalizer that interrupts the work of this thread does none.

        Args:
            wait: seconds until the lock is free, at most; then nothing is done. Infinity: as long as it takes.
        """
        if self._lock._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` asks
            return False
        # a plain function: a context manager that is left by Ctrl-C in its own code keeps the lock as long as the
        # traceback is kept
        try:
            got = self._lock.acquire(timeout=min(wait, threading.TIMEOUT_MAX))
            if got:
                work(*args)
            return got
        finally:
            try:  # whatever `got` says: Ctrl-C may have struck before it was assigned
                self._lock.release()
            except RuntimeError:
                pass  # another thread has it, or this process was forked in the middle of the work


_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()


def _forked() -> None:
    for lock in _locks:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does with its own


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_forked)
