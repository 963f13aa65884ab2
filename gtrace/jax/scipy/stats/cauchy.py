"""The names of ``jax.scipy.stats.cauchy``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import cauchy

__getattr__, __dir__ = namespace("jax.scipy.stats.cauchy", cauchy)
