"""The names of ``jax.scipy.stats.poisson``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import poisson

__getattr__, __dir__ = namespace("jax.scipy.stats.poisson", poisson)
