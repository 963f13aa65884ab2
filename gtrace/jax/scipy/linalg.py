"""The names of ``jax.scipy.linalg``: those of ``gtrace.scipy.linalg`` and ``matrices``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy import linalg, matrices

__getattr__, __dir__ = namespace("jax.scipy.linalg", linalg, matrices)
