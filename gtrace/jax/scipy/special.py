"""The names of ``jax.scipy.special``: those of ``gtrace.special``."""

from gtrace import special
from gtrace.jax.adapt import namespace

__getattr__, __dir__ = namespace("jax.scipy.special", special)
