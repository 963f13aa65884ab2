"""The names of ``jax.scipy.stats.laplace``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import laplace

__getattr__, __dir__ = namespace("jax.scipy.stats.laplace", laplace)
