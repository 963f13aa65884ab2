"""The names of ``jax.scipy.stats.dirichlet``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import dirichlet

__getattr__, __dir__ = namespace("jax.scipy.stats.dirichlet", dirichlet)
