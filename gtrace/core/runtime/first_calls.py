"""Recordings that run as they are, without being prepared.

To prepare a recording is to simplify it, divide it, and bring it into canonical form. That takes as long as a few
calls, or as dozens of calls of a long program with small arrays. It is wasted on a recording that does not come again.
Two kinds often do not: one with sizes that are new at each call, and the first step of a training loop, whose moments
are zeros. So the first call of a long recording runs as it is, and so do the calls of new sizes. What such a run needs
belongs to the structure, so a new size costs nothing but its operations (`open_recordings.py`). A structure that has
cost much is prepared once for all sizes, so that compiled code runs sizes that come once (`open_routes.py`). If nothing
is compiled, long recordings are prepared at their first call, so that all calls have the same bits.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from time import thread_time
from typing import Any

import attrs
import torch

from gtrace.core.backends.cost_model import additions
from gtrace.core.backends.interpreter.run_errors import REFUSALS, refuse
from gtrace.core.base.bounded_tables import PER_OPERATION, SMALL, BoundedTable
from gtrace.core.base.config import config
from gtrace.core.base.events import Ran, bus
from gtrace.core.base.mechanisms import AS_RECORDED, OPEN_SIZES
from gtrace.core.base.torch_internals import profiler_enabled
from gtrace.core.ir.aval import Bundle
from gtrace.core.ir.graph import DeferredSubgraph, Graph, RecordedGraph, subgraphs
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.lifted_scalars import Scalars
from gtrace.core.runtime.open_calls import Engine, OpenCalls, aside, may_run_twice
from gtrace.core.runtime.open_recordings import OpenRecording
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.programs import MAX_PROGRAMS
from gtrace.core.runtime.route_finder import EXAMPLES, Example, Prepare, open_route
from gtrace.core.runtime.routes import New, Parts, RecordedTrace, Route, Strides
from gtrace.core.runtime.worker.client import worker
from gtrace.core.runtime.worker.sharing import sharing

PREPARED = 4
"""Sizes of which every program is prepared at its first call."""

CALLS = 12
"""Calls of one further size that run as they were recorded: preparing takes about what that loses in them."""

PREPARING = 200e-6
"""Seconds that preparing takes for an operation, about, as long as it was not measured."""

SHARE = 16
"""A further size is prepared once calls of others ran as recorded for so many times what that takes.

The policy sees prepared programs only, so it learns of the structure by them."""

LONG_SHARE = 8
"""The same for the first sizes of long programs, which few calls may follow."""

OPENING, EARLIER_OPENING = 32, 8
"""All sizes are prepared at once after calls of so many times the cost of one; after fewer, if earlier processes have
left code: some may be for the structure."""

MOST_FORMS = 4
"""Programs that the recordings of a structure become at some sizes, and not at others."""

PAYS = 2
"""Each size is prepared if a call takes so many times as long as that: compiled code saves half of it, about."""

ASKED = 2
"""Sizes of which a long program of a jitted function is prepared at its first call."""

VARY, RECENT = 2.0, 0.1
"""Calls of larger sizes take longer than the mean, by up to this factor, for no fault of the compiler beside; and the
weight of a call in the mean."""

HASH = 150
"""Bytes of an entry by a hash: two numbers, and its part of the table."""

LONG = 100
"""Operations of a program that is not prepared at its first call, at least."""

MOST_ADDITIONS, MOST_WORK = 1_000_000, 1 << 31
"""The most additions of such a program: on average for an operation, and in all.

