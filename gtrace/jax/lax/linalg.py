"""The names of ``jax.lax.linalg``."""

from gtrace.jax.adapt import namespace
from gtrace.lax import linalg

__getattr__, __dir__ = namespace("jax.lax.linalg", linalg)
