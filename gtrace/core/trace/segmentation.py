"""Loops that read no value: finds the period of the recorded stream, and cuts the stream once an iteration.

The instructions of a long pending trace are searched for a period. Then a place in the iteration is chosen: where the
stretch since the last read began, or else where the fewest values cross. The last instructions before the place are the
loop's anchor. The stream is cut whenever it has passed the anchor, so each iteration is the same program. A stream
without a period is cut by the budget. Cuts depend on the stream and on settings: logs, `eager` and budgets move them.

The loop of a stretch between two reads is remembered by how the stretch begins. Layers and parameter updates also
repeat, within a training step that ends when its loss is read. If such a stretch was cut by mistake, its beginning is
remembered too, and it is not searched again before twice its length.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import attrs

from gtrace.core.base.mechanisms import PERIODS
from gtrace.core.ir.op import Instr, Leaf

SHORTEST = 16
"""The minimal number of operations between two cuts."""

SEARCHED = 2000
"""Pending operations at which a period is first searched for, and again after each doubling."""

BEGINNING, MOST_STRETCHES = 64, 16
"""The number of list entries that identify a stretch, and the number of stretches to remember."""

MOST_MISSED = 2
"""The number of stretches in turn that begin as a loop, and end at once, before the loop is forgotten."""


def operations(flat: Sequence[Any], at: int = 0) -> list[tuple[int, int]]:
    """Return (index, form) of each instruction of a flat list from index `at` on, where an entry must begin.

    Forms do not depend on sizes, so a batch of another size does not break a loop.
    Copies are skipped. A gradient copies pending values, but not values that an earlier cut has computed. So the number
    of copies may differ between iterations.
    """
    found = []
    while at < len(flat):
        record = flat[at]
        if record.__class__ is Instr:
            if not record.op.identity:
                found.append((at, record.form))
            at += 1 + len(record.ins)
        else:
            at += 2 if record.__class__ is Leaf else 1
    return found


def borders(stream: Sequence[Any]) -> list[int]:
    """Return for each beginning of a sequence the length of its longest proper beginning that is also its end.

    They are found in linear time (Knuth, Morris and Pratt, 1977).

    >>> borders("ababc")
    [0, 0, 1, 2, 0]
    """
    border = [0] * len(stream)
    for k in range(1, len(stream)):
        b = border[k - 1]
        while b and stream[k] != stream[b]:
            b = border[b - 1]
        border[k] = b + (stream[k] == stream[b])
    return border


def find_period(stream: Sequence[Any], least: int = 0) -> int | None:
    """Return the shortest period with which the end of a sequence repeats; None if there is none.

    Args:
        least: the length that must repeat, which is at least three periods.

    >>> find_period([9, 1, 2, 3, 1, 2, 3, 1, 2, 3])
    3
    """
    best: tuple[int, int] | None = None
    for k, border in enumerate(borders(stream[::-1])):
        period = k + 1 - border
        # prefer the longer repeated stretch, because a short one may repeat within an iteration
        if border and k + 1 >= max(3 * period, least) and (best is None or k + 1 >= 2 * best[0]):
            best = (k + 1, period)
    return None if best is None else best[1]


def narrowest(flat: Sequence[Any], period: int) -> int:
    """Return how many operations before the end of two periods or more the fewest values cross."""
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
    return step - place - 1


@attrs.define
class PeriodicLoop:
    """A loop that reads no value.

    Attributes:
        period: operations between two cuts, not counting copies.
        anchor: the forms of instructions that end an iteration, and are nowhere else in it.
        borders: the borders of the anchor.
        iterations: iterations between two cuts.
        first, next: the entry at which the first cut of a stretch is expected, and a later one; 0 if unknown.
        missed: stretches since it last went on that began equally and ended at once.
    """

    period: int
    anchor: list[int]
    iterations: int
    borders: list[int]
    first: int = 0
    next: int = 0
    missed: int = 0

    @classmethod
    def of(cls, stream: list[int], period: int, end: int) -> PeriodicLoop:
        """Return the loop with which the end of a stream repeats, three times or more.

        Args:
            end: the number of operations after the end of an iteration.
        """
        at = len(stream) - end % period
        n = 1
        while True:
            n = min(n, period)
            anchor = stream[at - n : at]
            loop = cls(period, anchor, -(-SHORTEST // period), borders(anchor))
            if n == period or len(loop.passed(0, stream[at - period - n + 1 : at])[1]) == 1:
                loop.period *= loop.iterations
                return loop
            n *= 2

    def passed(self, matched: int, stream: Sequence[int]) -> tuple[int, list[int]]:
        """Return where the anchor ends in a stream.

        Args:
            matched: how many instructions of the anchor the stream before ended with.

        Returns:
            The same number for the end of the stream, and the indices of the anchors' last instructions.
        """
        anchor, found = self.anchor, []
        for k, form in enumerate(stream):
            while matched and (matched == len(anchor) or anchor[matched] != form):
                matched = self.borders[matched - 1]
            matched += anchor[matched] == form
            if matched == len(anchor):
                found.append(k)
        return matched, found


@attrs.define
class Progress:
    """How far a stretch has followed a loop.

    Attributes:
        loop: the loop.
        known: whether an earlier stretch that began equally was this loop.
        cuts: the cuts of this loop.
        seen, counted: the entries of the current trace that were examined, and the operations since the last cut.
        matched, anchors: how much of the anchor the stream ends with, and the anchors since the last cut.
        due, late: the entry at which the next cut can be made, 0 if it is not due; whether it was noticed afterwards.
        read: whether a value that was cut off before was read since the last cut. A loop that breaks then ended there.
    """

    loop: PeriodicLoop
    known: bool
    cuts: int = 0
    seen: int = 0
    counted: int = 0
    matched: int = 0
    anchors: int = 0
    due: int = 0
    late: bool = False
    read: bool = False

    def advance(self, flat: list[Any], waits: bool) -> None:
        """Take note of what was recorded since the last call.

        Args:
            waits: the trace cannot be cut here.
        """
        new = operations(flat, self.seen)
        self.seen = len(flat)
        self.counted += len(new)
        self.matched, ends = self.loop.passed(self.matched, [form for _, form in new])
        self.anchors += len(ends)
        if self.due and waits and not self.late:
            self.due = len(flat)
        elif not self.due and self.anchors >= self.loop.iterations:
            self.due, self.late = new[ends[-1]][0], ends[-1] + 1 < len(new)

    @property
    def broken(self) -> bool:
        """Whether the next cut is overdue."""
        return not self.due and self.counted > 2 * self.loop.period

    def expected(self) -> int:
        """Return the entry at which the next cut is expected; 0 if unknown."""
        return self.loop.next if self.cuts else self.loop.first

    def cut(self) -> None:
        """Note a cut that was due. The next one is expected at the same entry."""
        if self.cuts:
            self.loop.next = self.due
        elif self.known:
            self.loop.first = self.due
        self.cuts += 1
        self.seen = self.counted = self.anchors = self.due = 0
        self.read = False


@attrs.define
class Stretch:
    """What is known of the operations since the last read of a value.

    Attributes:
        beginning: its first entries; empty while it is shorter.
        progress: how far it has followed its loop; None while it follows none.
        first: its first loop that went on.
        recent: forms of instructions that the budget cut off, up to the window.
        passed: pending operations that were cut off.
        results: references to the Arrays that the last cut computed.
        search: pending operations at which the next period is searched for.
        lost: whether a loop broke, or none was found.
        noted: whether the segmentation must know when the stretch ends.
    """

    beginning: tuple[Any, ...] = ()
    progress: Progress | None = None
    first: PeriodicLoop | None = None
    recent: list[int] = attrs.field(factory=list)
    passed: int = 0
    results: list[weakref.ref[Any]] = attrs.field(factory=list)
    search: int = SEARCHED
    lost: bool = False
    noted: bool = False

    def follow(self, loop: PeriodicLoop, known: bool = False) -> None:
        """Expect the cuts of a loop."""
        self.progress, self.noted = Progress(loop, known), True

    def lose(self) -> None:
        """Follow the loop no more, because it broke."""
        self.progress, self.recent, self.lost = None, [], True


def _value(entry: Any) -> Any:
    """Return a value for an entry of a flat list that is the same in every process."""
    return entry.digest if entry.__class__ is Instr else entry.aval if entry.__class__ is Leaf else entry


@attrs.define
class LoopSegmentation:
    """The state of a thread: its current stretch, and what is known of earlier ones.

    A stretch is what is recorded between two reads of values.

    Attributes:
        stretch: the current one.
        stretches: for the beginnings of stretches their loop, or the number of operations that are not searched.
    """

    stretch: Stretch = attrs.field(factory=Stretch)
    stretches: dict[tuple[Any, ...], PeriodicLoop | int] = attrs.field(factory=dict)

    def place(self) -> int:
        """Return the entry of the current trace from which on `gtrace.core.trace.bind.overflow` must run."""
        progress = self.stretch.progress
        if progress is not None:
            return max(progress.expected(), 1)
        return BEGINNING if self.stretches and not self.stretch.beginning else SEARCHED

    def begin(self, flat: list[Any]) -> None:
        """Note how a stretch begins. If one that began equally was a loop, expect its cuts."""
        stretch = self.stretch
        stretch.beginning, stretch.noted = tuple(map(_value, flat[:BEGINNING])), True
        found = self.stretches.get(stretch.beginning, 0)
        if isinstance(found, int):
            stretch.search = max(stretch.search, found)
        else:
            stretch.follow(found, known=True)

    def looked(self, pending: int) -> None:
        """Note that a read ended a stretch, and a trace of `pending` operations."""
        ended, self.stretch = self.stretch, Stretch()
        if ended.first is not None:
            ended.first.missed = 0
            self._remember(ended.beginning, ended.first)
        elif ended.lost and ended.beginning:
            self._remember(ended.beginning, 2 * (ended.passed + pending))
        elif ended.progress is not None:
            # now and then a stretch is short; if the next ones are too, values are read in each iteration
            loop = ended.progress.loop
            loop.missed += 1
            if loop.missed > MOST_MISSED:
                self.stretches.pop(ended.beginning, None)

    def _remember(self, beginning: tuple[Any, ...], what: PeriodicLoop | int) -> None:
        # the oldest goes first: processes that record the same forget the same
        self.stretches.pop(beginning, None)
        self.stretches[beginning] = what
        if len(self.stretches) > MOST_STRETCHES:
            del self.stretches[next(iter(self.stretches))]

    def reread(self, x: Any, pending: int) -> bool:
        """Note that the known value of an Array was read. Return whether this ends the stretch."""
        stretch = self.stretch
        if not pending:
            return any(reference() is x for reference in stretch.results)
        if stretch.progress is None:
            return stretch.lost  # it was cut off by mistake
        stretch.progress.read = True
        return False

    def searches(self, pending: int) -> bool:
        """Whether a period is searched for once `pending` operations are pending."""
        return PERIODS.on and self.stretch.progress is None and pending >= self.stretch.search

    def watch(self, flat: list[Any], window: int, full: bool) -> bool:
        """Search for a period at the end of a trace. Return whether to cut there, for a period or a full trace."""
        stretch = self.stretch
        stretch.noted = True
        own = [form for _, form in operations(flat)]
        stream = (stretch.recent + own)[-window:]
        period = find_period(stream, 4 * SHORTEST) if PERIODS.on else None
        if period is not None:
            PERIODS.used()
            if not stretch.passed and own[period:] == own[:-period]:
                end = len(own)  # all of the stretch repeats, so an iteration ended where it began
            elif len(own) >= 2 * period:
                end = narrowest(flat, period)
            else:
                end = 0
            stretch.follow(PeriodicLoop.of(stream, period, end))
        else:
            stretch.lost = True
            if not full:
                stretch.search = 2 * len(own)
                return False
        stretch.recent, stretch.search = stream, SEARCHED
        return True

    def ready(self, flat: list[Any], waits: bool) -> bool:
        """Whether the next cut is due. If it is overdue, the loop is over.

        Args:
            waits: the trace cannot be cut here.
        """
        stretch, progress = self.stretch, self.stretch.progress
        if progress is None:
            return False
        progress.advance(flat, waits)
        if progress.broken:
            if progress.known and not progress.cuts:
                # it begins as that loop, and is another, or none
                stretch.search = max(stretch.search, 2 * progress.counted)
            if progress.read:
                self.looked(0)
            else:
                stretch.lose()
        return progress.due > 0

    def cut_off(self, refs: list[weakref.ref[Any]]) -> None:
        """Note a cut, and the references to the Arrays that it computes."""
        self.stretch.passed += len(refs)
        self.stretch.results = refs

    def cut(self) -> None:
        """Note a cut of the loop, which was due."""
        stretch, progress = self.stretch, self.stretch.progress
        assert progress is not None
        progress.cut()
        if progress.cuts > 1 and stretch.first is None:
            stretch.first = progress.loop
