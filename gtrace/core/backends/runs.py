"""What may happen while a program runs, beside its operations: the `Run` of each thread.

A run may be looked at between two operations, or between two blocks of a loop's steps. Then the worker is paused, or
the run is ended: compiled code has arrived, or a comparison has taken too long. Its loops may end after their first
steps, or go on in blocks. Its native code may be asked whether it wrote beyond its memory. Bodies of loops are
functions of tensors alone, so what they ask is kept by thread and not passed on. `during` changes it for a block.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Call = TypeVar("Call")

UNCUT = 2**63 - 1
"""More steps than any loop has."""

SHORT_LOOP = 16
"""Scans of no more steps are not cut: C++ compilers unroll them, for which they have to know the number of steps."""


class Run(threading.local):
    """What may happen while the programs of a thread run.

    Attributes:
        between: what is called between two operations. Each returns whether it is to be called again; the innermost is
            the last.
        most_steps: that a loop has, so that comparing a program does not take as long as running it. In a scan that is
            cut, the steps that do not run return what the last one that ran returned.
        blocks: `long_loops.Blocks`, how loops go on that take long; None: step by step to their ends.
        in_block: whether the loop that begins next is a block itself.
        strayed: whether native code wrote beyond the memory that it was given; None: nobody asks.
        untimed: whether nobody knows what calls take without the worker. It does not pause for them.
        untimed_blocks: how many blocks of such calls there were.
        forms: programs and their forms that ran of a recording that is compared as a whole; None: there is none.
        apart: whether a part of it was compared by itself.
        withdrawn: seconds of calls that were ended, and made again by another form.
    """

    between: tuple[Callable[[], bool], ...] = ()
    most_steps: int = UNCUT
    blocks: Any = None
    in_block: bool = False
    strayed: bool | None = None
    untimed: bool = False
    untimed_blocks: int = 0
    forms: list[tuple[Any, Any]] | None = None
    apart: bool = False
    withdrawn: float = 0.0


run = Run()
"""That of the thread that asks."""


@contextlib.contextmanager
def during(**changes: Any) -> Iterator[None]:
    """Within the block, attributes of this thread's run have other values.

    >>> with during(most_steps=2):
    ...     scan_steps(100_000), scan_steps(10)
    (2, 10)
    """
    before = {name: getattr(run, name) for name in changes}
    for name, value in changes.items():
        setattr(run, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(run, name, value)


def called_between(function: Callable[[], bool]) -> contextlib.AbstractContextManager[None]:
    """Return a block in which runs of this thread call `function` between operations, until it returns False."""
    return during(between=(*run.between, function))


class EndedError(Exception):
    """A run was ended between two operations.

    Attributes:
        of: what was given to `ended_once`.
    """

    def __init__(self, of: object) -> None:
        super().__init__(f"a run of {of} was ended")
        self.of = of


def ended_once(is_due: Callable[[], bool], of: object) -> contextlib.AbstractContextManager[None]:
    """Return a block in which runs of this thread are ended, between two operations, once that is due.

    Raises (within the block):
        EndedError: it was due. Inputs may have been written over only if the program was allowed to.
    """

    def go_on() -> bool:
        if is_due():
            raise EndedError(of)
        return True

    return called_between(go_on)


def look() -> None:
    """Call what is to be called between operations."""
    if run.between:
        run.between = tuple([function for function in run.between if function()])


def watched(calls: Iterable[Call]) -> Iterable[Call]:
    """Return the calls that a program makes, so that what is to be called between them is called."""
    return _with_looks(calls) if run.between else calls


def _with_looks(calls: Iterable[Call]) -> Iterator[Call]:
    for call in calls:
        yield call
        look()


def scan_steps(length: int) -> int:
    """Return how many steps run of a scan of this length."""
    return length if length <= SHORT_LOOP else min(length, run.most_steps)
