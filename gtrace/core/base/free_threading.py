"""A warning for Python without the global interpreter lock."""

from __future__ import annotations

import sys
import sysconfig
import warnings

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
"""Whether this Python can run without the lock. If so, reference counts are estimates, even with the lock on."""


def check_lock() -> None:
    """Warn if Python runs without the lock.

    gtrace relies on the lock where threads share state. Program tables, ledgers, and forces of another thread's
    operations check and act in several steps.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        warnings.warn(
            "gtrace was not tried on a Python without its lock (GIL). Use gtrace in one thread, or start Python with"
            " -X gil=1: arrays and jitted functions that threads share may fail or run twice, and counts may be wrong.",
            RuntimeWarning,
            stacklevel=3,
        )
