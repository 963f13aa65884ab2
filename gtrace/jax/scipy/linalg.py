"""The names of ``jax.scipy.linalg``: those of ``gtrace.scipy.linalg``, ``matrices`` and ``schur``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy import linalg, matrices
from gtrace.scipy import schur as _schur

__getattr__, __dir__ = namespace("jax.scipy.linalg", linalg, matrices, _schur)
