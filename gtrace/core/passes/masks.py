"""Masks of attention: what is known of them before a program runs, and the operations that make them."""

from __future__ import annotations

import math

import attrs
import torch

from gtrace.core.base.dtypes import SHORT
from gtrace.core.base.errors import ExecutionError
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.def_use import Values
from gtrace.core.ir.edit import Replacements
from gtrace.core.ir.evaluate import evaluate
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar
from gtrace.core.ir.simplify import dce
from gtrace.core.passes.tuned import MOST_KNOWN

HIDDEN = -1e9
"""A score that is this number, or that this number is added to, counts as minus infinity.

Those who write it mean that. Its weight is 0 unless the largest score of its row is as small. A row that has only such
numbers is never hidden."""

LEVEL = 1e3
"""The largest number that may be added to all scores of a row.

The kernel keeps the logarithm of the row's sum for its gradient. An added number costs digits of it; -1e9 costs all."""

REPLACED = -1e30
"""What replaced scores become, in place of a number such as -1e9, if a row may consist of them alone."""


@attrs.frozen
class Hidden:
    """Scores are replaced where a condition does not hold, or, if `inverted`, where it holds."""

    condition: int
    inverted: bool
    score: float


@attrs.frozen
class Added:
    """Something is added to the scores, or subtracted."""

    value: int
    negative: bool


Mask = tuple[Hidden | Added, ...]


class Masks:
    """What masks are, as far as it follows from the program alone."""

    def __init__(self, values: Values) -> None:
        constants: dict[int, Node] = {}
        for value in sorted(values.constants, key=values.place.__getitem__):
            node = values.made[value]
            a = node.instr.aval
            if isinstance(a, Aval) and a.size <= MOST_KNOWN and all(x in constants for x in node.values()):
                constants[value] = node
        self._constants = constants
        self._tensors: dict[int, torch.Tensor | None] = {}
        self._totals: dict[Mask, torch.Tensor | None] = {}  # layers have the same masks
        self._causal: dict[tuple[Mask, int, int], bool] = {}

    def known(self, value: int) -> torch.Tensor | None:
        """Return a value that is the same in every run; None: it depends on inputs, or is too large to look at."""
        if value not in self._constants:
            return None
        if value not in self._tensors:
            program = dce(Graph((), (), tuple(self._constants.values()), (value,)))
            try:
                (self._tensors[value],) = evaluate(program)
            except ExecutionError:
                self._tensors[value] = None  # the program must raise when it runs, not here
        return self._tensors[value]

    def is_exact(self, mask: Mask) -> bool:
        """Whether the kernel can have the numbers that replace scores as minus infinity.

        It can if they are all one number, and nothing that may be as small is added to the scores of a row.
        """
        numbers = {step.score for step in mask if isinstance(step, Hidden) and step.score != -math.inf}
        if not numbers:
            return True
        if len(numbers) > 1 or not max(numbers) <= HIDDEN:
            return False
        if all(isinstance(step, Hidden) for step in mask):
            return True
        return self.is_level(mask)

    def keeps_scores(self, mask: Mask) -> bool:
        """Whether it is known that no row is hidden as a whole."""
        kept = torch.ones((), dtype=torch.bool)
        for step in mask:
            if isinstance(step, Hidden):
                condition = self.known(step.condition)
                if condition is None:
                    return False
                kept = kept & (condition ^ step.inverted)
        return kept.dim() > 0 and bool(kept.any(-1).all())

    def is_causal(self, mask: Mask, queries: int, keys: int) -> bool:
        """Whether a mask is known to hide from each query the keys behind it, and to leave the others as they are."""
        key = mask, queries, keys
        if key not in self._causal:
            total = self._total(mask) if mask and queries == keys else None
            if total is None or total.shape[-2:] != (queries, keys):
                self._causal[key] = False
            else:
                lower = torch.ones(queries, keys, dtype=torch.bool).tril()
                self._causal[key] = bool(torch.where(lower, total == 0, total <= HIDDEN).all())
        return self._causal[key]

    def is_level(self, mask: Mask) -> bool:
        """Whether it is known that nothing is added to all scores of a row, but for small numbers."""
        if all(isinstance(step, Hidden) for step in mask):
            return True
        total = self._total(mask)
        return total is not None and bool((total.amax(-1).abs() <= LEVEL).all())

    def _total(self, mask: Mask) -> torch.Tensor | None:
        """Return what a mask adds to the scores, if that is known."""
        if mask not in self._totals:
            self._totals[mask] = self._added_up(mask)
        return self._totals[mask]

    def _added_up(self, mask: Mask) -> torch.Tensor | None:
        total = torch.zeros((), dtype=torch.float64)
        for step in mask:
            known = self.known(step.condition if isinstance(step, Hidden) else step.value)
            if known is None:
                return None
            if isinstance(step, Hidden):
                total = torch.where(known ^ step.inverted, total, -math.inf)
            else:
                total = total - known if step.negative else total + known
        return total


