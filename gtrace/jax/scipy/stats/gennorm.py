"""The names of ``jax.scipy.stats.gennorm``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import gennorm

__getattr__, __dir__ = namespace("jax.scipy.stats.gennorm", gennorm)
