"""``jax.experimental.array_serialization``: arrays in the stores of the package tensorstore."""
