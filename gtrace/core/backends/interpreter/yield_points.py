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
        functions: each returns whether it is to be called again. The innermost is the last.
    """

    functions: tuple[Callable[[], bool], ...] = ()


_local = _Local()


@contextlib.contextmanager
def called_between(function: Callable[[], bool]) -> Iterator[None]:
    """Within the block, programs of this thread call `function` between their operations, until it returns False."""
    before = _local.functions
    _local.functions = (*before, function)
    try:
        yield
    finally:
        _local.functions = before


def call_functions() -> None:
    """Call what is to be called here, between operations or between blocks of a loop's steps."""
    if _local.functions:
        _local.functions = tuple([function for function in _local.functions if function()])


def watched(calls: Iterable[Call]) -> Iterable[Call]:
    """Return the calls that a program makes, so that what is to be called between them is called."""
    return _with_calls_between(calls) if _local.functions else calls


def _with_calls_between(calls: Iterable[Call]) -> Iterator[Call]:
    for call in calls:
        yield call
        call_functions()
