"""``jax._src.dispatch``, at the place where equinox looks for it."""

from __future__ import annotations

from gtrace.jax.primitives import apply_primitive
from gtrace.jax.private_places import public_names

__all__ = ["apply_primitive", "wait_for_tokens"]


def wait_for_tokens() -> None:
    """Do nothing: effects have happened when a program has run."""


__getattr__ = public_names(__name__)
