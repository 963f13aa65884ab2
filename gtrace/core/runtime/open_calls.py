"""Calls of recordings by code for open sizes: whether it is right, whether it is faster, and who asks for it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

import attrs
import torch

from gtrace.core.backends.interpreter.profile import run_profiled
from gtrace.core.backends.interpreter.run_errors import REFUSALS, refuse
from gtrace.core.backends.symbolic import SymbolicProgram
from gtrace.core.base.config import config
from gtrace.core.ir.graph import Graph, RecordedGraph, print_graph
from gtrace.core.passes.subgraph_calls import communicates, has_effects
from gtrace.core.runtime import policy as policies
from gtrace.core.runtime import reports
from gtrace.core.runtime.comparisons import ALONE, Comparisons, warn
from gtrace.core.runtime.decisions import Action
from gtrace.core.runtime.open_parts import Cuts
from gtrace.core.runtime.open_routes import OpenRoute, Run
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.tier_controller import TierController

Tensors = Sequence[torch.Tensor]

COMPARED = 2
"""Calls by new code that are compared with the recording, at least."""


class Engine(Protocol):
    """What calls need of the engine."""

    tiering: TierController
    comparisons: Comparisons
    cuts: Cuts


def aside(engine: Engine) -> Engine:
    """Return an engine that cuts programs as this one does, and has programs of its own."""
    made = type(engine)()
    made.cuts = engine.cuts
    made.tiering.leave_out_as(engine.tiering)
    return made


def may_run_twice(graph: Graph) -> bool:
    """Whether nobody notices if a program runs twice, to be compared."""
    return not communicates(graph) and not has_effects(graph)


@attrs.define(eq=False)
class _Trial:
    """Calls that ran as recorded and by code, one after the other.

    Attributes:
        pairs: the seconds of both.
        faster: whether code was; None: that is not known yet.
        compared: how many were compared.
    """

    pairs: list[tuple[float, float]] = attrs.field(factory=list)
    faster: bool | None = None
    compared: int = 0


@attrs.define(eq=False)
class OpenCalls:
    """Runs the recordings of a structure by code for open sizes, once there is some.

    Attributes:
        route: which code that is.
        calls: how many ran by it.
        stuck: whether no program is left for which code could be asked: one more size is to be prepared.
    """

    route: OpenRoute
    engine: Engine
    calls: int = 0
    stuck: bool = False
    _wrong: bool = False
    _unmeasured: list[Program] = attrs.field(factory=list)
    _trials: dict[tuple[SymbolicProgram, ...], _Trial] = attrs.field(factory=dict)
    _seconds: float = 0.0  # since a call was compared
    _comparing: float = 0.0  # seconds of a comparison

    def __attrs_post_init__(self) -> None:
        for program in self.route.programs:
            program.family.meet_many()

    @property
    def stale(self) -> bool:
        """Whether the engine has forgotten one of the programs."""
        return any(program.forgotten for program in self.route.programs)

    def run(
        self,
        flat: Any,
        numbers: Sequence[Any],
        tensors: Tensors,
        recorded: Run,
        decode: Callable[[], RecordedGraph],
    ) -> list[torch.Tensor] | None:
        """Run a recording; None: it has sizes that the route is not for.

        Args:
            flat: its operations, by place.
            numbers: its numbers, by slot.
            tensors: its inputs, by slot.
            recorded: runs it as it was recorded.
            decode: returns it as a graph.
        """
        if self._wrong:
            return None
        dims = self.route.reading.of(flat, numbers, tensors)
        if dims is None:
            return None
        codes, run = self.route.bound(dims)
        if run is None:
            return self._without(tensors, recorded, decode)
        trial = self._trials.setdefault(codes, _Trial())
        if trial.faster is False:
            return recorded(tensors)
        self.calls += 1
        given = self.route.reading.inputs(numbers, tensors)
        share = config.current.audit
        if trial.compared < COMPARED or share == 1.0 or self._seconds * share > self._comparing:
            return self._compared(trial, codes, run, given, tensors, recorded, decode)
        if trial.faster is None:
            return self._tried(trial, codes, run, given, tensors, recorded)
        start = perf_counter()
        results = _called(run, given)
        self._seconds += perf_counter() - start
        return results

    @property
    def is_settled(self) -> bool:
        """Whether some code was compared and has won its trial."""
        won = [trial for trial in self._trials.values() if trial.faster and trial.compared >= COMPARED]
        return bool(won) and not self._wrong and not self.stale

    def run_alone(self, dims: Sequence[int], tensors: Tensors) -> list[torch.Tensor] | None:
        """Run code for sizes that the route allows, of which there is no recording.

        None: there has to be one, because no code was compared and has won its trial, or because a comparison is due.

        Args:
            dims: the sizes of the inputs.
            tensors: the inputs.
        """
        share = config.current.audit
        if self._wrong or self.stale or share == 1.0 or self._seconds * share > self._comparing:
            return None
        codes, run = self.route.bound(dims)
        trial = self._trials.get(codes)
        if run is None or trial is None or not trial.faster or trial.compared < COMPARED:
            return None
        start = perf_counter()
        results = _called(run, self.route.reading.alone(dims, tensors))
        self._seconds += perf_counter() - start
        self.calls += 1
        return results

    def _tried(
        self,
        trial: _Trial,
        codes: tuple[SymbolicProgram, ...],
        run: Run,
        given: list[torch.Tensor],
        tensors: Tensors,
        recorded: Run,
    ) -> list[torch.Tensor]:
        """Make a call in both ways, and time them."""
        code_first = len(trial.pairs) % 2 == 1  # what runs second finds the inputs in the caches
        start = perf_counter()
        got = _called(run, given) if code_first else None
        between = perf_counter()
        recorded(tensors)
        end = perf_counter()
        if got is None:
            got = _called(run, given)
        self._time(trial, codes, end - between, between - start if code_first else perf_counter() - end)
        return got

    def _compared(
        self,
        trial: _Trial,
        codes: tuple[SymbolicProgram, ...],
        run: Run,
        given: list[torch.Tensor],
        tensors: Tensors,
        recorded: Run,
        decode: Callable[[], RecordedGraph],
    ) -> list[torch.Tensor]:
        """Make a call by code and compare it; time both ways if the trial still runs."""
        start, graph = perf_counter(), decode().graph
        before = took = 0.0
        if trial.faster is None:
            recorded(tensors)
            before = perf_counter() - start

        def call() -> list[torch.Tensor]:
            nonlocal took
            begin = perf_counter()
            results = _called(run, given)
            took = perf_counter() - begin
            return results

        inputs = given[: len(self.route.reading.slots)]
        results, problem = self.engine.comparisons.compare_code(graph, inputs, call)
        trial.compared += 1
        self._wrong = bool(problem)
        if problem:
            self._warn(graph, inputs, problem)
        self._time(trial, codes, before, took)
        self._seconds, self._comparing = 0.0, perf_counter() - start
        return results

    def _time(self, trial: _Trial, codes: tuple[SymbolicProgram, ...], recorded: float, code: float) -> None:
        """Add the seconds of a call in both ways to a trial that runs."""
        if trial.faster is None:
            trial.pairs.append((recorded, code))
            speedup = policies.judge(trial.pairs)
            if speedup is not None:
                self._judge(trial, speedup, codes)

    def _judge(self, trial: _Trial, speedup: float, codes: tuple[SymbolicProgram, ...]) -> None:
        """End a trial. Code that was slower is not used for sizes that are prepared either, nor in later processes."""
        trial.faster = speedup >= 1.0
        if not trial.faster:
            before = statistics.median(recorded for recorded, _ in trial.pairs)
            reason = f"compiled {before / speedup * 1e3:.2f} ms, as recorded {before * 1e3:.2f} ms"
            for program in self.route.programs:
                for symbolic in codes:
                    self.engine.tiering.judging.lose(program, symbolic, reason)
        trial.pairs.clear()

    def _warn(self, graph: Graph, given: Tensors, problem: str) -> None:
        """Warn of code that gave other results than the recording. Its programs are compared anew then."""
        self.engine.tiering.judging.doubt(self.route.programs)
        what = f"code for open sizes of a program of {len(graph.nodes)} operations is wrong at one of them"
        form = [line for program in self.route.programs for line in ("it became:", print_graph(program.graph))]
        warn(what, problem, reports.write(what, problem, graph, given, ALONE, form))

    def _without(self, tensors: Tensors, recorded: Run, decode: Callable[[], RecordedGraph]) -> list[torch.Tensor]:
        """Run a recording that has no code yet; ask for code once such calls have taken long enough."""
        start = perf_counter()
        if self._unmeasured:
            graph = decode().graph
            given = [tensors[slot] for slot in self.route.reading.slots]
            results, share = run_profiled(graph, given)
            for program in self._unmeasured:
                program.ledger.learn_library_share(share)
            self._unmeasured = []
        else:
            results = recorded(tensors)
        self._count(perf_counter() - start)
        return results

    def _count(self, seconds: float) -> None:
        """Note a call without code, and ask for code of a program that has none if such calls took long enough."""
        newest = {id(program.family): program for program in self.route.programs}.values()
        whole = sum(program.ops for program in newest)
        for program in newest:
            family = program.family
            with self.engine.tiering.lock:
                family.spend(seconds * program.ops / whole)
            if family.symbolic or family.closed:
                continue
            member = next((one for one in reversed(family.members) if one.forms.is_open), None)
            if member is None:
                self.stuck = True
            elif self.engine.tiering.consider(member).action is Action.MEASURE:
                self._unmeasured.append(member)

    def go_on(self) -> None:
        """Note that one more size is prepared."""
        self.stuck = False


def _called(run: Run, given: Tensors) -> list[torch.Tensor]:
    try:
        return run(given)
    except REFUSALS as error:
        refuse("a program", error)
