"""hypothesis, which the strategies are made with, or an error that says how to get it."""

from __future__ import annotations

try:
    from hypothesis import assume
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as st_numpy
except ImportError as error:
    raise ImportError(
        "[testing] expected hypothesis, which gtrace.testing draws its examples with, got no such package."
        " Install it with: pip install 'gtrace[testing]'"
    ) from error

__all__ = ["assume", "st", "st_numpy"]
