"""Threads of torch in a forked process.

GNU's OpenMP runtime, which torch uses on Linux, keeps its threads for the next parallel section. A fork has no such
threads, but its copy of the runtime waits for them for ever.
"""

from __future__ import annotations

import os
import sys

import torch


def _forked() -> None:
    """Give torch one thread, as torch's DataLoader does for its workers."""
    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)


if sys.platform == "linux" and hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
