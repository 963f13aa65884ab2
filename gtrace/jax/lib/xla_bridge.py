"""``jax.lib.xla_bridge``: what ``jax.extend.backend`` has."""

from gtrace.jax.extend.backend import Backend, backends, get_backend

__all__ = ["Backend", "backends", "get_backend"]
