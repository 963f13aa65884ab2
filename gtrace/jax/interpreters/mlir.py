"""Of ``jax.interpreters.mlir``, how primitives say what runs in traced functions: functions and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gtrace as gt
from gtrace.jax.adapt import internal
from gtrace.jax.primitives import LoweringContext as LoweringRuleContext
from gtrace.jax.primitives import Primitive, lowerings

__all__ = ["LoweringRuleContext", "emit_python_callback", "lower_fun", "register_lowering"]


def register_lowering(
    prim: Primitive, rule: Callable[..., Any], platform: str | None = None, inline: bool = True, **options: Any
) -> Callable[..., Any]:
    """State what runs in traced functions: a function from (context, *args, **params) to the results.

    Args:
        platform: it is only for this one: "cpu"; for others it is kept and never used.
    """
    lowerings[prim, platform] = rule
    return rule


def lower_fun(fun: Callable[..., Any], multiple_results: bool = True) -> Callable[..., list[Any]]:
    """Return a function of arrays as a lowering.

    >>> lower_fun(lambda x: x + 1, multiple_results=False)(None, 1)
    [2]
    """

    def rule(ctx: Any, *args: Any, **params: Any) -> list[Any]:
        found = fun(*args, **params)
        return list(found) if multiple_results else [found]

    return rule


def emit_python_callback(
    ctx: Any, callback: Callable[..., Any], token: Any, operands: Sequence[Any], operand_avals: Sequence[Any],
    result_avals: Sequence[Any], *, has_side_effect: bool = False, **options: Any,
) -> tuple[list[Any], Any, None]:  # fmt: skip
    """Call a Python function each time the program runs; return its results, the token and nothing to keep."""
    like = [gt.ShapeDtypeStruct(a.shape, a.dtype) for a in result_avals]
    call = gt.io_callback if has_side_effect else gt.pure_callback
    return call(lambda *args: list(callback(*args)), like, *operands), token, None


__getattr__ = internal("jax.interpreters.mlir")
