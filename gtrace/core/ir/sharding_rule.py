"""The sharding rule of an operation: which axes of its operands and result belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

WHOLE = "."
"""An axis that must not be split."""


def broadcast_term(shape: Sequence[int], target: Sequence[int], letters: Sequence[str]) -> str:
    """Return the letters of an operand that broadcasts to a shape with these letters; repeated axes are not split.

    >>> broadcast_term((1, 4), (2, 3, 4), "abc")
    '.c'
    """
    start = len(target) - len(shape)
    return "".join(letters[start + k] if n == target[start + k] else WHOLE for k, n in enumerate(shape))


@attrs.frozen
class Factors:
    """A sharding rule for operands of given shapes.

    Attributes:
        equation: a letter for each axis of each operand and of the result, as in einsum. Axes with the same letter are
            split alike. An axis "." is not split. If the result lacks a letter, each process reduces its part, and the
            results are combined.
        reduce: how they are combined: "sum", "max" or "min".
        even: letters of axes that are split into equal parts only. The outermost axis that a reshape joins is one.
        local: (attributes, shapes of the local operands, shape of the local result) -> attributes for one process;
            None: they stay.
        via: for a reduction that no `reduce` combines: (name of a replacement operation, factor of its result). A mean
            is a sum times 1 / n.
        into: an operand that the reduction is added to, and that counts once. The rule reduces only if it is zero.

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
