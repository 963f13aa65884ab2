"""Loops that end after their first steps, so that comparing a program does not take as long as running it.

Whatever runs a loop asks here how many steps it has: native code, Python with compiled bodies, and the reference. In a
scan that is cut, the steps that do not run return what the last one that ran returned.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

UNCUT = 2**63 - 1
"""More steps than any loop has."""

SHORT_LOOP = 16
"""Scans of no more steps are not cut: C++ compilers unroll them, for which they have to know the number of steps."""


class _Local(threading.local):
    """What runs in this thread.

    Attributes:
        most: steps that a loop has, at most.
    """

    most: int = UNCUT


_local = _Local()


@contextlib.contextmanager
def loops_cut(most: int) -> Iterator[None]:
    """Within the block, loops of this thread end after `most` steps, at any nesting."""
    before, _local.most = _local.most, most
    try:
        yield
    finally:
        _local.most = before


def most_steps() -> int:
    """Return how many steps a loop of this thread has, at most."""
    return _local.most


def scan_steps(length: int) -> int:
    """Return how many steps run of a scan of this length.

    >>> with loops_cut(2):
    ...     scan_steps(100_000), scan_steps(10)
    (2, 10)
    """
    return length if length <= SHORT_LOOP else min(length, _local.most)
