"""How a program and the worker share the cores: what the worker costs the program, and when it has to pause."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator, Sequence

import torch

from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.runs import called_between, during, run
from gtrace.core.base.config import config
from gtrace.core.base.mechanisms import SHARED_CORES
from gtrace.core.base.torch_internals import thread_setter
from gtrace.core.runtime.worker.client import worker

MOST_DEBT = 0.03
"""Seconds that the program may have lost beyond its share before the worker pauses: no step takes much longer then."""

MOST_DEBT_ALONE = 0.8
"""The same where only the C++ compiler runs. A program or a few loops cost less, so they are compiled without a pause.
A pause would only delay the gain."""

LONG_CALL, MOST_LONGER = 0.02, 0.4
"""Seconds of a long call, and the largest part of its usual time by which the worker may lengthen it."""

AT_ONCE = 3.0
"""How many times its share a program may lose at once, while it has lost less than its share since it began."""

MOST_CREDIT = 2.0
"""The most seconds that it may lose this way, however long it ran without the worker."""

LEAST_OTHERS, OTHERS_SECONDS = 1.5, 0.25
"""How many times as long as usual calls take beside a pausing worker before that is put down to other programs, and the
seconds of calls after which an older measurement has half of its weight."""

MEASURE_SECONDS, MEASURE_SHARE = 1.0, 0.1
"""While others slow the program down, the worker pauses after so many seconds of calls, for this part of them. Calls
are measured without it then. Otherwise nobody would notice that the others have ended."""

DEBT_LIMIT = 0.5
"""The most seconds of debt beyond these that count. One call that something else held up must not stop the worker for
minutes."""

PRIOR_SLOWDOWN, PRIOR_SECONDS = 0.1, 1.0
"""The slowdown of one-threaded operations that is assumed before any is measured, and how many measured seconds the
assumption counts for."""

PRIOR_ALONE = 0.15
"""The same for short programs, which the C++ compiler alone compiles, on two cores or fewer. Measured: beside the
compiler, steps of 2 to 5 ms took up to 0.15 longer."""


def untimed() -> contextlib.AbstractContextManager[None]:
    """Return a block in which the worker does not pause for calls of this thread.

    Steps of a loop take more or less time for reasons of their own, and a loop that takes long needs its code.
    """
    run.untimed_blocks += 1
    return during(untimed=True)


class Sharing:
    """Measures calls beside the worker, and pauses it while it has cost more than its share (``GT_COMPILE_SHARE``).

    Attributes:
        lost: seconds that calls took longer than usual while the worker was running.
        beside: seconds of these calls.
        debt: seconds lost beyond what is allowed at the moment.
        in_debt: whether that became too much, and is not zero again.
        credit: seconds that may still be lost until the share since the beginning is used up.
    """

    def __init__(self) -> None:
        self.lost = 0.0
        self.beside = 0.0
        self.debt = 0.0
        self.in_debt = False
        self.credit = 0.0
        self._others = 1.0
        self._unmeasured = 0.0  # seconds of calls beside the worker since it was measured what others take
        self._measuring = False
        self._credited = time.perf_counter()

    def slowdown(self, library_share: float = 0.0, alone: bool = False) -> float:
        """Return the fraction of its speed that a program loses while the worker is running.

        Args:
            library_share: the fraction of its time that it spends in libraries, which use all threads: where each has a
                core, it leaves one to the worker.
            alone: whether the C++ compiler alone compiles it.
        """
        threads = torch.get_num_threads()
        shared = library_share / threads if 1 < threads >= _cores() else 0.0
        prior = min((PRIOR_ALONE if alone and _cores() <= 2 else PRIOR_SLOWDOWN) + shared, 1.0)
        return (prior * PRIOR_SECONDS + self.lost) / (PRIOR_SECONDS + self.beside)

    def run(
        self, program: TensorFunction, tensors: Sequence[torch.Tensor], usual: float
    ) -> tuple[list[torch.Tensor], bool]:
        """Call a program while the worker has something to do; returns its results, and whether the worker ran.

        Where torch would use every core, the program leaves one to the worker: the threads of a torch operation wait
        for one another. With one more process than cores, two of them come to share a core, and each operation takes as
        long as the scheduler's time slices. A long call has the core back, and the worker pauses, before it takes half
        as long again as usual.

        Args:
            usual: the seconds that the program takes without the worker; 0: unknown, so the worker pauses.
        """
        if not SHARED_CORES.on:
            return program(tensors), True
        SHARED_CORES.used()
        if run.untimed:
            worker.resume()
        elif not usual and not self._starved():
            worker.pause()
        threads = spare_thread()
        if not threads:
            return self._timed(program, tensors, usual)
        bound = None
        if usual >= LONG_CALL and worker.long and not run.untimed and config.current.compile_share < 1:
            # one thread fewer costs about as much of its speed
            bound = _Bound(MOST_LONGER * usual * self.others / max(self.slowdown(), 1 / threads), threads)
        _set_threads(threads - 1)
        try:
            return self._timed(program, tensors, usual, bound)
        finally:
            _set_threads(threads)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the worker stands still, unless its request starves. Nothing in it is measured.

        That is for calls whose usual time nobody knows, such as a comparison: beside two compilers one took three times
        as long.
        """
        if not (SHARED_CORES.on and worker.pending) or config.current.compile_share >= 1 or self._starved():
            return contextlib.nullcontext()
        return worker.held()

    def _timed(
        self, program: TensorFunction, tensors: Sequence[torch.Tensor], usual: float, bound: _Bound | None = None
    ) -> tuple[list[torch.Tensor], bool]:
        alone, ever = worker.paused, run.untimed_blocks
        start = time.perf_counter()
        with worker.beside(), contextlib.nullcontext() if bound is None else called_between(bound):
            results = program(tensors)
        end = time.perf_counter()
        if run.untimed or run.untimed_blocks > ever:
            return results, True
        seconds = end - start
        lost = 0.0 if alone else seconds - usual * self.others
        if self.others == 1.0:  # there is nothing that would even out
            lost = max(lost, 0.0)
        if usual:
            self._learn_others(seconds, usual, alone)
        if not alone:
            self.lost = max(self.lost + lost, 0.0)
            self.beside += seconds if bound is None or bound.ended is None else bound.ended
        share = config.current.compile_share
        most = MOST_DEBT if worker.long else MOST_DEBT_ALONE
        credit = min(self.credit + share * (end - self._credited), MOST_CREDIT) - lost
        self.credit, self._credited = max(credit, -(most + DEBT_LIMIT)), end
        debt = self.debt + lost - (AT_ONCE * share if self.credit > 0 or self._starved() else share) * seconds
        self.debt = min(max(debt, 0.0), most + DEBT_LIMIT)
        self.in_debt = self.debt > most or (self.in_debt and self.debt > 0)
        if self.in_debt or self._measuring:
            worker.pause()
        else:
            worker.resume()
        return results, not alone

    @property
    def others(self) -> float:
        """How many times their usual time calls take now without the worker, because other programs are busy."""
        return self._others if self._others >= LEAST_OTHERS else 1.0

    def _starved(self) -> bool:
        """Whether the worker may cost more, because its request starves."""
        return worker.starves and config.current.compile_share > 0

    def _learn_others(self, seconds: float, usual: float, alone: bool) -> None:
        """Learn from a call how much others slow the program down; beside the worker, only that they do so less."""
        measured = seconds / usual
        if alone or measured < self._others:
            self._others += (1 - 0.5 ** (seconds / OTHERS_SECONDS)) * (measured - self._others)
        self._unmeasured = max(self._unmeasured - seconds / MEASURE_SHARE, 0.0) if alone else self._unmeasured + seconds
        due = self._unmeasured > (0 if self._measuring else MEASURE_SECONDS)
        self._measuring = due and self.others > 1 and config.current.compile_share < 1


