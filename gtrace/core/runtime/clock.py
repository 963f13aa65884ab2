"""How long a call took. On a GPU that is the time of its work."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from gtrace.core.backends.executable import Executable


def clock(executable: Executable, wait: bool) -> Callable[[], float]:
    """Start timing a call; returns the function that ends it and returns the seconds.

    Args:
        wait: whether it waits for a GPU to finish the call. Otherwise it returns the seconds of the latest call that
            the GPU has finished, or the seconds of the host if these are more.
    """
    if executable.device.type != "cuda":
        start = perf_counter()
        return lambda: perf_counter() - start
    stream = torch.cuda.current_stream(executable.device) if executable.stream is None else executable.stream
    if wait:
        begin, end = _events()
        begin.record(stream)

        def stop() -> float:
            end.record(stream)
            end.synchronize()
            return begin.elapsed_time(end) / 1e3

        return stop
    timer = _timers.get(executable)
    if timer is None:
        timer = _timers[executable] = _Timer()
    return timer.started(stream)


def _events() -> tuple[Any, Any]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


class _Timer:
    """Times one call after the other of an executable on a GPU, for which nobody waits."""

    def __init__(self) -> None:
        self._begin, self._end = _events()
        self._under_way = False
        self._seconds = 0.0

    def started(self, stream: Any) -> Callable[[], float]:
        """Start timing a call, unless the work of an earlier one has not ended; see `clock`."""
        if self._under_way and self._end.query():
            self._seconds, self._under_way = self._begin.elapsed_time(self._end) / 1e3, False
        timed = not self._under_way
        if timed:
            self._begin.record(stream)
        start = perf_counter()

        def stop() -> float:
            host = perf_counter() - start
            if timed:
                self._end.record(stream)
                self._under_way = True
            return max(host, self._seconds)

        return stop


_timers: weakref.WeakKeyDictionary[Executable, _Timer] = weakref.WeakKeyDictionary()
