"""When is a program worth compiling? Pure functions of its history, and the detector that users can drive."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Iterable, Sequence

import attrs

BASE_SECONDS = 1.5
"""Expected compile time of an empty program, before any compile was measured."""

SECONDS_PER_OP = 0.015
"""Expected compile time of one more operation, before any compile was measured."""

WORKER_START_SECONDS = 2.0
"""Expected seconds until a worker has started, beside those of a first compile in this process."""

LOOP_SECONDS, NATIVE_OP_SECONDS = 0.3, 0.0013
"""Expected compile time of what is compiled as a whole by the C++ compiler alone, and that of each operation in it."""

AFTER_LOSS = 0.25
"""Of an interpreted call, the fraction that Inductor should save, at most, once another compiled form was slower."""

TRIAL = 20
"""Compiled calls, and as many interpreted ones between them, that are timed before a program is judged."""

TRIAL_SHARE = 0.1
"""Of the time of a program that was never interpreted here, the fraction that timing it interpreted may take."""

UNKNOWN_SECONDS = 0.1
"""Of an interpreted call of a program with loops that no process has interpreted, for that purpose."""

OPERATION_SECONDS, BYTE_SECONDS, GPU_BYTE_SECONDS = 5e-6, 1e-9, 1e-12
"""The same for one without loops: of each operation, and of each byte that it reads or writes, on a CPU and a GPU."""

EARLIER_SECONDS = 30.0
"""The expected seconds that the compiles of earlier processes count for, at most, beside those of this one."""

CLEAR = 1.5
"""A speedup that needs no more than `CLEAR_TRIAL` pairs of calls, if all after the first but one have it."""

CLEAR_TRIAL = 6
"""See `CLEAR`. A loop may be interpreted a thousand times as slowly: twenty calls of that would be too many."""

SAMPLES = 32
"""Interpreted calls whose times are kept for that comparison."""


REVIEW_SHARE = 0.1
"""Of the time of a program, the fraction that all its trials after the first may take."""


class Advice(enum.Enum):
    WAIT = "wait"
    COMPILE = "compile"
    NEVER = "never"


@attrs.frozen
class History:
    """What is known of one signature: operations, interpreted calls, seconds spent interpreting."""

    ops: int
    calls: int
    seconds: float


@attrs.frozen
class Policy:
    """The settings a decision depends on; see `gtrace.core.base.config.Config` for each."""

    auto_compile: bool
    compile: bool
    hot_threshold: int | None
    min_seq: int


def native_seconds(sizes: Iterable[int]) -> float:
    """Return the seconds that the C++ compiler should take for programs, each of so many operations.

    >>> native_seconds([100, 100])
    0.86
    """
    return sum(LOOP_SECONDS + NATIVE_OP_SECONDS * size for size in sizes)


@attrs.define
class CostModel:
    """Expected compile seconds, learned from past compiles: their total time over their expected total.

    Attributes:
        expected, spent: seconds, over all compiles so far.
        startup: further seconds expected for the first compile of the process.
    """

    expected: float = 0.0
    spent: float = 0.0
    startup: float = 0.0

    def predict(self, ops: int) -> float:
        """Return the seconds that compiling a program of `ops` operations should take.

        >>> CostModel().predict(10)
        1.65
        """
        prior = BASE_SECONDS + SECONDS_PER_OP * ops
        # the prior counts as one compile, so that a single odd measurement does not dominate the model
        scale = (self.spent + prior) / (self.expected + prior)
        return prior * scale + self.startup

    def learn_earlier(self, compiles: Iterable[tuple[int, float]]) -> None:
        """Take the compiles of earlier processes, (operations, seconds), into account.

        >>> model = CostModel()
        >>> model.learn_earlier([(100, 6.0)] * 10)
        >>> round(model.predict(100), 2)
        5.73
        """
        pairs = list(compiles)
        expected = sum(BASE_SECONDS + SECONDS_PER_OP * ops for ops, _ in pairs)
        if expected:
            weight = min(1.0, EARLIER_SECONDS / expected)
            self.expected += weight * expected
            self.spent += weight * sum(seconds for _, seconds in pairs)

    def learn(self, ops: int, seconds: float) -> None:
        """Take a compile of this process into account."""
        self.expected += BASE_SECONDS + SECONDS_PER_OP * ops
        self.spent += max(seconds - self.startup, 0.0)
        self.startup = 0.0


def decide(history: History, policy: Policy, expected_seconds: float) -> Advice:
    """Decide whether to compile a signature now.

    Without a fixed threshold this is the rent-or-buy rule (Karlin et al., 1988): compile once the time already spent
    interpreting equals the expected time of compiling. The total is then at most twice that of the better choice made
    in hindsight.

    >>> policy = Policy(auto_compile=True, compile=False, hot_threshold=None, min_seq=3)
    >>> decide(History(ops=10, calls=40, seconds=1.0), policy, expected_seconds=2.0)
    <Advice.WAIT: 'wait'>
    >>> decide(History(ops=10, calls=80, seconds=2.0), policy, expected_seconds=2.0)
    <Advice.COMPILE: 'compile'>
    """
    if history.ops < policy.min_seq:
        return Advice.NEVER
    if policy.compile:
        return Advice.COMPILE
    if not policy.auto_compile:
        return Advice.NEVER
    if policy.hot_threshold is not None:
        return Advice.COMPILE if history.calls >= policy.hot_threshold else Advice.WAIT
    return Advice.COMPILE if history.seconds >= expected_seconds else Advice.WAIT


def split_work(sizes: Sequence[int], here: CostModel, there: CostModel) -> list[bool]:
    """Say for each of several compiles whether it is for this process, so that it and the worker end at the same time.

    The longest go first, each to whoever would be done with it earlier (Graham, 1969).

    Args:
        sizes: operations of each program.
        here, there: the costs of this process, and of the worker.

    >>> split_work([100, 100, 100, 100, 100], CostModel(startup=4), CostModel(startup=6))
    [True, False, True, False, True]
    """
    own = [True] * len(sizes)
    until = {True: here.startup, False: there.startup}
    for k in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        seconds = {True: here.predict(sizes[k]) - here.startup, False: there.predict(sizes[k]) - there.startup}
        own[k] = until[True] + seconds[True] <= until[False] + seconds[False]
        until[own[k]] += seconds[own[k]]
    return own


def judge(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the speedup of a compiled program: the median ratio of (interpreted, compiled) seconds of paired calls.

    None while there are too few of them.
    """
    ratios = [interpreted / max(compiled, 1e-9) for interpreted, compiled in pairs]
    if len(pairs) < TRIAL:
        clear = len(pairs) >= CLEAR_TRIAL and sorted(ratios[1:])[1] >= CLEAR
        return statistics.median(ratios[1:]) if clear else None
    return statistics.median(ratios[TRIAL // 4 :])  # the first compiled calls warm caches up


def review_due(usual: float, rival: float, spent: float, trial: float) -> bool:
    """Whether the verdict on a program is out of date, because the load of the machine is another one.

    Args:
        usual: seconds of a call in its present form, as of late.
        rival: seconds of a call in the form that lost, when it did.
        spent: seconds that the program has run since then.
        trial: seconds that the trial took.

    >>> review_due(usual=0.003, rival=0.002, spent=1.0, trial=0.06)
    True
    >>> review_due(usual=0.001, rival=0.002, spent=1.0, trial=0.06)
    False
    """
    return usual > rival and trial <= REVIEW_SHARE * spent
