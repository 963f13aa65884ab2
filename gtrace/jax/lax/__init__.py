"""The names of ``jax.lax``: those of ``gtrace.lax``, with JAX's parameters."""

from gtrace import lax as _ours
from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.division import div as div
from gtrace.jax.division import rem as rem
from gtrace.jax.lax import _records
from gtrace.jax.lax import linalg as linalg
from gtrace.jax.lax._variants import *
from gtrace.jax.lax._variants import mapped as map

_find, __dir__ = _namespace("jax.lax", _ours, _records)
__getattr__ = _records.with_primitives(_find)
