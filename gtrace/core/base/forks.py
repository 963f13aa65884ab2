"""Threads of torch in a forked process.

GNU's OpenMP runtime, which torch uses on Linux, keeps its threads for the next parallel section. A fork lacks them,
but its copy of the runtime does not know that, and waits for them for ever.
"""

from __future__ import annotations

import os
import sys

import torch


def _forked() -> None:
    """Give torch one thread, as the workers of its DataLoader do."""
    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)


if sys.platform == "linux" and hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
