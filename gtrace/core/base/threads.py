"""Threads that may not start: a container's limit of processes can be reached for a moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=threading.Thread)


def start_thread(
    function: Callable[..., object], name: str, *args: Any, daemon: bool = True
) -> threading.Thread | None:
    """Run a function in a new thread; None if the system has no thread to give now.

    A later attempt may succeed, so whoever gets None keeps no state that waits for the thread.

    Args:
        daemon: whether the end of the program does not wait for it.
    """
    return _started(threading.Thread(target=function, args=args), name, daemon)


def start_timer(function: Callable[..., object], name: str, seconds: float, *args: Any) -> threading.Timer | None:
    """Run a function in a new thread after some seconds; None as for `start_thread`."""
    return _started(threading.Timer(seconds, function, args), name, daemon=True)


def _started(thread: T, name: str, daemon: bool) -> T | None:
    thread.name, thread.daemon = name, daemon
    try:
        thread.start()
    except RuntimeError:  # also while the interpreter ends
        return None
    return thread
