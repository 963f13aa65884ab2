"""The names of ``jax.stages``: a jitted function as it is traced, lowered and compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from gtrace.core.transform.eval_shape import ShapeDtypeStruct
from gtrace.core.transform.jit import Jitted
from gtrace.core.transform.jit_stages import Compiled, Lowered, Traced

__all__ = ["ArgInfo", "Compiled", "CompilerOptions", "Lowered", "Traced"]

CompilerOptions = Mapping[str, Any]
"""Options of the compiler, which are ignored."""


@attrs.frozen
class ArgInfo:
    """An argument of a function that is lowered.

    Attributes:
        donated: whether it is given away.
    """

    _aval: Any
    donated: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the argument."""
        return tuple(self._aval.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the argument."""
        return self._aval.dtype


def eval_shape(self: Jitted, *args: Any, **kwargs: Any) -> Any:
    """Return what the function would return, with a `ShapeDtypeStruct` for each array."""
    traced = self.trace(*args, **kwargs)
    avals = traced.graph.out_avals
    return traced.out_structure.unflatten([ShapeDtypeStruct(a.shape, a.dtype, a.device) for a in avals])  # type: ignore[misc]


def clear_cache(self: Jitted) -> None:
    """Forget what the function has traced."""
    self._last = None
    for table in (self._traced, self._calls, self._known):
        table.clear()


def cache_size(self: Jitted) -> int:
    """Return the number of kinds of arguments that the function was called with."""
    return len(self._calls)


METHODS: dict[str, Any] = {"clear_cache": clear_cache, "eval_shape": eval_shape, "_cache_size": cache_size}
"""Methods that jitted functions get when ``gtrace.jax`` is imported."""
