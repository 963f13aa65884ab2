"""``jax.experimental.pallas.triton``, as `gtrace.jax.experimental.pallas`."""

from gtrace.jax.adapt import internal

__getattr__ = internal("jax.experimental.pallas.triton")
