"""Of JAX's internals, the two modules that libraries import which otherwise keep to public names.

``jax._src.flatten_util`` is that of blackjax, and ``jax._src.compiler`` that of chex.
"""