With more, preparing may pay in one call. Attention and norms also take more memory as they are written."""

FIRST_CALLS = 64
"""How many of these programs have their numbers remembered until the second call."""


@attrs.define(eq=False)
class Structure:
    """The recordings that differ in their sizes and numbers only.

    Attributes:
        plan: runs them as they were recorded; None: they are always prepared.
        operations: how many each has.
        is_long: whether preparing one takes longer than what it saves in a call.
        prepared: how many sizes were prepared.
        cost: seconds that preparing one takes.
        calls, seconds: of those that ran as recorded, since a size was last prepared.
        mean: seconds of such a call, those of late most.
        examples: recordings of different sizes, of which an open route is made.
        tries, next_try: how often that was tried in vain, and what `prepared` is at the next try.
        spent: seconds of all calls that ran as recorded.
        open: what runs recordings by code for open sizes: one for each of the forms that they get at some sizes.
    """

    plan: OpenRecording | None
    operations: int
    is_long: bool
    cost: float
    prepared: int = 0
    calls: int = 0
    seconds: float = 0.0
    mean: float = 0.0
    examples: list[Example] = attrs.field(factory=list)
    tries: int = 0
    next_try: int = 0
    spent: float = 0.0
    open: list[OpenCalls] = attrs.field(factory=list)

    @classmethod
    def of(cls, program: RecordedGraph) -> Structure:
        """Return the structure of a recording."""
        graph = program.graph
        avals = [*graph.avals, *[node.instr.aval for node in graph.nodes]]
        here = all(a.__class__ is Bundle or a.sharding is None for a in avals)
        count = _operations(graph)
        return cls(OpenRecording.of(program) if here else None, count, _is_long(graph, count), PREPARING * count)

    def is_due(self, asked: bool = False) -> bool:
        """Whether a size that is new is to be prepared: at first, now and then, and where that pays in one call.

        Args:
            asked: whether the user has asked for a compiled program.
        """
        if any(calls.stuck for calls in self.open):
            return True
        if self.prepared < (ASKED if self.is_long else PREPARED) and (asked or not self.is_long):
            return True
        share = SHARE if self.prepared >= PREPARED else LONG_SHARE if self.is_long else 1
        return self.seconds > share * self.cost or self.seconds > PAYS * self.cost * max(self.calls, 1)

    @property
    def may_open(self) -> bool:
        """Whether it is time to make an open route: code may be there, or so much was spent that code may pay."""
        few = len(self.examples) < EXAMPLES or self.prepared < self.next_try
        if few or len(self.open) == MOST_FORMS:
            return False
        share = OPENING if artifacts.empty else min(OPENING, EARLIER_OPENING)
        return self.has_code or self.spent > share * self.cost

    @property
    def has_code(self) -> bool:
        """Whether one of the sizes that were prepared last has code for open sizes."""
        return any(program.family.symbolic for example in self.examples for program in example.programs)

    def learn(self, program: RecordedGraph, numbers: Sequence[Any], programs: tuple[Program, ...]) -> None:
        """Note a recording whose size is prepared."""
        if self.plan is not None and OPEN_SIZES.on:
            made = Example(program, tuple(numbers), programs)
            others = [example for example in self.examples if example.integers != made.integers]
            self.examples = [*others[1 - EXAMPLES :], made]

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Return a block in which a size is prepared."""
        start = thread_time()
        yield
        self.cost = thread_time() - start
        self.prepared += 1
        self.calls, self.seconds = 0, 0.0
        for calls in self.open:
            calls.go_on()

    def open_up(self, engine: Engine, how: Callable[[Any], Prepare]) -> OpenCalls | None:
        """Make the open route of the sizes that were prepared last, and return it; None: there is none.

        Args:
            how: returns what prepares a recording with an engine.
        """
        examples = self.examples
        self.tries += 1
        self.next_try = self.prepared + self.tries
        if all(may_run_twice(example.program.graph) for example in examples):
            route = open_route(examples, how(engine), how(aside(engine)))
            if route is not None:
                OPEN_SIZES.used()
                self.examples, self.spent = [], 0.0
                self.open.append(OpenCalls(route, engine))
                return self.open[-1]
        return None

    def run(
        self,
        instructions: Any,
        scalars: Sequence[Any],
        tensors: Sequence[torch.Tensor],
        decode: Callable[[], RecordedGraph],
    ) -> list[Any]:
        """Run a recording without preparing it: by code for open sizes, or as it is; see `OpenRecording.run`.

        A route of which the engine has forgotten a program is made anew, once other sizes were prepared.

        Args:
            decode: returns it as a graph.
        """
        for calls in self.open.copy():
            if calls.stale:
                self.open.remove(calls)
                continue
            run = functools.partial(self._run_as_it_is, instructions, scalars)
            results = calls.run(instructions, scalars, tensors, run, decode)
            if results is not None:
                return results
        start = thread_time()
        results = self._run_as_it_is(instructions, scalars, tensors)
        seconds = thread_time() - start  # whatever else the machine does
        self.calls += 1
        self.seconds += seconds
        self.spent += seconds
        return results

    def _run_as_it_is(self, instructions: Any, scalars: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
        assert self.plan is not None
        start, run = thread_time(), self.plan.run
        try:
            if worker.pending:
                usual = VARY * self.mean
                results = sharing.run(lambda given: run(instructions, scalars, given), tensors, usual)[0]
            else:
                results = run(instructions, scalars, tensors)
        except REFUSALS as error:
            refuse("a program", error)
        seconds = thread_time() - start
        self.mean = seconds if not self.mean else self.mean + RECENT * (seconds - self.mean)
        return results


class NewSizes:
    """Tells which recordings are not worth preparing yet, and runs them.

    Args:
        engine: prepares recordings.

    Attributes:
        calls: how many calls ran without being prepared.
        by_code: how many of these ran by code for open sizes.
    """

    def __init__(self, engine: Engine) -> None:
        self.calls = 0
        self.by_code = 0
        self._engine = engine
        self._structures: BoundedTable[Hashable, Structure] = BoundedTable(
            MAX_PROGRAMS,
            lambda found: SMALL + PER_OPERATION // 2 * found.operations * (1 + 2 * len(found.examples)),
        )
        self._calls: BoundedTable[int, int] = BoundedTable(MAX_PROGRAMS, HASH)  # by hashes of keys
        self._numbers: BoundedTable[int, Scalars] = BoundedTable(FIRST_CALLS)  # of long ones, in their first call

    def find(
        self, key: Hashable, trace: RecordedTrace, numbers: Sequence[int]
    ) -> tuple[Structure, RecordedGraph | None]:
        """Return the structure of a recording, and its program, if it is to be prepared.

        Args:
            key: that of the recording.
            numbers: of its outputs.
        """
        name = trace.structure(numbers)
        found = self._structures.get(name)
        program = None
        if found is None:
            program = trace.decode(numbers)
            found = Structure.of(program)
            self._structures.remember(name, found)
        elif found.may_open and is_plain():
            found.open_up(self._engine, _recorded)
        known = hash(key)
        calls = self._calls.get(known, 0)
        if self._is_prepared(found, known, calls, program is None):
            self._calls.pop(known, None)
            return found, trace.decode(numbers) if program is None else program
        if not calls and program is not None:
            self._numbers.remember(known, tuple(trace.scalars))
        self._calls.remember(known, calls + 1)
        return found, None

    def _is_prepared(self, found: Structure, known: int, calls: int, met: bool) -> bool:
        """Whether a recording is to be prepared that has run as it is so many times.

        Args:
            met: whether its structure was met before.
        """
        if found.plan is None or not (AS_RECORDED.on and is_plain()):
            return True
        if not calls:
            return found.is_due() if met else not (found.is_long and config.current.auto_compile)
        return calls >= CALLS or known in self._numbers

    def run(
        self,
        found: Structure,
        instructions: Any,
        scalars: Sequence[Any],
        tensors: Sequence[torch.Tensor],
        decode: Callable[[], RecordedGraph],
    ) -> list[Any]:
        """Run a recording without preparing it; see `Structure.run`."""
        before = sum(calls.calls for calls in found.open)
        results = found.run(instructions, scalars, tensors, decode)
        AS_RECORDED.used()
        self.calls += 1
        self.by_code += max(sum(calls.calls for calls in found.open) - before, 0)
        return results

    def structure(self, name: Hashable, program: RecordedGraph) -> Structure:
        """Return the structure of this name, which has this program."""
        found = self._structures.get(name)
        if found is None:
            found = Structure.of(program)
            self._structures.remember(name, found)
        return found

    def known(self, name: Hashable) -> Structure | None:
        """Return the structure of this name, if it was met."""
        return self._structures.get(name)

    def run_alone(self, calls: OpenCalls, dims: Sequence[int], tensors: Sequence[torch.Tensor]) -> list[Any] | None:
        """Run a program by code for open sizes, without a recording; see `OpenCalls.run_alone`."""
        results = calls.run_alone(dims, tensors) if is_plain() else None
        if results is not None:
            self.calls += 1
            self.by_code += 1
        return results

    def numbers_before(self, key: Hashable) -> Scalars | None:
        """Return the numbers of the first call of a program whose second one is due, if that ran as recorded."""
        return self._numbers.pop(hash(key), None)


def _recorded(engine: Any) -> Prepare:
    """Return what prepares a recorded program with an engine."""

    def prepare(graph: Graph, strides: Strides) -> Route | Parts:
        return engine.route_recorded(graph, strides, New(RecordedGraph(graph, [], [], []), (), (), ()))

    return prepare


def _operations(graph: Graph) -> int:
    """Return how many operations a program has, with those in the bodies of named calls."""
    bodies = [sub for node in graph.nodes if node.op.lowered for sub in subgraphs(node.params)]
    return len(graph.nodes) + sum(sub.operations for sub in bodies if isinstance(sub, DeferredSubgraph))


def _is_long(graph: Graph, operations: int) -> bool:
    """Whether preparing a program takes longer than what it saves in one call. A loop may take any time."""
    nodes = graph.nodes
    if operations < LONG or any(node.op.rules.body is not None and not node.op.lowered for node in nodes):
        return False
    if operations > 2 * len(nodes):  # named calls, which run by torch's kernels
        return True
    return additions(graph) <= min(MOST_ADDITIONS * len(nodes), MOST_WORK)


def is_plain() -> bool:
    """Whether nobody wants to know of a call, and interpreting a program is no different from preparing it."""
    settings = config.current
    if settings.deterministic or settings.compile or settings.hot_threshold is not None:
        return False
    return Ran not in bus.wanted and not profiler_enabled()
