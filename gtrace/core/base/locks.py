"""Locks that an interrupt cannot leave held, and that are free in a forked process."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable


def new_lock() -> threading.RLock:
    """Return a re-entrant lock that is free in a forked process, whichever thread of the parent held it.

    It is re-entrant, because a signal handler or finalizer may run while this thread holds it. It is the interpreter's
    own lock. Inside a `__enter__` or `__exit__` written in Python, Ctrl-C could strike between
    taking the lock and the start of the `with` block. Every other thread would then wait for ever.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


class ExclusiveLock:
    """A lock for work that must not be entered twice; other threads need not wait for it."""

    def __init__(self) -> None:
        self._lock = new_lock()

    def run(self, work: Callable[..., object], *args: object, wait: float) -> bool:
        """Do the work while nobody else does; return whether it was done.

        A signal handler or finalizer that interrupts the work in this thread does none.

        Args:
            wait: seconds to wait for the lock. After that the work is not done. Infinity waits for ever.
        """
        if self._lock._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` asks
            return False
        # a plain function: if Ctrl-C leaves a context manager's own code, the traceback keeps the lock held
        try:
            got = self._lock.acquire(timeout=min(wait, threading.TIMEOUT_MAX))
            if got:
                work(*args)
            return got
        finally:
            try:  # not `if got`: Ctrl-C may have struck before it was assigned
                self._lock.release()
            except RuntimeError:
                pass  # another thread has it, or this process was forked during the work


_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()


def _forked() -> None:
    for lock in _locks:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does with its own


if hasattr(os, "register_at_fork"):  # some systems lack it
    os.register_at_fork(after_in_child=_forked)
