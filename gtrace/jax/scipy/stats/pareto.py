"""The names of ``jax.scipy.stats.pareto``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import pareto

__getattr__, __dir__ = namespace("jax.scipy.stats.pareto", pareto)
