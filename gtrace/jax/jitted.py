"""Jitted functions as JAX has them: their text, their signature, and plain calls under ``disable_jit``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gtrace as gt
from gtrace.extend import Jitted


class _Signature:
    """The attribute ``__signature__`` of jitted functions; their class has none."""

    def __get__(self, instance: Any, owner: Any = None) -> inspect.Signature:
        if instance is None:
            raise AttributeError("__signature__")
        return inspect.signature(instance.__wrapped__)


class PjitFunction(Jitted):
    """A function that runs as one compiled program. Under the setting `eager` it is the function that it wraps.

    >>> import gtrace.jax as jax
    >>> with jax.disable_jit():
    ...     jax.jit(lambda x: x if x > 0 else -x)(jax.numpy.float32(-2.0))
    Array(2., dtype=float32)
    """

    __signature__ = _Signature()

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.__dict__.update(gt.jit(function, **options).__dict__)

    def __repr__(self) -> str:
        return f"<PjitFunction of {self.__wrapped__!r}>"

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.__wrapped__(*args, **kwargs) if gt.config.eager else super()._call(args, kwargs)

    def _replayed(self, given: Any) -> Any:
        if not gt.config.eager:
            return super()._replayed(given)
        outputs, structure = self._run(given, given.leaves)
        return structure.unflatten(outputs)


def jitted(function: Callable[..., Any] | None, **options: Any) -> Any:
    """Return a function jitted with options of ``gt.jit``; without a function, a decorator."""
    return (lambda f: PjitFunction(f, options)) if function is None else PjitFunction(function, options)
