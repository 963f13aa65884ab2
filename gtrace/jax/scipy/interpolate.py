"""The names of ``jax.scipy.interpolate``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy import grids

__getattr__, __dir__ = namespace("jax.scipy.interpolate", grids)
