"""Compiles that a caller asks for, as ``gt.jit`` does, and how long it waits for them.

A structure is waited for once, whatever its sizes: a call waits for the seconds that earlier calls have left. While
the worker is at one member of a family, no other one is requested: the code that comes may be for its sizes too.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

import attrs

from gtrace.core.backends.inductor.tuned import IMPORT_SECONDS
from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.config import config
from gtrace.core.base.events import Awaiting, bus
from gtrace.core.base.mechanisms import OPEN_SIZES
from gtrace.core.ir.graph import Graph, skeleton
from gtrace.core.runtime import policy as policies
from gtrace.core.runtime.program import OWN_SIZES, Program
from gtrace.core.runtime.worker.client import find_python, worker

EARLY = 3
"""Versions of a structure that a jitted function has compiled before they are hot: `OWN_SIZES`, and an open one."""


class Tiers(Protocol):
    """What moves programs between tiers; see `gtrace.core.runtime.tier_controller.TierController`."""

    waited: BoundedTable[int, float]
    cost: policies.CostModel
    worker_cost: policies.CostModel

    def ahead_of_time(self, program: Program) -> bool: ...

    def join(self, program: Program) -> bool: ...

    def find(self, program: Program) -> bool: ...

    def ask(self, program: Program, hot: bool) -> None: ...

    def compile(self, program: Program, wait: float = math.inf) -> None: ...


@attrs.frozen
class _Patience:
    """How long a call waits.

    Attributes:
        seconds: at most, in all calls for the structure.
        to_the_end: whether this thread compiles too, and waits for everything.
        structure: whose earlier calls count; None: none count.
        start: when the waiting began, as if earlier calls had waited just before this one.
    """

    seconds: float
    to_the_end: bool
    structure: int | None
    start: float

    @property
    def left(self) -> float:
        """Seconds until the call stops waiting."""
        return self.start + self.seconds - perf_counter()


@attrs.define(eq=False)
class _Work:
    """Programs that are to be compiled, by who compiles them.

    Attributes:
        here: this thread.
        short: the worker, by the C++ compiler alone.
        long: the worker, by Inductor.
        begun: how many this thread has begun with.
    """

    here: list[Program] = attrs.field(factory=list)
    short: list[Program] = attrs.field(factory=list)
    long: list[Program] = attrs.field(factory=list)
    begun: int = 0

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self.here) + len(self.short) + len(self.long)

    def share(self, cost: policies.CostModel, worker_cost: policies.CostModel) -> None:
        """Give this thread its share of what Inductor compiles, and all of it if the worker is not free."""
        long = self.long
        own = [True] * len(long)
        if not worker.pending and find_python() is not None:
            own = policies.split_work([program.ops for program in long], cost, worker_cost)
        self.here += itertools.compress(long, own)
        self.long = [program for program, here in zip(long, own, strict=True) if not here]

    def is_over(self, awaited: Sequence[Program]) -> bool:
        """Whether the worker has done its part of these programs. Who watches is told how far everything is."""
        pending = sum(program.forms.is_requested or program.ledger.asked for program in awaited)
        if Awaiting in bus.wanted:
            bus.emit(Awaiting(max(self.total - pending - (len(self.here) - self.begun), 0), self.total))
        return not pending


def compile_asked(tiers: Tiers, programs: Sequence[Program], wait: float, graph: Graph | None) -> None:
    """Have programs compiled, and wait for it.

    Args:
        wait: seconds, at most, in all calls for a structure; after that programs are interpreted until they are
            compiled. No time is spent on waiting if none is expected to be compiled by then. Infinity: this thread
            compiles too, and waits to the end.
        graph: what the programs were made of; None: they are no jitted function's, and are waited for anew.
    """
    patience = _patience(tiers, wait, graph)
    work = _work(tiers, programs, patience)
    cost = _cost_from_now(tiers.worker_cost)
    if patience.to_the_end:
        work.share(tiers.cost, cost)
    for program in (*work.short, *work.long):
        tiers.ask(program, hot=True)
    # where another thread compiles in this process, waiting for that counts too
    bounded = config.current.background and not patience.to_the_end
    try:
        for program in work.here:
            work.is_over(programs)
            work.begun += 1
            tiers.compile(program, max(patience.left, 0.0) if bounded else math.inf)
        seconds = min(patience.left, threading.TIMEOUT_MAX)
        if patience.to_the_end or (work.long and cost.predict(min(program.ops for program in work.long)) <= seconds):
            worker.wait(seconds, lambda: work.is_over(programs))
        elif work.short and seconds > 0:
            worker.wait(seconds, lambda: work.is_over(work.short))
    finally:
        if patience.structure is not None and (work.short or work.long):
            tiers.waited.remember(patience.structure, perf_counter() - patience.start)
        if Awaiting in bus.wanted:
            bus.emit(Awaiting(work.total, work.total, over=True))


def _patience(tiers: Tiers, wait: float, graph: Graph | None) -> _Patience:
    """Return how long a call waits that was asked to wait for so many seconds; see `compile_asked`."""
    start = perf_counter()
    to_the_end = wait == math.inf or config.current.compile
    structure = None if graph is None or to_the_end else hash(skeleton(graph)[0])
    earlier = 0.0 if structure is None else tiers.waited.get(structure, 0.0)
    return _Patience(wait, to_the_end, structure, start - earlier)


def _work(tiers: Tiers, programs: Sequence[Program], patience: _Patience) -> _Work:
    """Say who compiles which of the programs. Those that have code get it, and some are asked for after others."""
    work, background = _Work(), config.current.background
    versions = {program.family: program.family.versions for program in programs}
    for program in programs:
        if not background or not tiers.ahead_of_time(program):
            if may_ask(program):
                work.here.append(program)
            continue
        if not program.forms.is_open or tiers.join(program):
            continue
        if program.family.is_busy and not patience.to_the_end:
            tiers.ask(program, hot=False)
            continue
        program.ledger.look()
        if tiers.find(program):
            continue
        native = is_native(program, patience.seconds)
        if not patience.to_the_end:
            if is_early(program, versions[program.family]):
                (work.short if native else work.long).append(program)
        elif native:
            work.here.append(program)
        elif may_ask(program):
            work.long.append(program)
    return work


def is_native(program: Program, wait: float) -> bool:
    """Whether the C++ compiler alone compiles a program, within so many seconds.

    That takes a third of a second for a loop, less than a worker takes to start.
    """
    return program.natively and program.native_seconds <= wait


def may_ask(program: Program) -> bool:
    """Whether a caller may have a program compiled before it is hot.

    After one of its compiled forms was slower, Inductor has to be worth it first, by the rule for undecorated code.
    """
    return program.natively or not program.lost


def is_early(program: Program, versions: int) -> bool:
    """Whether a jitted function has a program compiled before that has become hot.

    That holds for the first sizes of a structure, and for open ones. Where sizes follow no rule, most come once.

    Args:
        versions: compiled ones of the structure.
    """
    family = program.family
    if not may_ask(program):
        return False
    if versions < OWN_SIZES or program.dims in family.exact:
        return True
    if versions >= EARLY or not OPEN_SIZES.on or family.closed or family.is_tried:
        return False
    if family.relate(program) is None:
        family.tried = family.count
        return False
    return True


def _cost_from_now(cost: policies.CostModel) -> policies.CostModel:
    """Return the cost of the worker, which may have to start again."""
    if worker.pid is not None or cost.startup:
        return cost
    return attrs.evolve(cost, startup=IMPORT_SECONDS + policies.WORKER_START_SECONDS)
