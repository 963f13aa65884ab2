"""The names of ``jax.scipy.stats.multivariate_normal``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import multivariate_normal

__getattr__, __dir__ = namespace("jax.scipy.stats.multivariate_normal", multivariate_normal)
