"""The names of ``jax.scipy.fft``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy import fft

__getattr__, __dir__ = namespace("jax.scipy.fft", fft)
