"""``custom_gradient`` and ``closure_convert``: rules in terms of what functions close over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gtrace.errors import user_location
from gtrace.trace.array import Array
from gtrace.trace.capture import capture, replay
from gtrace.transform.arguments import lift_outputs
from gtrace.transform.custom import custom_vjp

__all__ = ["closure_convert", "custom_gradient"]


def custom_gradient(fun: Callable[..., tuple[Any, Callable[[Any], Any]]]) -> Callable[..., Any]:
    """Return a function with a derivative that it returns itself.

    Args:
        fun: returns (output, rule); the rule takes the cotangent of the output and returns that of the arguments: a
            tuple, or, for one argument, the cotangent itself.

    >>> import gtrace as gt
    >>> @gt.custom_gradient
    ... def clipped(x):
    ...     return x, lambda ct: gt.clip(ct, -1, 1)
    >>> gt.grad(lambda x: 5 * clipped(x))(2.0)
    Array(1., dtype=float32)
    """

    def value(*args: Any) -> Any:
        return fun(*args)[0]

    value.__name__ = getattr(fun, "__name__", "f")
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
    """Return `fun` as a function that takes the arrays which it closes over as further arguments, and these arrays.

    So a `custom_vjp` can differentiate by what a function argument closes over.

    Args:
        example_args: arguments like those that `fun` will be called with.

    >>> import gtrace as gt
    >>> scale = gt.array(3.0)
    >>> converted, arrays = gt.closure_convert(lambda x: scale * x, gt.array(1.0))
    >>> converted(gt.array(2.0), *arrays), len(arrays)
    (Array(6., dtype=float32), 1)
    """
    leaves, structure = lift_outputs("closure_convert", example_args)

    def run(inputs: Sequence[Array]) -> Any:
        arguments: Any = structure.unflatten(inputs)
        return lift_outputs("closure_convert", fun(*arguments))

    captured = capture(run, [x.aval for x in leaves], f"closure_convert called at {user_location()}")

    def converted(*args: Any) -> Any:
        count = len(args) - len(captured.constants)
        inputs, _ = lift_outputs("closure_convert", args[:count])
        constants, _ = lift_outputs("closure_convert", args[count:])
        return captured.result.unflatten(replay(captured.graph, [*inputs, *constants]))

    return converted, list(captured.constants)
