"""The names of ``jax.numpy.fft``."""

from gtrace.jax.adapt import namespace
from gtrace.numpy import fft

__getattr__, __dir__ = namespace("jax.numpy.fft", fft)
