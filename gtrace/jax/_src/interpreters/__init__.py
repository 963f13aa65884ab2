"""Of ``jax._src.interpreters``, the modules that libraries import."""

from gtrace.jax._src.interpreters import pxla as pxla

__all__ = ["pxla"]
