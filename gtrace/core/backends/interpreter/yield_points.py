"""Calls a function between the operations of running programs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Call = TypeVar("Call")


class _Local(threading.local):
    """The function that this thread's programs call between their operations.

    Attributes:
        function: it returns whether to call it again; None: there is none.
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
    """Return the calls of a program, with the thread's function called after each."""
    return calls if _local.function is None else _with_calls_between(calls)


def _with_calls_between(calls: Iterable[Call]) -> Iterator[Call]:
    for call in calls:
        yield call
        function = _local.function
        if function is not None and not function():
            _local.function = None
