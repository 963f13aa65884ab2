"""The names of ``jax.flatten_util``."""

import gtrace as gt
from gtrace.jax.adapt import namespace

__getattr__, __dir__ = namespace("jax.flatten_util", gt)
