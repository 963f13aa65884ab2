"""``jax._src.core``, at the place where libraries look for it: what ``jax.core`` has."""

from typing import Any

from gtrace.jax import core as public
from gtrace.jax.core import ShapedArray, Tracer, get_opaque_trace_state, trace_state_clean

__all__ = ["ShapedArray", "Tracer", "get_opaque_trace_state", "physical_aval", "trace_state_clean"]


def physical_aval(aval: Any) -> Any:
    """Return the shape and dtype as they are: those of keys count keys here, too."""
    return aval


def __getattr__(name: str) -> Any:
    return getattr(public, name)
