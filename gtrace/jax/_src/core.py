"""``jax._src.core``: what ``jax.core`` has, and shapes of keys."""

from typing import Any

from gtrace.jax.private_places import public_names

__all__ = ["physical_aval"]


def physical_aval(aval: Any) -> Any:
    """Return the shape and dtype as they are: those of keys count keys here, too."""
    return aval


__getattr__ = public_names(__name__)
