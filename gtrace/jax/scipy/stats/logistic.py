"""The names of ``jax.scipy.stats.logistic``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import logistic

__getattr__, __dir__ = namespace("jax.scipy.stats.logistic", logistic)
