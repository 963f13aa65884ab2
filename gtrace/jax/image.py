"""The names of ``jax.image``."""

from gtrace import image
from gtrace.jax.adapt import namespace

__getattr__, __dir__ = namespace("jax.image", image)
