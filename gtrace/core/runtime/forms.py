"""The forms of a program, the state that says which of them runs, and the one method that changes it."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from gtrace.core.backends.executable import Executable
from gtrace.core.backends.symbolic import SymbolicProgram
from gtrace.core.base.errors import GtraceError, message
from gtrace.core.base.mechanisms import REVIEWS
from gtrace.core.runtime import policy as policies
from gtrace.core.runtime.program_ledger import Ledger

PARTIAL_CALLS = 4
"""Timed calls of code for parts of a program before it may be given up: one may have been disturbed."""


class State(enum.Enum):
    """What is known of a program's forms."""

    INTERPRETED = "interpreted"
    KEPT = "kept interpreted"
    REQUESTED = "requested"
    PARTIAL = "partly compiled"
    TRIAL = "on trial"
    COMPILED = "compiled"
    REVIEW = "under review"
    DEMOTED = "demoted"
    FAILED = "failed"


class FormEvent(enum.Enum):
    """What happens to a program."""

    KEPT = "nothing of it can or need be compiled"
    REQUESTED = "the worker was asked for code"
    ARRIVED_IN_PART = "some of the code arrived"
    PARTS_SLOWER = "that code was slower"
    WITHDRAWN = "the request brought nothing"
    FAILED = "the compiler failed"
    REFUSED = "an earlier process found the code slower or wrong"
    ADOPTED = "code is there"
    ACCEPTED = "code is there that needs no trial"
    FASTER = "the compiled form was faster"
    SLOWER = "the compiled form was slower"
    REVIEWED = "calls became slower than the rival's"
    DISAGREED = "it computed something else than the reference"
    MISINTERPRETED = "the interpreted form did"
    LEFT_TO_INDUCTOR = "native code is no use to it"


_OPEN = (State.INTERPRETED, State.REQUESTED, State.PARTIAL)
"""States in which a program may still be compiled."""


TRANSITIONS: Mapping[FormEvent, tuple[tuple[State, ...], State]] = {
    FormEvent.KEPT: (_OPEN, State.KEPT),
    FormEvent.REQUESTED: ((State.INTERPRETED,), State.REQUESTED),
    FormEvent.ARRIVED_IN_PART: ((State.REQUESTED, State.PARTIAL), State.PARTIAL),
    FormEvent.PARTS_SLOWER: ((State.PARTIAL,), State.REQUESTED),
    FormEvent.WITHDRAWN: ((State.REQUESTED, State.PARTIAL), State.INTERPRETED),
    FormEvent.FAILED: (_OPEN, State.FAILED),
    FormEvent.REFUSED: (_OPEN, State.DEMOTED),
    FormEvent.ADOPTED: (_OPEN, State.TRIAL),
    FormEvent.ACCEPTED: (_OPEN, State.COMPILED),
    FormEvent.FASTER: ((State.TRIAL, State.REVIEW), State.COMPILED),
    FormEvent.SLOWER: ((State.TRIAL, State.REVIEW), State.DEMOTED),
    FormEvent.REVIEWED: ((State.COMPILED, State.DEMOTED), State.REVIEW),
    FormEvent.DISAGREED: ((State.PARTIAL, State.TRIAL, State.REVIEW, State.COMPILED, State.DEMOTED), State.DEMOTED),
    FormEvent.MISINTERPRETED: (tuple(State), State.KEPT),
    FormEvent.LEFT_TO_INDUCTOR: ((*_OPEN, State.DEMOTED), State.INTERPRETED),
}
"""Of each event the states that have it, and the next state. docs/architecture.md prints this table."""

TIERS: Mapping[State, str] = {
    State.INTERPRETED: "interpreted",
    State.KEPT: "interpreted",
    State.REQUESTED: "interpreted",
    State.PARTIAL: "interpreted",
    State.TRIAL: "compiled",
    State.COMPILED: "compiled",
    State.REVIEW: "compiled",
    State.DEMOTED: "demoted",
    State.FAILED: "failed",
}
"""The states by the names that statistics and the store have for them."""

_AT_REST = (State.KEPT, State.COMPILED, State.DEMOTED, State.FAILED)
"""States that only a comparison or a review leaves: nothing is decided at a call."""


