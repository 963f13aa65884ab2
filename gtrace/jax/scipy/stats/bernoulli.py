"""The names of ``jax.scipy.stats.bernoulli``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import bernoulli

__getattr__, __dir__ = namespace("jax.scipy.stats.bernoulli", bernoulli)
