"""How long a call took: on a GPU until its work is done. For calls that are compared."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from gtrace.core.backends.executable import Executable


def clock(executable: Executable) -> Callable[[], float]:
    """Start timing a call; returns the function that ends it and returns the seconds.

    It waits for the work of a GPU, by events on its stream.
    """
    if executable.device.type == "cuda":
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