@attrs.frozen(eq=False)
class Code:
    """The compiled form of a program.

    Attributes:
        symbolic: the program for open sizes that it is made of; None: it is for the program's own sizes.
    """

    executable: Executable
    symbolic: SymbolicProgram | None = None


@attrs.define(eq=False)
class Trial:
    """The timing of a compiled program against its interpreted form, in alternating calls.

    Attributes:
        forms: of the programs that run it.
        pairs: (interpreted, compiled) seconds of two calls with the same sizes.
        expected: for programs that were not interpreted before: the seconds that an interpreted call should take.
            These calls are spread out while they are the slower ones. None: every other call is interpreted.
    """

    forms: list[Forms] = attrs.field(factory=list)
    pairs: list[tuple[float, float]] = attrs.field(factory=list)
    expected: float | None = None

    def due(self, ledger: Ledger) -> bool:
        """Whether the next call of the program with this ledger is to be interpreted."""
        if self.expected is None or (self.pairs and self.pairs[-1][0] <= self.pairs[-1][1]):
            return True
        interpreted = self.pairs[-1][0] if self.pairs else max(self.expected, ledger.expected)
        return interpreted * (len(self.pairs) + 1) <= policies.TRIAL_SHARE * ledger.compiled_seconds


@attrs.frozen(eq=False)
class Rival:
    """What the last trial found of the form that lost.

    Attributes:
        seconds: of its calls then, the median.
        trial: seconds that the trial took.
        spent: seconds that the program had run when it ended.
    """

    seconds: float
    trial: float
    spent: float


@attrs.define(eq=False)
class PartialForm:
    """What runs a program while the worker compiles the rest of it.

    Attributes:
        executable: the compiled code that there is; what is missing is interpreted.
        usual: seconds of an interpreted call when the worker is idle; 0: unknown.
        calls: how many of its calls were timed, without the first, which touches code and memory for the first time.
    """

    executable: Executable
    usual: float
    calls: int = -1

    def took(self, seconds: float, ledger: Ledger) -> None:
        """Add an undisturbed call to the ledger."""
        self.calls += 1
        if self.calls:
            ledger.took(seconds)

    def is_slower(self, ledger: Ledger) -> bool:
        """Whether calls take longer than interpreted ones did."""
        return self.calls >= PARTIAL_CALLS and 0.0 < self.usual < ledger.usual


