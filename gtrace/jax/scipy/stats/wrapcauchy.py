"""The names of ``jax.scipy.stats.wrapcauchy``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import wrapcauchy

__getattr__, __dir__ = namespace("jax.scipy.stats.wrapcauchy", wrapcauchy)
