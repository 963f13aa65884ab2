"""``jax._src.checkify``, at the place where flax looks for it: what ``jax.experimental.checkify`` has."""

from typing import TypeVar

from gtrace.jax.experimental.checkify import Error, JaxRuntimeError, checkify, user_checks

JaxException = JaxRuntimeError
Out = TypeVar("Out")

__all__ = ["Error", "JaxException", "Out", "checkify", "user_checks"]
