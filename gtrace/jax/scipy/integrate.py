"""The names of ``jax.scipy.integrate``."""

from gtrace.jax.adapt import namespace
from gtrace.numpy import sequences

__getattr__, __dir__ = namespace("jax.scipy.integrate", sequences)
