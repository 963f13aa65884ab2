"""``jax._src.xla_bridge``: what ``jax.extend.backend`` has, and XLA's table of platforms, which chex reads."""

from typing import Any

from gtrace.jax.extend.backend import Backend, backends, get_backend

__all__ = ["Backend", "backends", "get_backend"]

_backends: dict[str, Any] = {}
"""The platforms that XLA has begun to use: none."""
