"""Loops that never look at a value: finding the period of the recorded stream, and cutting it there.

A thread whose pending trace grows beyond its budget is watched. Once the stream of instructions repeats, the trace is
cut at the same place of every period, where the fewest values cross, so that each iteration is one program, the same
one every time. A stream without a period is cut by the budget. Either way a cut depends on nothing but the stream.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import attrs

from gtrace.ir.op import Instr, Leaf

SHORTEST = 16
"""Operations between two cuts, at least."""


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
        recent: the instructions of the last unforced stretches, up to the window.
        period: operations in an iteration; 0 while none is known.
        wait: operations until the next cut.
        seen, counted: in the current trace, the places examined so far and the operations in them.
        shape: the flat list of an iteration, once one was cut as a whole.
        cuts: since the last time somebody looked at a value.
    """

    recent: list[Instr] = attrs.field(factory=list)
    period: int = 0
    wait: int = 0
    seen: int = 0
    counted: int = 0
    shape: list[Any] = attrs.field(factory=list)
    cuts: int = 0

    def forget_loop(self) -> None:
        """Forget the period, and go on watching."""
        self.period = self.wait = self.seen = self.counted = self.cuts = 0
        self.shape = []

    def looked(self) -> bool:
        """Note that somebody looked at a value, which ended the trace; returns whether the loop is still expected.

        A loop that looks at its loss now and then keeps its period. The next cut is counted from the look.
        """
        expected = self.cuts > 0
        if not expected:
            self.recent = []
        period = self.period
        self.forget_loop()
        if expected:
            self.period = self.wait = period
        return expected

    def watch(self, flat: list[Any], window: int) -> None:
        """Look for a period in what is about to be cut by the budget."""
        own = operations(flat)
        self.recent = (self.recent + [instr for _, instr in own])[-window:]
        period = find_period(self.recent, 4 * SHORTEST)
        if period is not None:
            # short iterations are grouped, so that a program has at least SHORTEST operations
            self.period = period = period * -(-SHORTEST // period)
            self.wait = narrowest(flat, period) if len(own) >= 2 * period else period
            self.seen = self.counted = 0

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
            self.recent = []
            return False
        if self.wait == self.period and not self.shape:
            self.shape = list(flat)
        self.wait = self.period
        self.seen = self.counted = 0
        self.cuts += 1
        return True
