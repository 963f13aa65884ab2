"""The names of ``jax.scipy.stats.chi2``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import chi2

__getattr__, __dir__ = namespace("jax.scipy.stats.chi2", chi2)
