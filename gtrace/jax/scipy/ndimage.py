"""The names of ``jax.scipy.ndimage``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy import grids

__getattr__, __dir__ = namespace("jax.scipy.ndimage", grids)
