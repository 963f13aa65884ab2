"""The names of ``jax.scipy.sparse.linalg``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy import sparse

__getattr__, __dir__ = namespace("jax.scipy.sparse.linalg", sparse)
