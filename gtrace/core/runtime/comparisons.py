"""Compares each form of a program with the reference before it is believed, and again now and then."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from time import perf_counter

import attrs
import torch

from gtrace.core.backends.executable import Executable
from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.interpreter.reference import reference, visit
from gtrace.core.backends.interpreter.run_errors import REFUSALS
from gtrace.core.backends.runs import during, run
from gtrace.core.base.bounded_tables import SMALL, BoundedTable
from gtrace.core.base.config import config
from gtrace.core.base.errors import AuditWarning, ExecutionError, user_location, warn_at
from gtrace.core.base.events import Compared, bus
from gtrace.core.base.mechanisms import COMPARISONS
from gtrace.core.base.torch_internals import profiler_enabled
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.edit import renumber
from gtrace.core.ir.graph import Graph, print_graph
from gtrace.core.ir.op import stable_hash
from gtrace.core.passes.subgraph_calls import communicates, has_effects, has_loops
from gtrace.core.runtime import reports
from gtrace.core.runtime.agreement import KERNELS_WORSE, WORSE, Comparison, disagreement
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.cache.findings import findings
from gtrace.core.runtime.first_steps import FirstSteps, as_it_runs, compare_first_steps, least_seconds, time_limit
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.programs import MAX_PROGRAMS
from gtrace.core.runtime.routes import Parts, Route, Strides
from gtrace.core.runtime.taken_inputs import Taken, fits, taken
from gtrace.core.runtime.trials import TrialCall, Trials, as_text, form_as_text
from gtrace.core.runtime.whole_calls import Whole
from gtrace.core.runtime.worker.sharing import sharing

PATIENCE, TIMES, LOOP_TIMES = 1.0, 10.0, 1.0
"""Seconds that the reference may take, or so many times the call, without loops and with them. A native loop runs up to
a thousand times as fast as an interpreted one: waiting longer would seldom help, and its first steps tell as much."""

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


@attrs.frozen
class _Outcome:
    """What comparing a call came to.

    Attributes:
        results: those to go on with.
        seconds: that it took; infinite: it took too long, ended, and is never made again.
        found: what was found, in words.
        problem: what is wrong with the form, in words.
        compared: whether the results were compared, all of them.
        steps: those of loops that were compared; 0: all.
    """

    results: list[torch.Tensor]
    seconds: float
    found: str
    problem: str = ""
    compared: bool = False
    steps: int = 0


class Comparisons:
    """Compares calls with the reference, and has the forms that are wrong replaced."""

    def __init__(self, judging: Trials) -> None:
        self.counts = Counts()
        self._judging = judging
        # a jitted function that is made anew is recorded anew
        self._long: BoundedTable[Hashable, Whole] = BoundedTable(
            MAX_PROGRAMS, SMALL, lambda whole: any(program.forgotten for program in whole.programs)
        )

    # -- programs

    def begin(self, program: Program, executable: Executable, tensors: Tensors, share: float) -> Taken | None:
        """Return what is needed to compare the call that is about to be made; None: it is not compared.

        It is if its form has not agreed yet, or if an audit is due.

        Args:
            share: the fraction of the time of a run that audits may take.
        """
        forms, ran = program.forms, run.forms
        if ran is None:
            run.strayed = None  # a call that raised left it
        if executable in forms.agreed and (ran is not None or not program.ledger.audit_due(share)):
            return None
        if ran is not None:
            ran.append((program, executable))
            return None
        if executable not in forms.agreed and self._recalls(program, executable, share):
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
        outcome = self._compared(
            name, program.graph, program.reference, inputs, results, took, lambda: executable.run(inputs.again())
        )
        got, problem = outcome.results, outcome.problem
        if not problem:
            self._judging.agree(program, executable, outcome.seconds * self._jitter(name), outcome.found)
            if outcome.compared:
                keep_agreed(program, executable, outcome.seconds)
            return got
        names = self._judging.names(program)
        if self._judging.disagreed(program, executable, problem):
            own = executable.interprets
            what = f"program {program.signature} was {'rewritten' if own else 'compiled'} into a wrong one"
            key = program.key
            run = ALONE if own else f"lambda f: gt.jit(f, wait=True, backend={key.backend!r}, mode={key.mode!r})"
            lines = [f"the form: {executable.origin}", f"inputs that it may write over: {key.donated}"]
            form = [] if own or artifacts.store is None else reports.code(artifacts.store, names)
            warn(what, problem, reports.write(what, problem, program.graph, inputs.copied(), run, [*lines, *form]))
        return got

    def _recalls(self, program: Program, executable: Executable, share: float) -> bool:
        """Whether a form is believed because it agreed in an earlier process, with the same code and versions."""
        if program.forms.doubted or not executable.identity or share == 1.0 or not COMPARISONS.on:
            return False
        seconds = findings.agreed(lambda: form_as_text(program, executable))
        if seconds is None:
            return False
        self._judging.recall(program, executable, seconds, findings.since(seconds, share))
        return True

    def recalled(self, program: Program) -> Program:
        """Return a program that is new. It runs its reference if an earlier process found its other form wrong."""
        problem = findings.wrong(lambda: as_text(program)) if COMPARISONS.on else ""
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
        form: Callable[[], list[torch.Tensor]] | None,
        worse: float = WORSE,
    ) -> _Outcome:
        """Compare the results of a form with the reference.

        Args:
            form: runs the form again; None: it cannot.
        """
        start = perf_counter()
        strayed, run.strayed = run.strayed, None
        got = list(results)
        loops = has_loops(graph)
        patience = max(PATIENCE, (LOOP_TIMES if loops else TIMES) * took)
        patience = math.inf if config.current.audit == 1.0 else patience
        first: FirstSteps | None = None
        found = ""
        try:
            with sharing.alone():
                problem = inputs.overwritten() or (STRAYED if strayed else "")
                try:
                    if not problem:
                        problem, found = _whole_compared(graph, inputs, got, patience, worse)
                except TimeoutError:
                    if not loops or form is None:
                        raise
                    first = compare_first_steps(graph, inputs, form, PATIENCE, worse)
                    problem, found = first.problem, first.found
        except TimeoutError:  # an `OSError` too
            of = "the reference of the first steps of its loops" if loops else "its reference"
            return _Outcome(got, math.inf, self.skip(name, f"{of} takes too long"))
        except (*REFUSALS, ExecutionError, OSError) as error:  # there may be no room for the file of its values
            return _Outcome(got, perf_counter() - start, self.skip(name, f"the reference did not run: {error}"))
        if problem:  # if the reference does not run again, that is an error: nothing else gives the right results
            got = reference(inputs.copied())
        seconds = perf_counter() - start
        self.count(name, seconds, problem)
        return _Outcome(got, seconds, problem or found, problem, True, 0 if first is None else first.steps)

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

    def separately(self, call: TensorFunction, tensors: Tensors) -> list[torch.Tensor]:
        """Make a call of which each program is compared by itself, within another call, which is not compared."""
        run.apart = True
        with during(forms=None):
            return call(tensors)

    def withdraw(self, program: Program, executable: Executable, seconds: float) -> None:
        """Count a call of this form that was ended after some seconds, and is made again by another one."""
        self._judging.count(program, TrialCall(seconds, False, True, False, False, True, 0.0))
        if run.forms is not None:
            run.forms[:] = [pair for pair in run.forms if pair != (program, executable)]
        run.withdrawn += seconds

    def skip_long(self, name: str) -> None:
        """Note that a call was not compared, because steps of its loops were."""
        run.strayed = None
        self.skip(name, "its loops took long, and their steps are compared by themselves")

    def compare_code(
        self, graph: Graph, tensors: Tensors, call: Callable[[], list[torch.Tensor]]
    ) -> tuple[list[torch.Tensor], str]:
        """Make a call by code for open sizes, and compare it with what was recorded, however long that takes.

        Args:
            graph: what was recorded.
            tensors: the inputs, which the call does not write over.

        Returns:
            The results to go on with, and what was wrong with those of the call, in words.
        """
        name, reason = f"{hash(graph) & (1 << 64) - 1:x}", obstacle(graph)
        inputs = None
        if not reason:
            try:
                inputs = taken(graph, tensors, ())
            except (torch.OutOfMemoryError, OSError):
                reason = _NO_COPIES
        if inputs is None:
            self.skip(name, reason)
            return call(), ""
        with contextlib.closing(inputs.spill):
            results = call()
            outcome = self._compared(name, graph, reference(graph), inputs, results, math.inf, None, KERNELS_WORSE)
            return outcome.results, outcome.problem

    # -- programs that were rewritten or divided

    def whole(
        self, graph: Graph, strides: Strides, donated: Collection[int], call: TensorFunction, route: Route | Parts
    ) -> Whole | None:
        """Return what compares the calls of programs with what these were made from; None if that cannot be.

        Args:
            graph: what was recorded.
            call: calls the programs.
            route: to the programs.
        """
        made = Whole(call, route, renumber(graph), strides, frozenset(donated), self.compare_whole)
        reason = obstacle(graph)
        if not reason:
            made.wrong = bool(findings.wrong(made.as_text))
            earlier, share = findings.agreed(made.as_text), config.current.audit
            if earlier is not None and share != 1.0:
                made.agree(earlier, findings.since(earlier, share))
            same = self._long.get(made.key)
            if same is not None:
                made.agree(same.audit_seconds)
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
        ran: list[tuple[Program, Executable]] = []
        before = whole.seconds - run.withdrawn
        with during(forms=ran, apart=False):
            results = whole.form(tensors)
            apart = run.apart
        took = whole.seconds - run.withdrawn - before
        if apart:
            self.skip_long(whole.name)
            return results
        again = functools.partial(_again, whole, dict(ran), inputs)
        known = all(program in whole.programs for program, _ in ran)  # torch's number of threads may have changed
        outcome = self._compared(
            whole.name, whole.graph, whole.reference, inputs, results, took, again if known else None, whole.worse
        )
        got, problem, seconds = outcome.results, outcome.problem, outcome.seconds
        if not problem:
            for program, executable in ran:
                within = f"{outcome.found}, as part of a recording of {len(whole.graph.nodes)} operations"
                self._judging.agree(program, executable, seconds / len(ran), within)
                if outcome.compared:
                    keep_agreed(program, executable, seconds / len(ran))
            whole.agree(seconds * self._jitter(whole.name))
            if outcome.compared:
                findings.keep_agreed(whole.as_text(), seconds)
            if outcome.steps or seconds == math.inf:
                self._long.remember(whole.key, whole)
            return got
        # a form of one program may be wrong: now each is compared by itself
        self._judging.doubt(whole.programs)
        copies = inputs.copied()
        results = whole.form([y.clone() if x is None else x for x, y in zip(inputs.given, copies, strict=True)])
        if outcome.steps:
            again = functools.partial(_again, whole, {}, inputs)
            differs = compare_first_steps(whole.graph, inputs, again, math.inf, whole.worse, [outcome.steps]).problem
        else:
            differs = disagreement(whole.graph, copies, got, results, whole.worse)
        if differs:
            whole.disagree()
            findings.keep_wrong(whole.as_text(), problem)
            what = f"a program of {len(whole.graph.nodes)} operations was rewritten into a wrong one"
            form = [line for program in whole.programs for line in ("it became:", print_graph(program.graph))]
            warn(what, problem, reports.write(what, problem, whole.graph, copies, ALONE, form))
        return got


def _whole_compared(graph: Graph, inputs: Taken, got: Tensors, seconds: float, worse: float) -> tuple[str, str]:
    """Compare results with those of the reference; returns what is wrong, and how far apart they are, in words.

    Args:
        seconds: that the reference may take.

    Raises:
        TimeoutError: it takes longer, or is sure to.
    """
    if least_seconds(graph) > seconds:
        raise TimeoutError
    made = Comparison(graph, got, inputs.spill, worse)
    with time_limit(seconds):
        visit(graph, inputs.copies, made.look, inputs.spill)
    return made.problem(inputs.copies), made.apart


def _again(whole: Whole, ran: Mapping[Program, Executable], inputs: Taken) -> list[torch.Tensor]:
    """Make the calls of a recording again, without counting them."""
    return as_it_runs(whole.route, ran)(inputs.again())


def keep_agreed(program: Program, executable: Executable, seconds: float) -> None:
    """Have later processes know that a form agreed, in a comparison that took so many seconds."""
    text = form_as_text(program, executable)
    if text:
        findings.keep_agreed(text, seconds)


def tried(graph: Graph, form: TensorFunction, inputs: Tensors) -> str:
    """Return in what a form's results differ from those of a program; empty if they agree, or cannot be compared."""

    if obstacle(graph):
        return ""
    try:
        with time_limit(EXPORT_PATIENCE):
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
