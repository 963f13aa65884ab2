"""Loops that never look at a value: finding the period of the recorded stream, and cutting it there.

The stream of instructions of a long pending trace is searched for a period. Once it repeats, the trace is cut at the
same place of every period, where the fewest values cross, so that each iteration is one program, the same one every
time. A stream without a period is cut by the budget. A cut depends on the stream and on settings: logs, `eager` and
budgets move it.

Layers and updates of parameters repeat too, within a step of training that ends in a look at its loss. A stretch from
look to look that was cut as a loop, and did not go on as one, is therefore not cut when it begins again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import attrs

from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.ir.op import Instr, Leaf

SHORTEST = 16
"""Operations between two cuts, at least."""

SEARCHED = 2000
"""Pending operations from which on a period is searched for; again each time that they have doubled."""

BEGINNING, MOST_SPARED = 64, 16
"""The entries of a flat list by which a stretch is known again, and how many stretches are."""


def operations(flat: Sequence[Any], at: int = 0) -> list[tuple[int, Instr]]:
    """Return (place, instruction) of each instruction of a flat list from place `at` on, where an entry must begin.

    Copies are skipped: a gradient copies pending values, but not those that an earlier cut has computed. So the number
    of copies may differ between iterations.
    """
    found = []
    while at < len(flat):
        record = flat[at]
        if record.__class__ is Instr:
            if not record.op.identity:
                found.append((at, record))
            at += 1 + len(record.ins)
        else:
            at += 2 if record.__class__ is Leaf else 1
    return found


def find_period(stream: Sequence[Hashable], least: int = 0) -> int | None:
    """Return the shortest period with which the end of a sequence repeats; None without one.

    Args:
        least: the length that must repeat; three periods in any case.

    The borders of the reversed sequence give it in linear time (Knuth, Morris and Pratt, 1977).

    >>> find_period([9, 1, 2, 3, 1, 2, 3, 1, 2, 3])
    3
    """
    reverse = stream[::-1]
    border = [0] * len(reverse)
    best: tuple[float, int] | None = None
    for k in range(1, len(reverse)):
        b = border[k - 1]
        while b and reverse[k] != reverse[b]:
            b = border[b - 1]
        b += reverse[k] == reverse[b]
        border[k] = b
        period = k + 1 - b
        # prefer the longer repeated stretch: a short one may be a repetition inside an iteration
        if k + 1 >= max(3 * period, least) and (best is None or k + 1 >= 2 * best[0]):
            best = (k + 1, period)
    return None if best is None else best[1]


def narrowest(flat: Sequence[Any], period: int) -> int:
    """Return the number of operations from the end of `flat` to the next place that the fewest values cross.

    Args:
        flat: ends with two periods at least.
    """
    last_use: dict[int, int] = {}
    made: list[tuple[int, int]] = []
    at, step = 0, 0
    while at < len(flat):
        record = flat[at]
        if record.__class__ is Instr:
            value = at
            at += 1 + len(record.ins)
            for operand in flat[value + 1 : at]:
                last_use[operand] = step
            if not record.op.identity:
                made.append((value, step))
                step += 1
        else:
            at += 2 if record.__class__ is Leaf else 1
    crossing = [0] * (step + 1)
    for number, k in made:
        # crosses every place after its own operation and before its last use
        crossing[k] += 1
        crossing[max(last_use.get(number, k), k)] -= 1
    width, best, place = 0, -1, 0
    for k in range(step - period):
        width += crossing[k]
        if k >= step - 2 * period and (best < 0 or width < best):
            best, place = width, k
    return place + 1 + 2 * period - step


@attrs.define
class LoopSegmentation:
    """What a thread knows of the loop it is in.

    Attributes:
        recent: the instructions that were cut off by the budget since the last look, up to the window.
        period: operations in an iteration; 0 while none is known.
        wait: operations until the next cut.
        seen, counted: in the current trace, the places examined so far and the operations in them.
        shape: the flat list of an iteration, once one was cut as a whole.
        cuts: since the last time somebody looked at a value.
        passed: operations that were cut off since then.
        lost: whether the loop did not go on as it was since then, or none was found.
        search: pending operations at which the next period is searched for.
        watching: whether the next look at a value must be noted.
        beginning: of the stretch since the last look, once a period was searched for.
        spared: by their beginnings, stretches that are no loops: for how many operations they are not cut.
    """

    recent: list[Instr] = attrs.field(factory=list)
    period: int = 0
    wait: int = 0
    seen: int = 0
    counted: int = 0
    shape: list[Any] = attrs.field(factory=list)
    cuts: int = 0
    passed: int = 0
    lost: bool = False
    search: int = SEARCHED
    watching: bool = False
    beginning: tuple[Any, ...] = ()
    spared: BoundedTable[tuple[Any, ...], int] = attrs.field(factory=lambda: BoundedTable(MOST_SPARED))

    def forget_loop(self) -> None:
        """Forget the period, and go on watching."""
        self.period = self.wait = self.seen = self.counted = self.cuts = 0
        self.shape = []

    def looked(self, pending: int) -> bool:
        """Note that somebody looked at a value, which ended the trace; returns whether the loop is still expected.

        A loop that looks at its loss now and then keeps its period. The next cut is counted from the look.

        Args:
            pending: the operations of the trace.
        """
        period, total = self.period, self.passed + pending
        expected = self.watching = self.cuts > 0 and not self.lost
        if self.lost:
            self.spared.remember(self.beginning, 2 * total)
        self.forget_loop()
        self.passed, self.lost, self.search, self.beginning = 0, False, SEARCHED, ()
        if expected:
            self.period = self.wait = period
        else:
            self.recent = []
        return expected

    def watch(self, flat: list[Any], window: int, full: bool) -> bool:
        """Look for a period at the end of a trace. Returns whether it is to be cut there: it has one, or is full."""
        self.watching = True
        own = operations(flat)
        if not self.beginning:
            self.beginning = tuple(flat[:BEGINNING])
            spared = self.spared.get(self.beginning, 0)
            if len(own) < spared and not full:
                self.search = spared
                return False
        stream = (self.recent + [instr for _, instr in own])[-window:]
        period = find_period(stream, 4 * SHORTEST)
        if period is not None:
            # short iterations are grouped, so that a program has at least SHORTEST operations
            self.period = period = period * -(-SHORTEST // period)
            self.wait = narrowest(flat, period) if len(own) >= 2 * period else period
            self.seen = self.counted = 0
        else:
            self.lost = True
        if period is None and not full:
            self.search = 2 * len(own)
            return False
        self.recent, self.search = stream, SEARCHED
        return True

    def due(self, flat: list[Any]) -> bool:
        """Whether the trace has come to the place of the next cut."""
        if self.shape:
            return len(flat) >= len(self.shape)
        for at, instr in operations(flat, self.seen):
            self.counted += 1
            self.seen = at + 1 + len(instr.ins)
        return self.counted >= self.wait

    def cut(self, flat: list[Any]) -> bool:
        """Note a cut; returns whether the loop goes on as it was, so that the next cut can be foreseen."""
        if self.shape and flat != self.shape:
            self.forget_loop()
            self.recent, self.lost = [], True
            return False
        if self.wait == self.period and not self.shape:
            self.shape = list(flat)
        self.wait = self.period
        self.seen = self.counted = 0
        self.cuts += 1
        return True
