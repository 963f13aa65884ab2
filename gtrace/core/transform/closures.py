"""``custom_gradient`` and ``closure_convert``: derivative rules over the variables of closures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gtrace.core.base.errors import ArgumentError, message, user_location
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import capture, replay
from gtrace.core.trace.force import value_of
from gtrace.core.trace.record import followed, thread
from gtrace.core.transform.arguments import lift_outputs, name_of
from gtrace.core.transform.custom import custom_vjp

__all__ = ["closure_convert", "custom_gradient"]


def custom_gradient(fun: Callable[..., tuple[Any, Callable[[Any], Any]]]) -> Callable[..., Any]:
    """Return a function that supplies its own derivative.

    Args:
        fun: returns (output, rule). The rule takes the output's cotangent. It returns a tuple of cotangents of the
            arguments, or the cotangent itself for one argument.

    >>> @gt.custom_gradient
    ... def clipped(x):
    ...     return x, lambda ct: gt.clip(ct, -1, 1)
    >>> gt.grad(lambda x: 5 * clipped(x))(2.0)
    Array(1., dtype=float32)
    """

    def value(*args: Any) -> Any:
        return fun(*args)[0]

    value.__name__ = name_of(fun)
    wrapped = custom_vjp(value)
    wrapped.__doc__ = fun.__doc__

    def backward(residuals: tuple[int, Callable[[Any], Any]], ct: Any) -> tuple[Any, ...]:
        count, rule = residuals
        found = rule(ct)
        return tuple(found) if isinstance(found, (tuple, list)) and (count != 1 or len(found) == 1) else (found,)

    def forward(*args: Any) -> Any:
        out, rule = fun(*args)
        return out, (len(args), rule)

    wrapped.defvjp(forward, backward)
    return wrapped


def closure_convert(fun: Callable[..., Any], *example_args: Any) -> tuple[Callable[..., Any], list[Array]]:
    """Return `fun` as a function with additional arguments for the arrays that it closes over, and these arrays.

    So a `custom_vjp` can differentiate with respect to the closure of a function argument. As in JAX, the arrays are
    the floating or complex ones that `fun` uses, if a running gradient follows them. While a function is captured (by
    `jit` or `vmap`, say), arrays that depend on its arguments count too. Other arrays stay inside the function.

    Args:
        example_args: example arguments of `fun`.

    >>> offset = gt.array(1.0)
    >>> def loss(scale):
    ...     converted, values = gt.closure_convert(lambda x: scale * x + offset, gt.array(1.0))
    ...     print(len(values))
    ...     return converted(gt.array(2.0), *values)
    >>> gt.grad(loss)(3.0)
    1
    Array(2., dtype=float32)
    """
    leaves, structure = lift_outputs("closure_convert", example_args)

    def run(inputs: Sequence[Array]) -> Any:
        arguments: Any = structure.unflatten(inputs)
        return lift_outputs("closure_convert", fun(*arguments))

    captured = capture(run, [x.aval for x in leaves], f"closure_convert called at {user_location()}")

    given = [_differentiable(x) for x in captured.constants]
    values = [x for x, passed in zip(captured.constants, given, strict=True) if passed]

    def converted(*args: Any) -> Any:
        count = len(args) - len(values)
        inputs, given_structure = lift_outputs("closure_convert", args[:count])
        if given_structure != structure:
            expected = f"arguments of structure {structure}, and the values it closed over"
            got = f"arguments of structure {given_structure}"
            raise ArgumentError(message("closure_convert", expected, got, "Pass them as f(*args, *values)."))
        passed = iter(lift_outputs("closure_convert", args[count:])[0])
        constants = [next(passed) if taken else x for x, taken in zip(captured.constants, given, strict=True)]
        return captured.result.unflatten(replay(captured.graph, [*inputs, *constants]))

    return converted, values


def _differentiable(x: Array) -> bool:
    """Whether a gradient may follow an Array: a running one, or one of the captured function."""
    if not (x.aval.floating or x.aval.complex):
        return False
    return followed(x) or (thread.trace.capture is not None and value_of(x) is None)
