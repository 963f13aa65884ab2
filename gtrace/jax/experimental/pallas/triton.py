"""The names of ``jax.experimental.pallas.triton``, the part for GPUs; see the package."""

from gtrace.jax.experimental.pallas import absent

CompilerParams, TritonCompilerParams, atomic_add, atomic_cas, load, store = map(
    absent, ("CompilerParams", "TritonCompilerParams", "atomic_add", "atomic_cas", "load", "store")
)

__all__ = ["CompilerParams", "TritonCompilerParams", "atomic_add", "atomic_cas", "load", "store"]
