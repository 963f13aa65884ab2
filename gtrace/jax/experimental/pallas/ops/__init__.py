"""The names of ``jax.experimental.pallas.ops``: JAX's own kernels."""

from gtrace.jax.experimental.pallas.kernels import add_modules as _add_modules

_add_modules()
