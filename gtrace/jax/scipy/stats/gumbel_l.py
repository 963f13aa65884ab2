"""The names of ``jax.scipy.stats.gumbel_l``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import gumbel_l

__getattr__, __dir__ = namespace("jax.scipy.stats.gumbel_l", gumbel_l)
