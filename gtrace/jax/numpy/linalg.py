"""The names of ``jax.numpy.linalg``."""

from gtrace.jax.adapt import namespace
from gtrace.numpy import linalg

__getattr__, __dir__ = namespace("jax.numpy.linalg", linalg)
