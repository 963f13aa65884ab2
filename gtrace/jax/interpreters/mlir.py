"""Of ``jax.interpreters.mlir``, what libraries call when they are imported. It has no effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gtrace.jax.adapt import internal


def register_lowering(prim: Any, rule: Any, platform: str | None = None, inline: bool = True, **options: Any) -> Any:
    """Return the rule: there are no primitives of JAX's here, so that nothing uses it."""
    return rule


def lower_fun(fun: Callable[..., Any], multiple_results: bool = True) -> Callable[..., Any]:
    """Return the function."""
    return fun


__getattr__ = internal("jax.interpreters.mlir")
