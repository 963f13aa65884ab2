"""The names of ``jax.ops``."""

from gtrace import segments
from gtrace.jax.adapt import namespace

__getattr__, __dir__ = namespace("jax.ops", segments)
