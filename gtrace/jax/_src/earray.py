"""``jax._src.earray``, where flax looks for the class of arrays of keys."""

from gtrace.extend import PRNGKeyArray as EArray

__all__ = ["EArray"]
