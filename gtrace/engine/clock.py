"""How long a call took: on a GPU until its work is done, where that decides something."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from gtrace.compile.executable import Executable


def clock(executable: Executable, exact: bool) -> Callable[[], float]:
    """Start timing a call; returns the function that ends it and returns the seconds.

    Args:
        exact: wait for the work of a GPU, by events on its stream. Else only the launch is timed.
    """
    if exact and executable.device.type == "cuda":
        with torch.cuda.device(executable.device):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(executable.stream)

        def stop() -> float:
            with torch.cuda.device(executable.device):
                end.record(executable.stream)
            end.synchronize()
            return begin.elapsed_time(end) / 1e3

        return stop
    start = perf_counter()
    return lambda: perf_counter() - start
