"""``jax.interpreters.ad``: JAX's internals, of which nothing is here."""

from gtrace.jax.adapt import internal

__getattr__ = internal("jax.interpreters.ad")
