"""``jax._src.xla_bridge``: what ``jax.extend.backend`` has, and the table of platforms that chex reads."""

from gtrace.jax.extend.backend import Backend, backends, get_backend

__all__ = ["Backend", "backends", "get_backend"]

_backends = backends()