# -- the operations


def number_of(value: float, a: Aval) -> Scalar:
    """Return a number beside arrays of a type."""
    return Scalar(value, aval((), a.dtype, a.device, weak=True))


@attrs.frozen
class BuiltMask:
    """A mask for the kernel.

    Attributes:
        added: the array that is added to the scores.
        alone: the rows that are replaced by numbers as a whole; None: there are none.
        gone: the rows that are minus infinity as a whole; None: they do not matter as far as is known.
        without: the array that is added in the gradient, in which rows that are gone have no weights; None: `added`.
    """

    added: int
    alone: int | None = None
    gone: int | None = None
    without: int | None = None


def built_mask(build: Replacements, mask: Mask, scores: Aval, levelled: bool) -> BuiltMask:
    """Return the operations of a mask.

    The kernel keeps the logarithm of each row's sum for its gradient. A large number that is added to all of a row
    costs digits of it (`LEVEL`). So a levelled mask has the largest element 0 in each row, which changes no weights. A
    row of minus infinity alone becomes NaN, as its weights are. Rows of numbers alone have equal weights, as they would
    have without a query.
    """
    built: int | None = None
    replaced = False
    for step in mask:
        if isinstance(step, Added):
            term = build("neg", (), step.value) if step.negative else step.value
            built = term if built is None else build("add", (), built, term)
            continue
        kept: Operand = number_of(0.0, scores) if built is None else built
        hidden = number_of(REPLACED if levelled and step.score != -math.inf else -math.inf, scores)
        sides = (hidden, kept) if step.inverted else (kept, hidden)
        built = build("where", (), step.condition, *sides)
        if build.aval(built).weak:
            built = build("astype", (SHORT[scores.dtype],), built)
        replaced = replaced or step.score != -math.inf
    assert built is not None
    alone = gone = without = None
    if levelled:
        largest = build("max", _last_axis(build.aval(built)), built)
        built = build("sub", (), built, largest)
        if replaced:  # then nothing is added: the largest is 0, this number or minus infinity
            alone = _of_kernel(build, build("eq", (), largest, number_of(REPLACED, scores)), scores)
        elif hides_alone(mask):
            infinite = number_of(-math.inf, scores)
            gone = build("eq", (), largest, infinite)
            without = _whole(build, build("where", (), gone, infinite, built), scores)
            gone = _of_kernel(build, gone, scores)
    return BuiltMask(_whole(build, built, scores), alone, gone, without)


def hides_alone(mask: Mask) -> bool:
    """Whether all that is done to the scores is to replace some by minus infinity."""
    return all(isinstance(step, Hidden) and step.score == -math.inf for step in mask)


def _whole(build: Replacements, mask: int, scores: Aval) -> int:
    """Return a mask as the kernel takes it, for all queries and keys."""
    mask = _of_kernel(build, mask, scores)
    given = build.aval(mask).shape
    full = (*given[:-2], *scores.shape[-2:])
    return mask if given == full else build("broadcast_to", (full,), mask)


def _of_kernel(build: Replacements, mask: int, scores: Aval) -> int:
    """Return a mask with the axes of the kernel's scores: batch, heads, queries and keys."""
    own = build.aval(mask).shape
    given = (1,) * (len(scores.shape) - len(own)) + own
    if len(given) == 3:
        given = (given[0], 1, *given[1:])
    return build.shaped(mask, given)


def _last_axis(a: Aval) -> tuple[tuple[int, ...], bool]:
    """Return the attributes of a reduction over the last axis, which stays with one element."""
    return (len(a.shape) - 1,), True
