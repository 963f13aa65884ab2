"""Arrays as text."""

from __future__ import annotations

import sys

import numpy as np

from gtrace.core.base.config import config

_PREFIX = "Array("
_THRESHOLD = 200
"""Larger arrays are abbreviated."""


def elements_text(values: np.ndarray, dtype: str) -> str:
    """Return the text that `print` shows for an array."""
    return str(_in_their_dtype(values, dtype))


def _in_their_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return values in the dtype that NumPy prints; bfloat16 and float8 come as float32.

    With the setting `jax_results` and ml_dtypes imported, they get ml_dtypes' dtypes and look.
    """
    if values.dtype.name == dtype or not config.current.jax_results or "ml_dtypes" not in sys.modules:
        return values
    return values.astype(dtype)


def array_text(values: np.ndarray, dtype: str, *, weak: bool) -> str:
    """Return the text that `repr` shows for an array.

    Args:
        values: the elements; bfloat16 and float8 as float32.

    With the setting `jax_results` it is JAX's text: it marks weak dtypes, and NumPy's print options decide when to
    abbreviate.

    >>> array_text(np.ones(2, np.float32), "float32", weak=True)
    'Array([1., 1.], dtype=float32)'
    >>> with config(jax_results=True):
    ...     array_text(np.ones((2, 0), np.float32), "float32", weak=True)
    'Array([], shape=(2, 0), dtype=float32, weak_type=True)'
    """
    values = _in_their_dtype(values, dtype)
    if not config.current.jax_results:
        text = np.array2string(values, separator=", ", prefix=_PREFIX, threshold=_THRESHOLD)
        return f"{_PREFIX}{text}, dtype={dtype})"
    kind = f"dtype={dtype}, weak_type=True" if weak else f"dtype={dtype}"
    width = np.get_printoptions()["linewidth"]
    if values.size == 0:
        text = f"[], shape={values.shape}"
    else:
        text = np.array2string(values, max_line_width=width, prefix=_PREFIX, suffix=",", separator=", ")
    last_line = len(text) - text.rfind("\n") + 1
    gap = " " * len(_PREFIX) if last_line + len(kind) + 2 > width else " "
    return f"{_PREFIX}{text},{gap}{kind})"
