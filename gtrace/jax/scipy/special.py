"""The names of ``jax.scipy.special``: those of ``gtrace.special``."""

import functools
import math
from typing import Any

from gtrace import special
from gtrace.core.ops.operands import promote_arrays
from gtrace.core.trace.array import Array
from gtrace.jax.adapt import namespace
from gtrace.jax.weakness import with_weakness


@functools.partial(with_weakness, "jax.scipy.special.erfcinv")
def erfcinv(y: Any) -> Array:
    """Return the x with ``erfc(x) == y``.

    >>> erfcinv(1.0)
    Array(0., dtype=float32)
    """
    (y,) = promote_arrays("erfcinv", y, floating=True)
    return special.ndtri(y * 0.5) * -math.sqrt(0.5) + 0.0  # of 1: 0, and not -0


__getattr__, __dir__ = namespace("jax.scipy.special", special)
