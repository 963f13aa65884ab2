"""The names of ``jax.scipy.stats.geom``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy.stats import geom

__getattr__, __dir__ = namespace("jax.scipy.stats.geom", geom)
