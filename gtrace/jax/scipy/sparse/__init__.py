"""The modules of ``jax.scipy.sparse``."""

from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.scipy.sparse import linalg as linalg

__getattr__, __dir__ = _namespace("jax.scipy.sparse")
