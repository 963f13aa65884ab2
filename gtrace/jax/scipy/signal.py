"""The names of ``jax.scipy.signal``: those of ``gtrace.scipy.signal``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy import signal, spectral

__getattr__, __dir__ = namespace("jax.scipy.signal", signal, spectral)
