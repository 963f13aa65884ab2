"""``jax.extend.random``: the cipher of keys."""

from gtrace.random import key_impl as key_impl

__all__ = ["key_impl"]
