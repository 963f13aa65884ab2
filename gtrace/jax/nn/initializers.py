"""The names of ``jax.nn.initializers``."""

from gtrace.jax.adapt import namespace
from gtrace.nn import initializers

__getattr__, __dir__ = namespace("jax.nn.initializers", initializers)
