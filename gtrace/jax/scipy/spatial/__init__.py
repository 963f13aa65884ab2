"""The modules of ``jax.scipy.spatial``."""

from gtrace.jax.scipy.spatial import transform as transform

__all__ = ["transform"]
