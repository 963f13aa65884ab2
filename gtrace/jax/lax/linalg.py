"""The names of ``jax.lax.linalg``."""

from typing import Any

from gtrace.jax.adapt import namespace
from gtrace.lax import linalg
from gtrace.trace.array import Array


def lu(x: Any) -> list[Array]:
    """``gt.lax.linalg.lu``, as a list."""
    return list(linalg.lu(x))


__getattr__, __dir__ = namespace("jax.lax.linalg", linalg)
