"""The names of ``jax.interpreters``: JAX's internals, which libraries import for primitives of their own.

The modules can be imported, and have the names that libraries write to or ask for when they are imported.
What else is looked up in them raises an error that says so.
"""

from gtrace.jax.adapt import internal as _internal
from gtrace.jax.adapt import module_of_names as _module_of_names
from gtrace.jax.interpreters import partial_eval as partial_eval
from gtrace.jax.interpreters import xla as xla

ad, batching, mlir, pxla = (
    _module_of_names(_name, _internal(_name))
    for _name in ("jax.interpreters.ad", "jax.interpreters.batching", "jax.interpreters.mlir", "jax.interpreters.pxla")
)

__all__ = ["ad", "batching", "mlir", "partial_eval", "pxla", "xla"]
