"""The names of ``jax.lax``: those of ``gtrace.lax``, with JAX's parameters."""

from gtrace import lax as _ours
from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.division import of_lax as _divisions
from gtrace.jax.lax import _ragged, _records, _typed
from gtrace.jax.lax import linalg as linalg
from gtrace.jax.lax._variants import *

_find, __dir__ = _namespace("jax.lax", _divisions, _typed, _ragged, _ours, _records)
__getattr__ = _records.with_primitives(_find)
