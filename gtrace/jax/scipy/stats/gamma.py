"""The names of ``jax.scipy.stats.gamma``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import gamma

__getattr__, __dir__ = namespace("jax.scipy.stats.gamma", gamma)
