"""Compiles that a caller asks for, as ``gt.jit`` does, and how long it waits for them.

A structure is waited for once, whatever its sizes: a call waits for the seconds that earlier calls have left. While
the worker is at one member of a family, no other one is requested: the code that comes may be for its sizes too.
"""

from __future__ import annotations

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


def compile_asked(tiers: Tiers, programs: Sequence[Program], wait: float, graph: Graph | None) -> None:
    """Have programs compiled, and wait for it.

    Args:
        wait: seconds, at most, in all calls for a structure; after that programs are interpreted until they are
            compiled. No time is spent on waiting if none is expected to be compiled by then. Infinity: this thread
            compiles too, and waits to the end.
        graph: what the programs were made of; None: they are no jitted function's, and are waited for anew.
    """
    settings = config.current
    to_the_end = wait == math.inf or settings.compile
    start = perf_counter()
    structure = None if graph is None or to_the_end else hash(skeleton(graph)[0])
    earlier = 0.0 if structure is None else tiers.waited.get(structure, 0.0)
    end = start + wait - earlier
    here: list[Program] = []
    short: list[Program] = []
    missing: list[Program] = []
    versions = {program.family: program.family.versions for program in programs}
    for program in programs:
        if not settings.background or not tiers.ahead_of_time(program):
            if may_ask(program):
                here.append(program)
        elif not program.forms.is_open or tiers.join(program):
            continue
        elif not to_the_end and program.family.is_busy:
            tiers.ask(program, hot=False)
        else:
            program.ledger.look()
            if tiers.find(program):
                continue
            if to_the_end and is_native(program, wait):
                here.append(program)
            elif may_ask(program) if to_the_end else is_early(program, versions[program.family]):
                (short if is_native(program, wait) else missing).append(program)
    sizes = [program.ops for program in missing]
    alone = not to_the_end or worker.pending > 0
    cost = _cost_from_now(tiers.worker_cost)
    split = [to_the_end] * len(sizes)
    if not alone and find_python() is not None:
        split = policies.split_work(sizes, tiers.cost, cost)
    here += [program for program, own in zip(missing, split, strict=True) if own]
    there = [*short, *[program for program, own in zip(missing, split, strict=True) if not own]]
    for program in there:
        tiers.ask(program, hot=True)
    total = len(here) + len(there)
    # where another thread compiles in this process, waiting for that counts too
    bounded = settings.background and not to_the_end

    def done(of: Sequence[Program] = programs) -> bool:
        pending = sum(program.forms.is_requested or program.ledger.asked for program in of)
        if Awaiting in bus.wanted:
            bus.emit(Awaiting(max(total - pending - len(here), 0), total))
        return not pending

    try:
        while here:
            done()
            tiers.compile(here.pop(0), max(end - perf_counter(), 0.0) if bounded else math.inf)
        seconds = min(end - perf_counter(), threading.TIMEOUT_MAX)
        if to_the_end or (sizes and cost.predict(min(sizes)) <= seconds):
            worker.wait(seconds, done)
        elif short and seconds > 0:
            worker.wait(seconds, lambda: done(short))
    finally:
        if structure is not None and there:
            tiers.waited.remember(structure, earlier + perf_counter() - start)
        if Awaiting in bus.wanted:
            bus.emit(Awaiting(total, total, over=True))


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
