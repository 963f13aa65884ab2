"""The names of ``jax.lax``: those of ``gtrace.lax``, with JAX's parameters."""

from gtrace import lax as _ours
from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.lax import linalg as linalg

__getattr__, __dir__ = _namespace("jax.lax", _ours)
