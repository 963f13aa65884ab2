"""The names of ``jax.scipy.spatial.transform``: those of ``gtrace.scipy.rotation``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy import rotation

__getattr__, __dir__ = namespace("jax.scipy.spatial.transform", rotation)
