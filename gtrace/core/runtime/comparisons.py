"""Compares each form of a program with the reference before it is believed, and again now and then."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Collection, Hashable, Sequence
from time import perf_counter

import attrs
import torch

from gtrace.core.backends.executable import Executable
from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.interpreter.reference import reference, visit
from gtrace.core.backends.interpreter.result_strides import with_strides
from gtrace.core.backends.interpreter.run_errors import REFUSALS, refuse
from gtrace.core.backends.interpreter.yield_points import called_between
from gtrace.core.backends.native.library import watched
from gtrace.core.base.bounded_tables import SMALL, BoundedTable
from gtrace.core.base.config import config
from gtrace.core.base.errors import AuditWarning, ExecutionError, user_location, warn_at
from gtrace.core.base.events import Compared, bus
from gtrace.core.base.mechanisms import COMPARISONS
from gtrace.core.base.torch_internals import profiler_enabled
from gtrace.core.base.torch_modes import deterministic_algorithms, without_modes
from gtrace.core.ir.edit import renumber
from gtrace.core.ir.graph import Graph, print_graph
from gtrace.core.ir.op import stable_hash
from gtrace.core.passes.subgraph_calls import communicates, has_effects, has_loops
from gtrace.core.runtime import reports
from gtrace.core.runtime.agreement import KERNELS_WORSE, WORSE, Comparison, disagreement
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.instruments import INTERPRETED
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.programs import MAX_PROGRAMS
from gtrace.core.runtime.routes import Strides
from gtrace.core.runtime.taken_inputs import Taken, fits, taken
from gtrace.core.runtime.trials import Call, Trials, as_text, operations_seconds

PATIENCE, TIMES, LOOP_TIMES = 1.0, 10.0, 1.0
"""Seconds that the reference may take, or so many times the call, without loops and with them. A native loop runs up to
a thousand times as fast as an interpreted one: waiting longer would seldom help."""

COMPARING, AT_ONCE = 6, 0.02
"""Calls of a recording that run as recorded before one is compared, if a call is expected to take more than so many
seconds and not all is compiled yet. A comparison takes as long as some calls, and what is interpreted gains little: the
recording may not be called that often."""

FIRST_LOOK = 8
"""Calls of a recording after a comparison until somebody looks whether the next one is due."""

_NO_COPIES = "there is no room for copies of its inputs"

ALONE = "lambda f: f"
"""In a report: the function that is undecorated is interpreted."""

EXPORT_PATIENCE = 10.0
"""Seconds that the reference of an exported program may take: its inputs may be drawn, and its loops endless."""

STRAYED = "native code wrote beyond the memory of its results"

Tensors = Sequence[torch.Tensor]


@attrs.define
class Counts:
    """Comparisons so far.

    Attributes:
        compared: calls that were compared with the reference.
        disagreed: those whose results were other ones.
        not_compared: forms that are used without a comparison: it would be noticed, or takes too much memory.
    """

    compared: int = 0
    disagreed: int = 0
    not_compared: int = 0


class _Local(threading.local):
    """What runs in this thread.

    Attributes:
        ran: the forms that ran of a program whose parts are compared as a whole; None: there is no such program.
        separate: whether some of it was compared by itself.
        withdrawn: seconds of calls that were ended, and made again by another form.
    """

    ran: list[tuple[Program, Executable]] | None = None
    separate: bool = False
    withdrawn: float = 0.0


class Comparisons:
    """Compares calls with the reference, and has the forms that are wrong replaced."""

    def __init__(self, judging: Trials) -> None:
        self.counts = Counts()
        self._judging = judging
        self._local = _Local()
        # a jitted function that is made anew is recorded anew
        self._too_long: BoundedTable[Hashable, Whole] = BoundedTable(
            MAX_PROGRAMS, SMALL, lambda whole: any(program.forgotten for program in whole.programs)
        )

    # -- programs

    def begin(self, program: Program, executable: Executable, tensors: Tensors, share: float) -> Taken | None:
        """Return what is needed to compare the call that is about to be made; None: it is not compared.

        It is if its form has not agreed yet, or if an audit is due.

        Args:
            share: the fraction of the time of a run that audits may take.
        """
        forms, ran = program.forms, self._local.ran
        if ran is None:
            watched.strayed = None  # a call that raised left it
        if executable in forms.agreed and (ran is not None or not program.ledger.audit_due(share)):
            return None
        if ran is not None:
            ran.append((program, executable))
            return None
        reason = obstacle(program.graph)
        if reason:
            self._judging.agree(program, executable, math.inf, self.skip(program.signature.exact, reason))
            return None
        try:
            return taken(program.graph, tensors, program.key.donated)
        except (torch.OutOfMemoryError, OSError):
            reason = self.skip(program.signature.exact, _NO_COPIES)
            self._judging.agree(program, executable, math.inf, reason)
            return None

    def end(
        self, program: Program, executable: Executable, inputs: Taken, results: Tensors, took: float
    ) -> list[torch.Tensor]:
        """Compare the results of a call with those of the reference; returns the results to go on with.

        Args:
            took: the seconds of the call.
        """
        with contextlib.closing(inputs.spill):
            return self._end(program, executable, inputs, results, took)

    def _end(
        self, program: Program, executable: Executable, inputs: Taken, results: Tensors, took: float
    ) -> list[torch.Tensor]:
        name = program.signature.exact
        got, problem, seconds, found = self._compared(name, program.graph, program.reference, inputs, results, took)
        if not problem:
            self._judging.agree(program, executable, seconds * self._jitter(name), found)
            return got
        names = self._judging.names(program)
        if self._judging.disagreed(program, executable, problem):
            own = executable.origin == INTERPRETED
            what = f"program {program.signature} was {'rewritten' if own else 'compiled'} into a wrong one"
            key = program.key
            run = ALONE if own else f"lambda f: gt.jit(f, wait=True, backend={key.backend!r}, mode={key.mode!r})"
            lines = [f"the form: {executable.origin}", f"inputs that it may write over: {key.donated}"]
            form = [] if own or artifacts.store is None else reports.code(artifacts.store, names)
            warn(what, problem, reports.write(what, problem, program.graph, inputs.copied(), run, [*lines, *form]))
        return got

    def recalled(self, program: Program) -> Program:
        """Return a program that is new. It runs its reference if an earlier process found its other form wrong."""
        problem = artifacts.find_wrong(lambda: as_text(program)) if COMPARISONS.on else ""
        if problem:
            self._judging.distrust(program, f"{problem}, in an earlier run")
        return program

    def _compared(
        self,
        name: str,
        graph: Graph,
        reference: TensorFunction,
        inputs: Taken,
        results: Tensors,
        took: float,
        worse: float = WORSE,
    ) -> tuple[list[torch.Tensor], str, float, str]:
        """Compare the results of a form with the reference.

        Returns:
            The results to go on with; what is wrong with the form, in words; the seconds that the comparison took; what
            it found, in words. The seconds are infinite if it took too long. Then it ends, and is never made again.
        """
        start = perf_counter()
        strayed, watched.strayed = watched.strayed, None
        got = list(results)
        patience = max(PATIENCE, (LOOP_TIMES if has_loops(graph) else TIMES) * took)
        limit = math.inf if config.current.audit == 1.0 else start + patience

        def go_on() -> bool:
            if perf_counter() > limit:
                raise TimeoutError
            return True

        made = Comparison(graph, got, inputs.spill, worse)
        try:
            with called_between(go_on):
                visit(graph, inputs.copies, made.look, inputs.spill)
            problem = inputs.overwritten() or (STRAYED if strayed else "") or made.problem(inputs.copies)
        except TimeoutError:  # an `OSError` too
            return got, "", math.inf, self.skip(name, "its reference takes too long")
        except (*REFUSALS, ExecutionError, OSError) as error:  # there may be no room for the file of its values
            return got, "", perf_counter() - start, self.skip(name, f"the reference did not run: {error}")
        if problem:  # if the reference does not run again, that is an error: nothing else gives the right results
            got = reference(inputs.copied())
        seconds = perf_counter() - start
        self.count(name, seconds, problem)
        return got, problem, seconds, problem or made.apart

    def count(self, name: str, seconds: float, problem: str) -> None:
        """Count a comparison of a program of this name, and what it found to be wrong."""
        self.counts.compared += 1
        self.counts.disagreed += bool(problem)
        COMPARISONS.used()
        if Compared in bus.wanted:
            bus.emit(Compared(name, seconds, problem))

    def _jitter(self, name: str) -> float:
        """Return a number about 1, so that audits do not follow a rhythm of the program."""
        return 0.5 + (stable_hash(f"{name} {self.counts.compared}") & 0xFFFF) / 0x10000

    def skip(self, name: str, reason: str) -> str:
        """Count a form that is not compared; returns why it is not, in words."""
        self.counts.not_compared += 1
        if Compared in bus.wanted:
            bus.emit(Compared(name, 0.0, "", reason))
        return f"not compared: {reason}"

    def separately(self, run: TensorFunction, tensors: Tensors) -> list[torch.Tensor]:
        """Make a call of which each program is compared by itself, within another call, which is not compared."""
        outer, self._local.ran = self._local.ran, None
        try:
            return run(tensors)
        finally:
            self._local.ran, self._local.separate = outer, True

    def withdraw(self, program: Program, executable: Executable, seconds: float) -> None:
        """Count a call of this form that was ended after some seconds, and is made again by another one."""
        self._judging.count(program, Call(seconds, False, True, False, False, True, 0.0))
        ran = self._local.ran
        if ran is not None:
            self._local.ran = [pair for pair in ran if pair != (program, executable)]
        self._local.withdrawn += seconds

    def skip_long(self, name: str) -> None:
        """Note that a call was not compared, because steps of its loops were."""
        watched.strayed = None
        self.skip(name, "its loops took long, and their steps are compared by themselves")

    # -- programs that were rewritten or divided

    def whole(
        self, graph: Graph, strides: Strides, donated: Collection[int], run: TensorFunction, programs: Sequence[Program]
    ) -> Whole | None:
        """Return what compares the calls of programs with what these were made from; None if that cannot be.

        Args:
            graph: what was recorded.
            run: calls the programs.
        """
        made = Whole(run, tuple(programs), renumber(graph), strides, frozenset(donated), self.compare_whole)
        reason = obstacle(graph)
        if not reason:
            made.wrong = bool(artifacts.find_wrong(made.as_text))
            if made.key in self._too_long:
                made.agree(math.inf)
            return made
        self.skip(made.name, reason)
        return None

    @without_modes
    def compare_whole(self, whole: Whole, tensors: Tensors) -> list[torch.Tensor]:
        """Call programs, and compare the results with the recorded program's. Compare nothing if a profiler runs."""
        if profiler_enabled():
            return whole.form(tensors)
        try:
            inputs = taken(whole.graph, tensors, whole.donated)
        except (torch.OutOfMemoryError, OSError):
            self.skip(whole.name, _NO_COPIES)
            return whole.form(tensors)
        with contextlib.closing(inputs.spill):
            return self._compare_whole(whole, tensors, inputs)

    def _compare_whole(self, whole: Whole, tensors: Tensors, inputs: Taken) -> list[torch.Tensor]:
        outer, self._local.ran, self._local.separate = self._local.ran, [], False
        before, start = whole.compile_seconds + self._local.withdrawn, perf_counter()
        try:
            results = whole.form(tensors)
            beside = whole.compile_seconds + self._local.withdrawn - before
            took = max(perf_counter() - start - beside, 0.0)
            ran = self._local.ran or []
        finally:
            self._local.ran = outer
        if self._local.separate:
            self.skip_long(whole.name)
            return results
        got, problem, seconds, found = self._compared(
            whole.name, whole.graph, whole.reference, inputs, results, took, KERNELS_WORSE
        )
        if not problem:
            for program, executable in ran:
                within = f"{found}, as part of a recording of {len(whole.graph.nodes)} operations"
                self._judging.agree(program, executable, seconds / len(ran), within)
            whole.agree(seconds * self._jitter(whole.name))
            if seconds == math.inf:
                self._too_long.remember(whole.key, whole)
            return got
        # a form of one program may be wrong: now each is compared by itself
        self._judging.doubt(whole.programs)
        copies = inputs.copied()
        results = whole.form([y.clone() if x is None else x for x, y in zip(inputs.given, copies, strict=True)])
        if disagreement(whole.graph, copies, got, results, KERNELS_WORSE):
            whole.disagree()
            artifacts.keep_wrong(whole.as_text(), problem)
            what = f"a program of {len(whole.graph.nodes)} operations was rewritten into a wrong one"
            form = [line for program in whole.programs for line in ("it became:", print_graph(program.graph))]
            warn(what, problem, reports.write(what, problem, whole.graph, copies, ALONE, form))
        return got


