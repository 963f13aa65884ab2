"""``jax._src.core``, at the place where flax and numpyro look for it: what ``jax.core`` has."""

from gtrace.jax.core import ShapedArray, Tracer, get_opaque_trace_state, trace_state_clean

__all__ = ["ShapedArray", "Tracer", "get_opaque_trace_state", "trace_state_clean"]
