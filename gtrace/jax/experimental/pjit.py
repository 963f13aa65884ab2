"""``jax.experimental.pjit``: the older name of ``jax.jit``."""

from gtrace.jax.api import jit as pjit

__all__ = ["pjit"]
