"""``jax._src.state.types``: the class of cells, at the place where flax looks for it."""

from gtrace.jax.ref import AbstractRef as AbstractRef

__all__ = ["AbstractRef"]
