"""The names of ``jax.scipy.stats.truncnorm``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import truncnorm

__getattr__, __dir__ = namespace("jax.scipy.stats.truncnorm", truncnorm)
