"""Of ``jax.interpreters.xla``, the table that libraries put classes of arrays into.

It is not read: whatever has ``__array__`` can be an argument of functions.
"""

from typing import Any

import numpy

from gtrace.jax.adapt import internal

canonicalize_dtype_handlers: dict[type, Any] = {numpy.ndarray: None}

__getattr__ = internal("jax.interpreters.xla")
