"""The names of ``jax.scipy.stats.t``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import t

__getattr__, __dir__ = namespace("jax.scipy.stats.t", t)
