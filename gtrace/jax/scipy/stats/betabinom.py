"""The names of ``jax.scipy.stats.betabinom``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import betabinom

__getattr__, __dir__ = namespace("jax.scipy.stats.betabinom", betabinom)
