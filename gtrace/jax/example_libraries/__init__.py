"""``jax.example_libraries``: the small networks and optimizers that many of JAX's examples are written with."""

from gtrace.jax.example_libraries import optimizers as optimizers
from gtrace.jax.example_libraries import stax as stax

__all__ = ["optimizers", "stax"]
