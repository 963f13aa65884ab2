"""The names of ``jax.scipy.stats.beta``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import beta

__getattr__, __dir__ = namespace("jax.scipy.stats.beta", beta)
