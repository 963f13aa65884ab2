"""The names of ``jax.lax``: those of ``gtrace.lax``, with JAX's parameters."""

from gtrace import lax as _ours
from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.division import div as div
from gtrace.jax.division import rem as rem
from gtrace.jax.lax import _records
from gtrace.jax.lax import linalg as linalg
from gtrace.jax.lax._variants import FftType as FftType
from gtrace.jax.lax._variants import approx_max_k as approx_max_k
from gtrace.jax.lax._variants import approx_min_k as approx_min_k
from gtrace.jax.lax._variants import broadcast_like as broadcast_like
from gtrace.jax.lax._variants import cond as cond
from gtrace.jax.lax._variants import custom_linear_solve as custom_linear_solve
from gtrace.jax.lax._variants import custom_root as custom_root
from gtrace.jax.lax._variants import dtype as dtype
from gtrace.jax.lax._variants import fft as fft
from gtrace.jax.lax._variants import index_take as index_take
from gtrace.jax.lax._variants import log2 as log2
from gtrace.jax.lax._variants import one_minus_square as one_minus_square
from gtrace.jax.lax._variants import optimization_barrier as optimization_barrier
from gtrace.jax.lax._variants import polynomial as polynomial
from gtrace.jax.lax._variants import top_k as top_k
from gtrace.jax.lax._variants import with_sharding_constraint as with_sharding_constraint

_find, __dir__ = _namespace("jax.lax", _ours, _records)
__getattr__ = _records.with_primitives(_find)
