"""``define_op``: operations from torch functions, with optional user-defined rules."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.trace.convert import lift
from gtrace.core.transform.custom import custom_jvp, custom_vjp
from gtrace.interop.calls import static_key
from gtrace.interop.torch_functions import MAX_CALLS, CallTable

__all__ = ["define_op"]


def define_op(
    name: str,
    function: Callable[..., Any],
    *,
    vjp: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Return an operation made from a torch function: a function of Arrays, with hashable keywords as attributes.

    Types, derivatives of every order, batching and compiling follow from the calls in `function`. A derivative that is
    slow or inexact may be given instead.

    Args:
        name: the name of the operation in errors.
        function: a pure function of (tensors..., **attributes). It returns a tensor or a tuple of tensors.
        vjp: (cotangent, operands, out, **attributes) -> a tuple with one cotangent per operand, None for zero. It takes
            and returns Arrays.
        jvp: (tangents, operands, out, **attributes) -> the tangent of the result.

    Raises:
        ArgumentError: both rules are given, or an argument is not a function.

    >>> import torch, gtrace as gt
    >>> cube = gt.define_op("cube", lambda x: x ** 3, vjp=lambda ct, operands, out: (3 * ct * operands[0] ** 2,))
    >>> gt.grad(cube)(2.0)
    Array(12., dtype=float32)
    """
    for what, given in (("function", function), ("vjp", vjp), ("jvp", jvp)):
        if not callable(given) and (given is not None or what == "function"):
            raise ArgumentError(message("define_op", f"a callable as {what}", repr(given), "Pass a function."))
    if vjp is not None and jvp is not None:
        raise ArgumentError(message("define_op", "a vjp or a jvp", "both", "Each is made of the other: state one."))
    table = CallTable()
    ruled: BoundedTable[Hashable, Callable[..., Any]] = BoundedTable(MAX_CALLS)

    def plain(attributes: dict[str, Any]) -> Callable[..., Any]:
        return lambda *operands: table.call(name, function, operands, attributes)

    def with_rule(attributes: dict[str, Any]) -> Callable[..., Any]:
        call = plain(attributes)
        if vjp is not None:
            rule = custom_vjp(call)
            rule.defvjp(
                lambda *operands: _kept(call(*operands), operands),
                lambda residuals, ct: vjp(ct, *residuals, **attributes),
            )
            return rule
        assert jvp is not None
        forward = custom_jvp(call)

        def tangent(primals: Any, tangents: Any) -> Any:
            out = call(*primals)
            return out, jvp(tangents, primals, out, **attributes)

        forward.defjvp(tangent)
        return forward

    def op(*operands: Any, **attributes: Any) -> Any:
        arrays = [lift(name, x) for x in operands]
        if vjp is None and jvp is None:
            return plain(attributes)(*arrays)
        key = tuple(sorted((k, static_key(name, v)) for k, v in attributes.items()))
        rule = ruled.get(key)
        if rule is None:
            rule = with_rule(attributes)
            ruled.remember(key, rule)
        return rule(*arrays)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = function.__doc__
    return op


def _kept(out: Any, operands: Any) -> tuple[Any, Any]:
    return out, (operands, out)
