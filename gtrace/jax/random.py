"""The names of ``jax.random``: those of ``gtrace.random``, with JAX's parameters."""

from gtrace import random
from gtrace.jax.adapt import namespace

__getattr__, __dir__ = namespace("jax.random", random)
