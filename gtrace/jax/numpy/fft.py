"""The names of ``jax.numpy.fft``."""

from gtrace.jax.adapt import namespace
from gtrace.numpy import fft as _ours

__getattr__, __dir__ = namespace("jax.numpy.fft", _ours)
