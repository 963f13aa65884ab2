"""The names of ``jax.interpreters``: JAX's internals, which libraries import for primitives of their own.

The modules can be imported, and have the names that libraries write to or ask for when they are imported.
What else is looked up in them raises an error that says so.
"""

from gtrace.jax.interpreters import ad as ad
from gtrace.jax.interpreters import batching as batching
from gtrace.jax.interpreters import mlir as mlir
from gtrace.jax.interpreters import partial_eval as partial_eval
from gtrace.jax.interpreters import pxla as pxla
from gtrace.jax.interpreters import xla as xla

__all__ = ["ad", "batching", "mlir", "partial_eval", "pxla", "xla"]
