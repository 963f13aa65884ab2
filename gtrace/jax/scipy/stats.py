"""The names of ``jax.scipy.stats``: those of ``gtrace.scipy.stats``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy import stats

__getattr__, __dir__ = namespace("jax.scipy.stats", stats)
