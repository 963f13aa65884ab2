"""The names of ``jax.flatten_util``."""

from gtrace.core.transform import ravel
from gtrace.jax.adapt import namespace

__getattr__, __dir__ = namespace("jax.flatten_util", ravel)
