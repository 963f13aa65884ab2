"""Python without the global interpreter lock: what gtrace does there, and what it says."""

from __future__ import annotations

import sys
import sysconfig
import warnings

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
"""Whether this Python can run without the lock. Counts of references are estimates there, with the lock too."""


def check_lock() -> None:
    """Warn where Python runs without the lock.

    What threads share is guarded for the lock: the tables of programs, their ledgers, and forces of another thread's
    operations check and act in several steps.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        warnings.warn(
            "gtrace was not tried on a Python without its lock (GIL). Use gtrace in one thread, or start Python with"
            " -X gil=1: arrays and jitted functions that threads share may fail or run twice, and counts may be wrong.",
            RuntimeWarning,
            stacklevel=3,
        )
