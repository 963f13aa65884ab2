"""Keeps memory that a program frees for its next call.

glibc returns large freed blocks to the kernel and requests them again in the next step. Each page of 4 KiB then costs
a page fault, which takes as long as computing its values. Whether a block is returned depends on its neighbours, so
one process may run at half the speed of another.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from gtrace.core.base.mechanisms import KEPT_MEMORY

KEPT = 1 << 30
"""Bytes of freed memory to keep, and the size from which a block is returned at once."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt, as in malloc.h

_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def free_memory(device: torch.device) -> float:
    """Return how many bytes of memory this process can still get, about; infinite where the system does not say."""
    if device.type == "cuda":
        unused, total = torch.cuda.mem_get_info(device)
        share = total * torch.cuda.get_per_process_memory_fraction(device)
        return min(unused + torch.cuda.memory_reserved(device), share) - torch.cuda.memory_allocated(device)
    if sys.platform != "linux":
        return math.inf
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = float(lines["MemAvailable"].split()[0]) * 1024
    limit, used = (Path("/sys/fs/cgroup/memory").with_suffix(end) for end in (".max", ".current"))
    if limit.exists() and (most := limit.read_text().strip()) != "max":
        free = min(free, float(most) - float(used.read_text()))
    return free


def return_freed_memory() -> None:
    """Give the memory that the C library keeps back to the system, if it is glibc's."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library
        return None


@functools.cache
def keep_freed_memory() -> bool:
    """Make the C library keep freed memory, for the whole process. Return whether it does now.

    It does not if the environment sets the thresholds (``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_``,
    ``GLIBC_TUNABLES``), without glibc, or with the mechanism off.
    """
    if not KEPT_MEMORY.on or sys.platform != "linux" or any(name in os.environ for name in _SET_BY_USER):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    KEPT_MEMORY.used()
    return bool(mallopt(_MMAP_THRESHOLD, KEPT)) and bool(mallopt(_TRIM_THRESHOLD, KEPT))
