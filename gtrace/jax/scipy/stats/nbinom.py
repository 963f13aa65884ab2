"""The names of ``jax.scipy.stats.nbinom``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import nbinom

__getattr__, __dir__ = namespace("jax.scipy.stats.nbinom", nbinom)
