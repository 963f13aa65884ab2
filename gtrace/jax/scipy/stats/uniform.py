"""The names of ``jax.scipy.stats.uniform``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import uniform

__getattr__, __dir__ = namespace("jax.scipy.stats.uniform", uniform)
