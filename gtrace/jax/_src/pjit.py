"""``jax._src.pjit``: the primitive of jitted functions."""

from gtrace.jax.extend.core.primitives import named

jit_p = named("jit")

__all__ = ["jit_p"]
