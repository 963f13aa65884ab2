"""What to do about a program before its next call: a function of its state, its ledger, its family and the settings."""

from __future__ import annotations

import enum
import math
from typing import Protocol

import attrs

from gtrace.core.base.config import Config
from gtrace.core.runtime import policy as policies
from gtrace.core.runtime.forms import State
from gtrace.core.runtime.program import Program


class Action(enum.Enum):
    """What is to be done about a program."""

    NOTHING = "it has its code or a verdict, or the worker is at it"
    SETTLE = "it is never compiled under these settings"
    JOIN = "the family may have code for its sizes"
    LOOK = "the store may have code for it"
    WAIT = "it has not cost enough"
    WAIT_APART = "its family has, but its sizes follow no rule"
    MEASURE = "it has, but libraries may take most of its time: measure that"
    COMPILE = "it has cost enough"


@attrs.frozen
class Decision:
    """What to do about a program, and why.

    Attributes:
        patience: seconds of interpreting before there is anything to decide again; None: not known.
        together: whether the whole family has cost enough, and not this program.
        calls, seconds: what they have cost.
    """

    action: Action
    patience: float | None = None
    together: bool = False
    calls: int = 0
    seconds: float = 0.0

    @property
    def waits(self) -> bool:
        """Whether the next call counts for what the family costs."""
        action = self.action
        return action is Action.WAIT or action is Action.WAIT_APART or action is Action.MEASURE


NOTHING, WAIT = Decision(Action.NOTHING), Decision(Action.WAIT)


class Expected(Protocol):
    """Returns what compiling a program is expected to cost the running program; see `TierController.expected`."""

    def __call__(self, program: Program, settings: Config, natively: bool = True) -> float: ...


def decide(program: Program, settings: Config, expected: Expected) -> Decision:
    """Decide what to do about a program. Nothing is changed, but for caches."""
    ledger, family = program.ledger, program.family
    if program.forms.state is not State.INTERPRETED:
        return NOTHING
    compared = ledger.seen == len(family.symbolic)
    if ledger.asked:
        if not compared:
            return Decision(Action.JOIN)
        return WAIT if family.is_busy else Decision(Action.COMPILE)
    patient = ledger.interpreted_seconds < ledger.patience and ledger.settings is settings
    if patient and compared and (family.closed or len(family.members) == 1):
        return WAIT
    policy = policies.Policy(settings.auto_compile, settings.compile, settings.hot_threshold, settings.min_seq)
    by_time = policy.hot_threshold is None
    cost, won = expected(program, settings), program.won
    # the call about to happen counts: from the threshold-th repetition on a program is hot
    calls, seconds = ledger.interpreted_calls + 1, (ledger.interpreted_seconds + ledger.earlier) * won
    own = policies.decide(policies.History(program.ops, calls, seconds), policy, cost)
    if own is policies.Advice.NEVER:
        return Decision(Action.SETTLE)
    if not compared:
        return Decision(Action.JOIN)
    if not ledger.looked and not policy.compile:
        return Decision(Action.LOOK)
    patience, together = None, own is policies.Advice.WAIT
    if together:
        if by_time:
            patience = cost / won - ledger.earlier if won else math.inf
        # each size may be rare, and all together frequent
        closed = bool(family.closed) or family.is_tried
        if family.is_busy or not family.others(program) or (closed and not program.any_length):
            return Decision(Action.WAIT, patience)
        calls, seconds = family.calls + 1, family.seconds * won
        if program.short:
            cost = expected(program, settings, natively=False)
        if policies.decide(policies.History(program.ops, calls, seconds), policy, cost) is not policies.Advice.COMPILE:
            return Decision(Action.WAIT, patience)
        if not closed and family.relate(program) is None:
            return Decision(Action.WAIT_APART, patience)
    measured = not by_time or policy.compile or not program.unmeasured
    return Decision(Action.COMPILE if measured else Action.MEASURE, patience, together, calls, seconds)
