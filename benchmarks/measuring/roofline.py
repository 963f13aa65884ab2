"""How fast this machine copies and multiplies: what no program can beat."""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs
import torch

from measuring.harness import Work
from measuring.libraries import device

COPIED, SIZE = 2**28, 2048
"""Bytes of the array that is copied, and rows of the matrices that are multiplied."""

QUICK_COPIED, QUICK_SIZE = 2**22, 256


@attrs.frozen
class Bounds:
    """Measured rates: bytes read and written, and operations, a second."""

    bytes_per_second: float
    operations_per_second: float

    def seconds(self, work: Work) -> float:
        """Return the least time for some work."""
        return max(work.moved / self.bytes_per_second, work.operations / self.operations_per_second)


def measure_bounds(quick: bool = False) -> Bounds:
    """Measure the best rates of copying and of a product of float32 matrices, by torch, with its threads."""
    copied, size = (QUICK_COPIED, QUICK_SIZE) if quick else (COPIED, SIZE)
    source = torch.ones(copied // 4, device=device())
    target = torch.empty_like(source)
    matrix = torch.full((size, size), 1.0 / size, device=device())
    result = torch.empty_like(matrix)
    copying = _least(lambda: target.copy_(source))
    multiplying = _least(lambda: torch.mm(matrix, matrix, out=result))
    return Bounds(2 * copied / copying, 2 * size**3 / multiplying)


def _least(call: Callable[[], object], rounds: int = 5) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