@attrs.define(eq=False, slots=False)
class Whole:
    """The calls of the programs that a recording became, which are believed once they agreed with the recording.

    Attributes:
        form: calls the programs.
        programs: these.
        graph: the recording.
        strides: of its inputs.
        donated: the places of the inputs that may be written over.
        compare: makes a call and compares it.
        calls: made between two looks at what is due, more each time; 0: it was not compared yet.
        left: those of them that are still to come.
        audited: seconds of the programs when it was compared.
        audit_seconds: that a comparison takes.
        wrong: whether the programs gave other results.
        early: calls that are still to run as recorded before one is compared.
    """

    form: TensorFunction
    programs: tuple[Program, ...]
    graph: Graph
    strides: Strides
    donated: frozenset[int]
    compare: Callable[[Whole, Tensors], list[torch.Tensor]]
    calls: int = 0
    left: int = 0
    audited: float = 0.0
    audit_seconds: float = 0.0
    wrong: bool = False
    early: int = attrs.field(init=False)

    @early.default
    def _calls_before(self) -> int:
        # a loop may take any time; what writes over its inputs takes less memory than the recording
        if self.donated or has_loops(self.graph) or operations_seconds(self.graph) <= AT_ONCE:
            return 0
        return COMPARING

    @property
    def key(self) -> Hashable:
        """What equal ones have in common."""
        return self.graph, self.programs, tuple(map(tuple, self.strides)), self.donated

    @property
    def name(self) -> str:
        """What events have for it."""
        return f"{hash(self.graph) & (1 << 64) - 1:x}"

    def as_text(self) -> str:
        """Return it in words that are equal in each process."""
        text = print_graph(self.graph)
        programs = [as_text(program) for program in self.programs]
        return f"recording {text} {self.strides} {sorted(self.donated)} {programs}"

    @property
    def compile_seconds(self) -> float:
        """Seconds that compilers worked for the programs so far: a call may wait for that."""
        return sum(program.ledger.compile_seconds for program in self.programs)

    @functools.cached_property
    def reference(self) -> TensorFunction:
        """What the calls must agree with: the recording, operation by operation."""
        return with_strides(reference(self.graph), self.graph, self.strides)

    @property
    def seconds(self) -> float:
        """Seconds of all calls of the programs so far."""
        return sum(program.ledger.seconds for program in self.programs)

    def agree(self, seconds: float) -> None:
        """Note that it agreed, and that a comparison takes so many seconds."""
        self.calls = self.left = FIRST_LOOK
        self.early = 0
        self.audited, self.audit_seconds = self.seconds, seconds

    def _audit_due(self) -> bool:
        """Whether it is to be compared; asked after `FIRST_LOOK` calls, twice as many, and so on."""
        seconds = max(self.audit_seconds, sum(program.ledger.audit_seconds for program in self.programs))
        if not self.calls or (self.seconds - self.audited) * config.current.audit > seconds:
            return True
        self.left, self.calls = self.calls, 2 * self.calls
        return False

    def disagree(self) -> None:
        """Run the reference from now on."""
        self.wrong = True

    def run(self, tensors: Tensors) -> list[torch.Tensor]:
        """Run the recording. In the deterministic mode it runs operation by operation."""
        if config.current.deterministic:
            with deterministic_algorithms():
                return self._as_recorded(tensors)
        if self.wrong:
            return self._as_recorded(tensors)
        if config.current.audit == 1.0:
            return self.compare(self, tensors)
        if self.early and self._may_wait:
            self.early -= 1
            return self._as_recorded(tensors)
        if self.left <= 0 and self._audit_due():
            return self.compare(self, tensors)
        self.left -= 1
        return self.form(tensors)

    @property
    def _may_wait(self) -> bool:
        """Whether a call may run as recorded: something is not compiled yet, and may be.

        If nothing ever is, all calls have the same bits.
        """
        return config.current.auto_compile and not all(program.forms.compiled for program in self.programs)

    def _as_recorded(self, tensors: Tensors) -> list[torch.Tensor]:
        try:
            return self.reference(tensors)
        except REFUSALS as error:
            refuse("a program", error)