@attrs.define(eq=False)
class Forms:
    """The forms of a program. Only `change` sets them; the lock of the engine is held.

    Attributes:
        interpreted: runs it operation by operation.
        ledger: of the program; it begins anew with each change.
        executable: what runs the next call, unless the program is on trial and the interpreted form has its turn.
        state: what is known of the forms.
        at_rest: whether `executable` agreed with the reference, and runs until a review or an audit is due.
        agreed: the forms whose results agreed with those of the reference.
        doubted: whether a form is compared here, though it agreed in an earlier process.
        compiled: the compiled form; None: there is none that may run.
        partial: compiled code for some of it, while the worker compiles the rest.
        trial: the comparison of both forms, in states "on trial" and "under review".
        rival: what the last one found of the form that lost; it may win the next one.
        reason: why it is failed, demoted or kept interpreted.
        origin: of the latest compiled form: "process", "worker" or "cache"; empty: there was none.
        symbolic: the program for open sizes that this was made of.
        awaited: what the worker was asked for.
    """

    interpreted: Executable
    ledger: Ledger
    executable: Executable = attrs.field(init=False)
    state: State = State.INTERPRETED
    at_rest: bool = False
    agreed: tuple[Executable, ...] = ()
    doubted: bool = False
    compiled: Executable | None = None
    partial: PartialForm | None = None
    trial: Trial | None = None
    rival: Rival | None = None
    reason: str = ""
    origin: str = ""
    symbolic: SymbolicProgram | None = None
    awaited: object = None

    def __attrs_post_init__(self) -> None:
        self.executable = self.interpreted

    def may(self, event: FormEvent) -> bool:
        """Whether the event is one of this state's. A review needs a rival."""
        return self.state in TRANSITIONS[event][0] and (event is not FormEvent.REVIEWED or self.rival is not None)

    def change(
        self,
        event: FormEvent,
        *,
        reason: str = "",
        code: Code | None = None,
        partial: PartialForm | None = None,
        trial: Trial | None = None,
        rival: Rival | None = None,
        awaited: object = None,
        interpreted: Executable | None = None,
    ) -> None:
        """Go to the state that `TRANSITIONS` has for an event. What is not given here is not kept.

        Args:
            reason: why the program is interpreted from now on.
            code: the compiled form that has arrived.
            awaited: what the worker is asked for.
            interpreted: what runs the program operation by operation from now on.

        Raises:
            GtraceError: the state has no such event.
        """
        if not self.may(event):
            expected = f"an event that a program may have while it is {self.state.value}"
            raise GtraceError(message("program", expected, f"{event.value!r}", "This is a fault of gtrace: report it."))
        state, usual = TRANSITIONS[event][1], 0.0
        ran, judged = self.executable, self.trial is not None
        if self.partial is not None and partial is None and code is None:
            usual = self.partial.usual  # of the interpreted form, which runs again
        if code is not None:
            self.compiled, self.origin, self.symbolic = code.executable, code.executable.origin, code.symbolic
        elif event in (FormEvent.DISAGREED, FormEvent.MISINTERPRETED, FormEvent.LEFT_TO_INDUCTOR):
            self.compiled = None
        if interpreted is not None:
            self.interpreted = interpreted
        if event is FormEvent.MISINTERPRETED and self.trial is not None:
            self.trial.forms.remove(self)
        if event in (FormEvent.ARRIVED_IN_PART, FormEvent.PARTS_SLOWER):
            awaited = self.awaited
        self.state, self.reason = state, reason
        self.partial, self.trial, self.rival, self.awaited = partial, trial, rival, awaited
        if partial is not None:
            self.executable = partial.executable
        elif TIERS[state] == "compiled":
            assert self.compiled is not None, "it came with the code"
            self.executable = self.compiled
        else:
            self.executable = self.interpreted
        self.agreed = tuple(form for form in (self.interpreted, self.compiled) if form in self.agreed)
        self.settle()
        # a form that keeps running keeps its usual time, unless a trial has just measured it
        self.ledger.restart(self.ledger.usual if self.executable is ran and not judged else usual)

    def agree(self, executable: Executable) -> None:
        """Note that a form gave what the reference gives."""
        if executable not in self.agreed:
            self.agreed = (*self.agreed, executable)
        self.settle()

    def doubt(self, agreed: tuple[Executable, ...] = ()) -> None:
        """Have the next call compared. Forms that did not agree with the reference of today are compared again."""
        self.agreed, self.at_rest = agreed, False
        self.doubted = self.doubted or not agreed
        self.ledger.settle(None)

    def settle(self) -> None:
        """Come to rest, if nothing is to be decided, and the form that runs is believed."""
        self.at_rest = self.state in _AT_REST and self.executable in self.agreed

    @property
    def tier(self) -> str:
        """The state by its name in statistics: "interpreted", "compiled", "failed" or "demoted"."""
        return TIERS[self.state]

    @property
    def is_open(self) -> bool:
        """Whether the program may still be compiled: there is no code, and no verdict."""
        return self.state in _OPEN

    @property
    def is_requested(self) -> bool:
        """Whether the worker is compiling it."""
        return self.awaited is not None

    @property
    def review_due(self) -> bool:
        """Whether the form that lost the last trial may be the faster one by now."""
        rival, ledger = self.rival, self.ledger
        if rival is None or not REVIEWS.on or ledger.usual <= rival.seconds:
            return False
        return policies.review_due(ledger.usual, rival.seconds, ledger.seconds - rival.spent, rival.trial)

    @property
    def sampled(self) -> bool:
        """Whether the next call is one of those that the trial compares."""
        trial, ledger = self.trial, self.ledger
        return trial is not None and (ledger.waiting is not None or trial.due(ledger))

    def next_form(self) -> Executable:
        """Return what runs the next call."""
        if self.trial is not None and self.ledger.waiting is not None:
            return self.interpreted
        return self.executable
