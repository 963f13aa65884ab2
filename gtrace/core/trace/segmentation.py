"""Loops that read no value: finds the period of the recorded stream, and cuts the stream there.

The instructions of a long pending trace are searched for a period. Once the stream repeats, every period is cut at the
same position, where the fewest values cross. So each iteration is the same program. A stream without a period is cut by
the budget. Cuts depend on the stream and on settings: logs, `eager` and budgets move them.

Layers and parameter updates also repeat, within a training step that ends when its loss is read. A stretch between two
reads may be cut as a loop but not continue as one. It is not cut when it begins again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import attrs

from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.ir.op import Instr, Leaf

SHORTEST = 16
"""The minimal number of operations between two cuts."""

SEARCHED = 2000
"""Pending operations at which a period is first searched for, and again after each doubling."""

BEGINNING, MOST_SPARED = 64, 16
"""The number of list entries that identify a stretch, and the number of stretches to remember."""


def operations(flat: Sequence[Any], at: int = 0) -> list[tuple[int, Instr]]:
    """Return (index, instruction) of each instruction of a flat list from index `at` on, where an entry must begin.

    Copies are skipped. A gradient copies pending values, but not values that an earlier cut has computed. So the number
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
    """Return the shortest period with which the end of a sequence repeats; None if there is none.

    Args:
        least: the length that must repeat, which is at least three periods.

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
        # prefer the longer repeated stretch, because a short one may repeat within an iteration
        if k + 1 >= max(3 * period, least) and (best is None or k + 1 >= 2 * best[0]):
            best = (k + 1, period)
    return None if best is None else best[1]


def narrowest(flat: Sequence[Any], period: int) -> int:
    """Return how many operations after the end of two periods or more the fewest values cross."""
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
        # it crosses every position between its own operation and its last use
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
    """The state of a thread's current loop.

    Attributes:
        recent: instructions that the budget cut off since the last read, up to the window.
        period: operations in an iteration; 0 while unknown.
        wait: operations until the next cut.
        seen, counted: the entries of the current trace that were examined, and the operations in them.
        shape: the flat list of an iteration, once one was cut as a whole.
        cuts: the number of cuts since a value was last read.
        passed: operations that were cut off since then.
        lost: whether the loop broke since then, or none was found.
        search: pending operations at which the next period is searched for.
        watching: whether the next read of a value must be noted.
        beginning: the first entries of the stretch since the last read, once a period was searched for.
        spared: for the beginnings of stretches that are no loops, the number of operations that are not cut.
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
        """Forget the period, and keep watching."""
        self.period = self.wait = self.seen = self.counted = self.cuts = 0
        self.shape = []

    def looked(self, pending: int) -> bool:
        """Note that a read ended the trace of `pending` operations; return whether the loop is still expected.

        A loop that reads its loss now and then keeps its period. The next cut is counted from the read.
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
        """Search for a period at the end of a trace. Return whether to cut there, for a period or a full trace."""
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
        """Whether the trace has reached the next cut."""
        if self.shape:
            return len(flat) >= len(self.shape)
        for at, instr in operations(flat, self.seen):
            self.counted += 1
            self.seen = at + 1 + len(instr.ins)
        return self.counted >= self.wait

    def cut(self, flat: list[Any]) -> bool:
        """Note a cut; return whether the loop continues as before, so that the next cut can be predicted."""
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
