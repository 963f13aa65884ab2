"""``jax._src.ad_util``, at the place where lineax looks for it."""

from __future__ import annotations

from gtrace.jax.avals import SymbolicZero, Zero, add_tangents, instantiate_zeros, zeros_like_aval
from gtrace.jax.extend.core.primitives import stop_gradient_p

__all__ = ["SymbolicZero", "Zero", "add_tangents", "instantiate_zeros", "stop_gradient_p", "zeros_like_aval"]
