"""The names of ``jax.scipy.stats.expon``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import expon

__getattr__, __dir__ = namespace("jax.scipy.stats.expon", expon)
