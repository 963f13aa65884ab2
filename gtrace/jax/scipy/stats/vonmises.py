"""The names of ``jax.scipy.stats.vonmises``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import vonmises

__getattr__, __dir__ = namespace("jax.scipy.stats.vonmises", vonmises)
