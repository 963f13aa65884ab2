"""Loops that never look at a value: finding the period of the recorded stream, and cutting it there.

A thread whose pending trace grows beyond its budget is watched. Once the stream of instructions repeats, the trace is
cut at the same place of every period, where the fewest values cross, so that each iteration is one program, the same
one every time. A stream without a period is cut by the budget. Either way a cut depends on nothing but the stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from gtrace.ir.op import CODES, Instr

SHORTEST = 16
"""Operations between two cuts, at least."""


def operations(flat: Sequence[int], at: int = 0) -> list[tuple[int, int]]:
    """Return (place, code) of each instruction of a flat list from place `at` on, which must begin a value.

    Copies do not count: a gradient makes them of what is pending, and not of what a cut before it has computed.
    """
    found = []
    while at < len(flat):
        code = flat[at]
        record = CODES[code]
        if record.__class__ is Instr:
            if not record.op.identity:
                found.append((at, code))
            at += 1 + len(record.ins)
        else:
            at += 1
    return found


def find_period(codes: Sequence[int], least: int = 0) -> int | None:
    """Return the shortest period with which the end of a sequence repeats; None without one.

    Args:
        least: the length that must repeat; three periods in any case.

    The borders of the reversed sequence give it in linear time (Knuth, Morris and Pratt, 1977).

    >>> find_period([9, 1, 2, 3, 1, 2, 3, 1, 2, 3])
    3
    """
    reverse = codes[::-1]
    border = [0] * len(reverse)
    best: tuple[float, int] | None = None
    for k in range(1, len(reverse)):
        b = border[k - 1]
        while b and reverse[k] != reverse[b]:
            b = border[b - 1]
        b += reverse[k] == reverse[b]
        border[k] = b
        period = k + 1 - b
        # a long stretch that repeats says more than a short one with a shorter period, as inside an iteration
        if k + 1 >= max(3 * period, least) and (best is None or k + 1 >= 2 * best[0]):
            best = (k + 1, period)
    return None if best is None else best[1]


def narrowest(flat: Sequence[int], period: int) -> int:
    """Return how many operations after the end of `flat` the next place comes that the fewest values cross.

    Args:
        flat: ends with two periods at least.
    """
    last_use: dict[int, int] = {}
    made: list[tuple[int, int]] = []
    value, at, step = 0, 0, 0
    while at < len(flat):
        record = CODES[flat[at]]
        at += 1
        if record.__class__ is Instr:
            end = at + len(record.ins)
            for operand in flat[at:end]:
                last_use[operand] = step
            at = end
            if not record.op.identity:
                made.append((value, step))
                step += 1
        value += 1
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
class Rhythm:
    """What a thread knows of the loop it is in.

    Attributes:
        codes: the instructions of the last unforced stretches, up to the window.
        period: operations in an iteration; 0 while none is known.
        wait: operations until the next cut.
        seen, counted: of the current trace: places looked at, operations in them.
        shape: the flat list of an iteration, once one was cut as a whole.
        cuts: since the last time somebody looked at a value.
    """

    codes: list[int] = attrs.field(factory=list)
    period: int = 0
    wait: int = 0
    seen: int = 0
    counted: int = 0
    shape: list[int] = attrs.field(factory=list)
    cuts: int = 0

    def forget_loop(self) -> None:
        """Forget the period, and go on watching."""
        self.period = self.wait = self.seen = self.counted = self.cuts = 0
        self.shape = []

    def looked(self) -> bool:
        """Note that somebody looked at a value, which ended the trace; returns whether the loop is still expected.

        A loop that looks at its loss now and then goes on in between as before, counted from there.
        """
        expected = self.cuts > 0
        if not expected:
            self.codes = []
        period = self.period
        self.forget_loop()
        if expected:
            self.period = self.wait = period
        return expected

    def watch(self, flat: list[int], window: int) -> None:
        """Look for a period in what is about to be cut by the budget."""
        own = operations(flat)
        self.codes = (self.codes + [code for _, code in own])[-window:]
        period = find_period(self.codes, 4 * SHORTEST)
        if period is not None:
            # of short iterations, several make a program
            self.period = period = period * -(-SHORTEST // period)
            self.wait = narrowest(flat, period) if len(own) >= 2 * period else period
            self.seen = self.counted = 0

    def due(self, flat: list[int]) -> bool:
        """Whether the trace has come to the place of the next cut."""
        if self.shape:
            return len(flat) >= len(self.shape)
        for at, _ in operations(flat, self.seen):
            self.counted += 1
            self.seen = at + 1 + len(CODES[flat[at]].ins)  # type: ignore[union-attr]
        return self.counted >= self.wait

    def cut(self, flat: list[int]) -> bool:
        """Note a cut; returns whether the loop goes on as it was, so that the next cut can be foreseen."""
        if self.shape and flat != self.shape:
            self.forget_loop()
            self.codes = []
            return False
        if self.wait == self.period and not self.shape:
            self.shape = list(flat)
        self.wait = self.period
        self.seen = self.counted = 0
        self.cuts += 1
        return True
