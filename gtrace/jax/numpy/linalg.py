"""The names of ``jax.numpy.linalg``."""

from gtrace.jax.adapt import namespace
from gtrace.jax.numpy import _products
from gtrace.jax.numpy._symmetric import symmetric as _symmetric
from gtrace.numpy import linalg

_typed = {name: _products.typed(name, "jax.numpy.linalg", linalg) for name in ("matmul", "tensordot", "vecdot")}

__getattr__, __dir__ = namespace("jax.numpy.linalg", _typed, _symmetric, linalg)
