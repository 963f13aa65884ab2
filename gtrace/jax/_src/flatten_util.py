"""``jax._src.flatten_util``: the public function, at the place where blackjax looks for it."""

from gtrace.jax.flatten_util import ravel_pytree

__all__ = ["ravel_pytree"]
