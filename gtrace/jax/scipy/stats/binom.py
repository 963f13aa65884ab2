"""The names of ``jax.scipy.stats.binom``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import binom

__getattr__, __dir__ = namespace("jax.scipy.stats.binom", binom)
