"""The names of ``jax.scipy.stats.multinomial``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import multinomial

__getattr__, __dir__ = namespace("jax.scipy.stats.multinomial", multinomial)
