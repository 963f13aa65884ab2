"""The ledger of a program: its calls and their seconds, in each form, and what it was found to cost so far."""

from __future__ import annotations

import collections
import math
from typing import Any

import attrs

from gtrace.core.base.config import Config
from gtrace.core.runtime.policy import SAMPLES

TIMED, KNOWN_CALLS, SHORT_SECONDS = 8, 1000, 2e-5
"""A program that ran so often and takes less than so long is short: one of `TIMED` calls is timed."""


@attrs.define(eq=False)
class Ledger:
    """What a program has cost, and until when nothing is to be decided. The lock of the engine guards all but `ran`.

    Attributes:
        interpreted_calls, interpreted_seconds, compiled_calls, compiled_seconds: calls, by the form that ran.
        interpreted_samples: seconds of the latest interpreted calls.
        compile_seconds: spent in the compiler.
        usual: seconds of a call of the present form when the worker is idle; 0: unknown.
        skipped: calls, after the last timed one, that are not timed; the next timed one adds their time.
        untimed: those of them that are still to come.
        waiting: on trial: the seconds of the last compiled call, until an interpreted one is timed for comparison.
        earlier: seconds that earlier processes spent interpreting it.
        library_share: the fraction of an interpreted call that compiling cannot shorten; None: not measured.
        looked: whether the store was searched for it.
        seen: how many of the family's programs for open sizes it was compared with.
        settings, patience: under these settings, nothing is decided before this many seconds of interpreting.
        audited: `seconds` when it was last compared with the reference.
        audit_seconds: that a comparison takes; infinite if there can be none. It takes longer where results differ.
        comparisons: with the reference, so far.
        found: by the last of them, in words.
        found_at: in which call that was.
        expected: seconds that an interpreted call takes without blocks of steps, which may be compiled; 0: unknown.
        settled: the settings under which it is never compiled by itself: it is too short, or nothing is compiled.
        asked: whether it is compiled as soon as the worker is at no other program of the family.
    """

    interpreted_calls: int = 0
    interpreted_seconds: float = 0.0
    compiled_calls: int = 0
    compiled_seconds: float = 0.0
    interpreted_samples: collections.deque[float] = attrs.field(factory=lambda: collections.deque(maxlen=SAMPLES))
    compile_seconds: float = 0.0
    usual: float = 0.0
    skipped: int = 0
    untimed: int = 0
    waiting: float | None = None
    earlier: float = 0.0
    library_share: float | None = None
    looked: bool = False
    seen: int = 0
    settings: Config | None = None
    patience: float = 0.0
    settled: Config | None = None
    audited: float = 0.0
    audit_seconds: float = 0.0
    comparisons: int = 0
    found: str = ""
    found_at: int = 0
    expected: float = 0.0
    asked: bool = False

    # -- calls

    def ran(self, seconds: float, compiled: bool) -> None:
        """Add a call at rest, and say how many after it need not be timed; see `TIMED`."""
        self.took(seconds)
        self.count(seconds, compiled, self.skipped)
        short = self.usual < SHORT_SECONDS and self.calls >= KNOWN_CALLS
        self.skipped = self.untimed = TIMED - 1 if short else 0

    def ran_untimed(self, compiled: bool) -> None:
        """Add a call at rest that was not timed."""
        left = self.untimed
        self.untimed = left - 1 if left > 0 else 0  # other threads may have come first
        if compiled:
            self.compiled_calls += 1
        else:
            self.interpreted_calls += 1

    def count(self, seconds: float, compiled: bool, untimed: int = 0) -> None:
        """Add a call, and the time of others before it that were counted but not timed."""
        total = seconds + untimed * self.usual
        if compiled:
            self.compiled_calls += 1
            self.compiled_seconds += total
        else:
            self.interpreted_calls += 1
            self.interpreted_seconds += total
            self.interpreted_samples.append(seconds)

    def count_blocks(self, seconds: float, expected: float) -> None:
        """Add an interpreted call of which a loop went on in blocks.

        Args:
            expected: what it would have taken step by step.
        """
        self.interpreted_calls += 1
        self.interpreted_seconds += seconds
        self.expected = expected

    def took(self, seconds: float) -> None:
        """Note what an undisturbed call took. Fast calls count more: something else may have disturbed slow ones."""
        usual = self.usual
        if not usual:
            self.usual = seconds
        elif seconds < usual:
            self.usual = usual + 0.5 * (seconds - usual)
        else:
            self.usual = usual + 0.1 * min(seconds - usual, 0.2 * usual)

    # -- what was found, and what is due

    def restart(self, usual: float) -> None:
        """Begin anew with another form.

        Args:
            usual: seconds of a call of this form; 0: unknown.
        """
        self.usual, self.waiting, self.settings, self.settled = usual, None, None, None
        self.asked = False

    def forget_samples(self) -> None:
        """Compare with interpreted calls from now on alone."""
        self.interpreted_samples.clear()

    def owe(self, seconds: float | None) -> None:
        """Have the next call interpreted, for comparison with a compiled one that took so long. None: it has run."""
        self.waiting = seconds

    def settle(self, settings: Config | None) -> None:
        """Note that nothing is to be decided under these settings; None: something may be under any."""
        self.settled = settings

    def ask(self, asked: bool) -> None:
        """Note whether it is to be compiled as soon as the worker is free for it."""
        self.asked, self.settled = asked, None

    def wait(self, settings: Config, patience: float) -> None:
        """Note that nothing is to be decided under these settings before so many seconds of interpreting."""
        self.settings, self.patience = settings, patience

    def compare(self, count: int) -> None:
        """Note that the program was compared with so many programs for open sizes."""
        self.seen = count

    def look(self) -> None:
        """Note that the store is searched."""
        self.looked = True

    def learn_earlier(self, seconds: float) -> None:
        """Note what earlier processes spent interpreting the program."""
        self.earlier = seconds

    def learn_library_share(self, share: float) -> None:
        """Note the fraction of an interpreted call that compiling cannot shorten."""
        self.library_share = share

    def learn_compile(self, seconds: float) -> None:
        """Note what compiling took."""
        self.compile_seconds = seconds

    def compared(self, seconds: float, found: str) -> None:
        """Note a comparison with the reference: its seconds, and what it found in words."""
        before = self.audit_seconds if self.audit_seconds < math.inf else 0.0
        self.audited, self.audit_seconds = self.seconds, max(seconds, before / 2)
        self.comparisons, self.found, self.found_at = self.comparisons + 1, found, self.calls

    def recall(self, seconds: float, since: float) -> None:
        """Note a comparison of an earlier process: its seconds, and those that the form is taken to have run since."""
        self.audited, self.audit_seconds = self.seconds - since, max(seconds, self.audit_seconds)

    # -- what follows

    def spent(self) -> float:
        """Return the seconds of interpreting, here and in earlier processes."""
        return self.interpreted_seconds + self.earlier

    @property
    def calls(self) -> int:
        """Calls, in all forms."""
        return self.interpreted_calls + self.compiled_calls

    @property
    def seconds(self) -> float:
        """Seconds of these calls."""
        return self.interpreted_seconds + self.compiled_seconds

    def audit_due(self, share: float) -> bool:
        """Whether it is to be compared again, so that comparisons take this share of its time."""
        return share == 1.0 or (self.seconds - self.audited) * share > self.audit_seconds

    def figures(self) -> dict[str, Any]:
        """Return what the program has cost, by the names that statistics and the ledger on disk share."""
        names = "interpreted_calls", "interpreted_seconds", "compiled_calls", "compiled_seconds", "compile_seconds"
        return {name: getattr(self, name) for name in names}

    @property
    def interpreted_call(self) -> float | None:
        """Seconds of an undisturbed interpreted call; None if there was none.

        A quarter of the timed calls took less. Other programs on the same cores make the threads of a torch operation
        wait for one another. A call may then take a hundred times as long.
        """
        samples = sorted(self.interpreted_samples)
        return samples[len(samples) // 4] if samples else None

    @property
    def saved_seconds(self) -> float | None:
        """Interpreted minus compiled time of the compiled calls; None if it was never interpreted."""
        call = self.interpreted_call
        return None if call is None else self.compiled_calls * call - self.compiled_seconds

    @property
    def break_even_calls(self) -> int | None:
        """Compiled calls after which the compile is paid back; None if unknown, or if it never is."""
        call = self.interpreted_call
        if call is None or not self.compiled_calls:
            return None
        gain = call - self.compiled_seconds / self.compiled_calls
        return int(self.compile_seconds / gain) + 1 if gain > 0 else None
