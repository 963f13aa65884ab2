"""Guards: what a compiler assumed of open sizes, as plain lists that are stored beside its code.

A condition is a number, ``["size", place]``, or the name of an operation followed by conditions. The names are those
of sympy's classes, in which torch states its guards.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

OPERATIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *xs: sum(xs),
    "Mul": lambda *xs: math.prod(xs),
    "Pow": lambda x, n: x**n,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda x, y: -(-x // y),
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "ModularIndexing": lambda x, y, z: x // y % z,
    "Max": max,
    "Min": min,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "LessThan": operator.le,
    "StrictLessThan": operator.lt,
    "GreaterThan": operator.ge,
    "StrictGreaterThan": operator.gt,
    "And": lambda *xs: all(xs),
    "Or": lambda *xs: any(xs),
    "Not": operator.not_,
}


def evaluate(condition: Any, sizes: Sequence[int]) -> Any:
    """Return the value of a condition.

    >>> evaluate(["LessThan", ["Mul", 4, ["size", 1]], 100], (7, 25))
    True
    """
    if not isinstance(condition, (list, tuple)):
        return condition
    name, *args = condition
    if name == "size":
        return sizes[args[0]]
    return OPERATIONS[name](*(evaluate(arg, sizes) for arg in args))


def hold(guards: Sequence[Any], sizes: Sequence[int]) -> bool:
    """Whether all guards are true of these sizes."""
    return all(evaluate(condition, sizes) for condition in guards)


def portable(expression: Any, places: dict[Any, int]) -> Any:
    """Return a sympy expression as a condition.

    Args:
        places: for each symbol, the place of its size.

    Raises:
        ValueError: it contains an operation that is not in `OPERATIONS`.
    """
    if expression in places:
        return ["size", places[expression]]
    if getattr(expression, "is_Integer", False):
        return int(expression)
    if not expression.args:
        if expression in (True, False):
            return bool(expression)
        raise ValueError(f"the compiler assumes {expression}, of which only it knows the meaning")
    name = type(expression).__name__
    if name not in OPERATIONS:
        raise ValueError(f"the compiler assumes {expression}: {name} is not among {', '.join(OPERATIONS)}")
    return [name, *(portable(arg, places) for arg in expression.args)]
