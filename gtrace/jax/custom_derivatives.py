"""The names of ``jax.custom_derivatives``."""

import gtrace as gt
from gtrace.jax.adapt import namespace

__getattr__, __dir__ = namespace("jax.custom_derivatives", gt)
