"""What is called between the operations of programs that are running."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Call = TypeVar("Call")


class _Local(threading.local):
    """What this thread's programs call between their operations.

    Attributes:
        function: returns whether it is to be called again; None: there is none.
    """

    function: Callable[[], bool] | None = None


_local = _Local()


@contextlib.contextmanager
def called_between(function: Callable[[], bool]) -> Iterator[None]:
    """Within the block, programs of this thread call `function` between their operations, until it returns False."""
    before, _local.function = _local.function, function
    try:
        yield
    finally:
        _local.function = before


def watched(calls: Iterable[Call]) -> Iterable[Call]:
    """Return the calls that a program makes, so that what is to be called between them is called."""
    return calls if _local.function is None else _with_calls_between(calls)


def _with_calls_between(calls: Iterable[Call]) -> Iterator[Call]:
    for call in calls:
        yield call
        function = _local.function
        if function is not None and not function():
            _local.function = None
