"""Threads that may not start: a container's limit of processes can be reached for a moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def start_thread(
    function: Callable[..., object], name: str, *args: Any, daemon: bool = True, after: float | None = None
) -> threading.Thread | None:
    """Run a function in a new thread; None if the system has no thread to give now.

    A later attempt may succeed, so whoever gets None keeps no state that waits for the thread.

    Args:
        daemon: whether the end of the program does not wait for it.
        after: seconds until it runs; the thread has a method `cancel` then.
    """
    if after is None:
        thread = threading.Thread(target=function, args=args, name=name, daemon=daemon)
    else:
        thread = threading.Timer(after, function, args)
        thread.name, thread.daemon = name, daemon
    try:
        thread.start()
    except RuntimeError:  # also while the interpreter ends
        return None
    return thread
