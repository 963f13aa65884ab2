"""``jax._src``: see `gtrace.jax.private_places`."""

from gtrace.jax.private_places import public_names

__getattr__ = public_names(__name__)
