"""``jax.version``: the version of JAX whose names these are."""

from gtrace.jax.adapt import __version__, __version_info__

__all__ = ["__version__", "__version_info__"]
