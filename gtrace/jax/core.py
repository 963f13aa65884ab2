"""Of ``jax.core``, the classes that programs ask for with ``isinstance``."""

from __future__ import annotations

from typing import Any

from gtrace.abstract import ShapeDtypeStruct as ShapedArray
from gtrace.trace.array import Array


class _PlaceholderType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        if not isinstance(instance, Array) or instance._buf is not None:
            return False
        return instance._trace is not None and instance._trace.capture is not None


class Tracer(metaclass=_PlaceholderType):
    """The class of placeholders, Arrays of a function that is being traced.

    >>> import gtrace.jax as jax
    >>> isinstance(jax.numpy.ones(2), jax.core.Tracer)
    False
    """


__all__ = ["ShapedArray", "Tracer"]