def tried(graph: Graph, form: TensorFunction, inputs: Tensors) -> str:
    """Return in what a form's results differ from those of a program; empty if they agree, or cannot be compared."""
    end = perf_counter() + EXPORT_PATIENCE

    def go_on() -> bool:
        if perf_counter() > end:
            raise TimeoutError
        return True

    if obstacle(graph):
        return ""
    try:
        with called_between(go_on):
            expected = reference(graph)(inputs)
            return disagreement(graph, inputs, expected, form(inputs))
    except (*REFUSALS, ExecutionError, TimeoutError):
        return ""


def obstacle(graph: Graph) -> str:
    """Return why a program is not compared; empty if it is."""
    if not COMPARISONS.on:
        return "comparisons are switched off"
    if communicates(graph):
        return "other processes would notice a second run"
    if has_effects(graph):
        return "Python functions would notice a second run"
    if not fits(graph):
        return "there is no memory for the largest of its operations in float64"
    return ""


def warn(what: str, problem: str, report: str) -> None:
    """Warn at the user's line of a form that is wrong."""
    script = report or "script.py"
    warn_at(
        f"{what}, which is not used any more: {problem}. Results stay right: they are those of the recorded program."
        f" `gtrace bisect {script}` finds the rewrite or the compiler that is at fault."
        + (" That file is a report that can be sent: see docs/bisect.md." if report else ""),
        user_location(),
        AuditWarning,
    )
