"""Of ``jax._src.state``, the class of cells, at the place where flax looks for it."""

from gtrace.jax._src.state import types as types

__all__ = ["types"]
