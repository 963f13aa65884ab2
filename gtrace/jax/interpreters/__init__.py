"""The names of ``jax.interpreters``: JAX's internals, which libraries import for primitives of their own.

The modules can be imported, and have the names that libraries write to or ask for when they are imported.
What else is looked up in them raises an error that says so.
"""

from gtrace.jax.adapt import internal as _internal
from gtrace.jax.adapt import module_of_names as _module_of_names
from gtrace.jax.interpreters import ad as ad
from gtrace.jax.interpreters import batching as batching
from gtrace.jax.interpreters import mlir as mlir
from gtrace.jax.interpreters import partial_eval as partial_eval
from gtrace.jax.interpreters import xla as xla

pxla = _module_of_names("jax.interpreters.pxla", _internal("jax.interpreters.pxla"))

__all__ = ["ad", "batching", "mlir", "partial_eval", "pxla", "xla"]
