"""Factors: how the axes of an operation's operands and result belong together; its sharding rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

WHOLE = "."
"""An axis that must not be split."""


@attrs.frozen
class Factors:
    """A sharding rule, for operands of given shapes.

    Attributes:
        equation: as for einsum: a letter for each axis of each operand and of the result. Axes with one letter are
            split alike. An axis "." is whole. A letter that the result lacks is reduced over: each process reduces its
            part, and the results are combined.
        reduce: how: "sum", "max" or "min".
        even: letters whose axes are split only into equal parts, such as the outermost one of those that a reshape
            joins.
        local: (attributes, shapes of the local operands, shape of the local result) -> attributes for one process;
            None: they stay.
        via: for a reduction of the parts that no `reduce` combines: (name of the operation to use instead, factor of
            its result). A mean is a sum times 1 / n.
        into: the operand to which the reduction is added, and which counts once: the rule reduces only if it is zero.

    >>> Factors("ij,jk->ik").operands
    ('ij', 'jk')
    """

    equation: str
    reduce: str = "sum"
    even: str = ""
    local: Callable[[dict[str, Any], list[tuple[int, ...]], tuple[int, ...]], dict[str, Any]] | None = None
    via: tuple[str, float] | None = None
    into: int | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        """The letters of each operand."""
        return tuple(self.equation.partition("->")[0].split(","))

    @property
    def result(self) -> str:
        """The letters of the result."""
        return self.equation.partition("->")[2]
