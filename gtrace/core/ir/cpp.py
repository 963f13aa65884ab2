"""How an elementwise operation is written in C++, as its declaration says."""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.frozen
class Cpp:
    """An expression for the elements of an operation, for some kinds of dtype.

    Attributes:
        template: the expression, with ``{0}``, ``{1}`` for the operands, ``{T}`` and ``{A}`` for the types of the
            result and of the last operand; or a function of the attributes that returns one.
        kinds: of operands it is right for, by the last operand's: "b" bool, "i" integers, "f" floats, "u" uint32.
        cost: how many additions it takes, about.
        boolean: the expression for booleans, where it is another one.
        precise: whether it is computed in double precision and rounded once.
    """

    template: str | Callable[..., str]
    kinds: str = "bif"
    cost: int = 1
    boolean: str = ""
    precise: bool = False


def of_floats(name: str, cost: int = 10, precise: bool = False) -> Cpp:
    """Return the call of a function of the C++ library, for floats.

    >>> of_floats("sin").template
    'm::sin({0})'
    """
    return Cpp(f"m::{name}({{0}})", "f", cost, precise=precise)
