"""Of ``jax.interpreters.xla``, the tables that libraries put classes of arrays into.

They are not read: whatever has ``__array__`` can be an argument of functions.
"""

from typing import Any

import numpy

from gtrace.jax.adapt import internal
from gtrace.jax.core import pytype_aval_mappings as pytype_aval_mappings
from gtrace.jax.primitives import apply_primitive as apply_primitive

canonicalize_dtype_handlers: dict[type, Any] = {numpy.ndarray: None}

__getattr__ = internal("jax.interpreters.xla")