class _Bound:
    """Called between the operations of a call: after some seconds the worker pauses, and the call has all threads.

    Attributes:
        ended: after how many seconds that was; None: not yet.
    """

    def __init__(self, seconds: float, threads: int) -> None:
        self._seconds = seconds
        self._threads = threads
        self._start = time.perf_counter()
        self.ended: float | None = None

    def __call__(self) -> bool:
        seconds = time.perf_counter() - self._start
        if seconds < self._seconds and not worker.paused:
            return True
        self.ended = seconds
        worker.pause()
        _set_threads(self._threads)
        return False


def spare_thread() -> int:
    """Return the number of torch's threads if a program should leave one to the worker; otherwise 0."""
    threads = torch.get_num_threads()
    return 0 if worker.paused or threads == 1 or threads < _cores() or thread_setter() is None else threads


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Within the block, this thread has that many of torch's threads, also if it has left one to the worker."""
    before = torch.get_num_threads()
    if before == count or thread_setter() is None:
        yield
        return
    _set_threads(count)
    try:
        yield
    finally:
        _set_threads(before)


def _set_threads(count: int) -> None:
    """Set the number of torch's threads for this thread alone."""
    setter = thread_setter()
    assert setter is not None
    setter(count)


@functools.cache
def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


sharing = Sharing()
"""What the worker of this process costs."""
