"""``jax.experimental.pallas``, which libraries import for kernels of GPUs. What is looked up in it raises an error."""

from gtrace.jax.adapt import internal

__getattr__ = internal("jax.experimental.pallas")
