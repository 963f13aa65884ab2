"""The names of ``jax.scipy.stats.gumbel_r``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import gumbel_r

__getattr__, __dir__ = namespace("jax.scipy.stats.gumbel_r", gumbel_r)
