"""The names of ``jax.scipy.stats.norm``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import norm

__getattr__, __dir__ = namespace("jax.scipy.stats.norm", norm)
