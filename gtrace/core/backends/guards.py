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

_OPERANDS = {"Not": (1,), "ModularIndexing": (3,), **dict.fromkeys(("Add", "Mul", "Max", "Min", "And", "Or"))}
"""How many conditions an operation takes; None: two or more. Others take two."""

_MAX_POWER = 64


def check(condition: Any, sizes: int) -> None:
    """Refuse what is no condition on so many sizes, as in a damaged file.

    Raises:
        ValueError: it is none.

    >>> check(["LessThan", ["size", 1], 100], 2)
    """
    if type(condition) in (int, bool):
        if abs(condition) >= 1 << 63:
            raise ValueError(f"expected a number of 64 bits, got {condition}")
        return
    if type(condition) not in (list, tuple) or not condition or type(condition[0]) is not str:
        raise ValueError(f"expected a condition, got {condition!r}")
    name, *args = condition
    if name == "size":
        if len(args) != 1 or type(args[0]) is not int or not 0 <= args[0] < sizes:
            raise ValueError(f"expected the place of one of {sizes} sizes, got {args!r}")
        return
    counts = _OPERANDS.get(name, (2,))
    fits = len(args) > 1 if counts is None else len(args) in counts
    if name not in OPERATIONS or not fits:
        raise ValueError(f"expected an operation with its operands, got {condition!r}")
    if name == "Pow" and type(args[1]) is int and abs(args[1]) > _MAX_POWER:
        raise ValueError(f"expected a power of at most {_MAX_POWER}, got {args[1]}")
    for arg in args:
        check(arg, sizes)


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
    """Return a sympy expression of symbols with these `places` as a condition; raise a ValueError if there is none."""
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
