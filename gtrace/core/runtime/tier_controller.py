"""From interpreted to compiled and back: when a program is compiled, by whom, and whether that was worth it."""

from __future__ import annotations

import math
import traceback
import weakref
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from gtrace.core.backends.backend import find_backend
from gtrace.core.backends.executable import Compiled
from gtrace.core.backends.inductor.driver import startup_seconds
from gtrace.core.backends.inductor.failures import named_operators
from gtrace.core.backends.interpreter import lstm
from gtrace.core.backends.native.values import UnsupportedLoopError
from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.schedule import Results
from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.config import Config, config
from gtrace.core.base.errors import CompileError, CompileWarning, user_location, warn_at
from gtrace.core.base.events import (
    CompileFailed,
    CompileFinished,
    CompileStarted,
    Detected,
    Loaded,
    Recompiling,
    bus,
)
from gtrace.core.base.locks import ExclusiveLock, new_lock
from gtrace.core.base.mechanisms import PARTLY_COMPILED
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.difference import difference
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.signature import CompileKey
from gtrace.core.runtime import policy as policies
from gtrace.core.runtime.asked import compile_asked, is_early
from gtrace.core.runtime.cache.artifact_cache import RefusedError, artifacts
from gtrace.core.runtime.cache.manifest import VerdictKind
from gtrace.core.runtime.compilation import Compilation, compilation, for_own_sizes
from gtrace.core.runtime.compile_warnings import CompileWarnings, concerns_every_program
from gtrace.core.runtime.decisions import WAIT, Action, Decision, decide
from gtrace.core.runtime.forms import Code, FormEvent, PartialForm, State
from gtrace.core.runtime.program import Family, Program
from gtrace.core.runtime.trials import Trials, new_trial
from gtrace.core.runtime.worker.sharing import sharing

MAX_VERSIONS = 8
"""Programs of one structure that are compiled for different sizes of their inputs."""

MAX_LATEST = 4096
"""Structures of which the latest compiled program, and what was waited, are remembered."""


class TierController:
    """Moves programs between tiers.

    There are two locks. `lock` is held for a moment, to change tiers and ledgers. The other one is held while this
    process compiles, because torch's compilers run one at a time. Only callers that ask for a compile wait for it.

    Args:
        programs: every program of the engine.

    Attributes:
        judging: judges compiled programs.
        cost, worker_cost: the expected seconds of a compile, here and in the worker.
        compiles: programs compiled so far, here or in the worker.
        loaded: programs found compiled on disk.
        waited: seconds that calls of jitted functions have waited, by hashes of the structures that they recorded.
        warnings: what warns of compiles that failed.
        left_out: operators of torch that are not compiled, by overload. The compiler has no code for them, or they are
            layers that call a library.
    """

    def __init__(self, programs: Mapping[CompileKey, Program]) -> None:
        self.cost = policies.CostModel(startup=startup_seconds())
        self.worker_cost = policies.CostModel(startup=startup_seconds() + policies.WORKER_START_SECONDS)
        self.compiles = 0
        self.loaded = 0
        self._programs = programs
        self._made: weakref.WeakKeyDictionary[CompileRequest, Compiled] = weakref.WeakKeyDictionary()
        self._latest: BoundedTable[Any, Program] = BoundedTable(MAX_LATEST, stale=lambda program: program.forgotten)
        self.left_out: frozenset[str] = lstm.OPERATORS
        self.warnings = CompileWarnings()
        self._earlier_unknown = True
        self.waited: BoundedTable[int, float] = BoundedTable(MAX_LATEST)
        self.lock = new_lock()
        self._compiler = ExclusiveLock()
        self.judging = Trials(programs, self.lock)

    def forked(self) -> None:
        """Begin anew, as in a process that was forked.

        Outcomes of the parent's worker do not reach this process, so these programs may be requested again.
        """
        for program in list(self._programs.values()):
            if program.forms.is_requested:
                program.forms.change(FormEvent.WITHDRAWN)

    # -- deciding

    def expected(self, program: Program, settings: Config, natively: bool = True) -> float:
        """Return what compiling a program is expected to cost the running program, in seconds.

        Args:
            natively: whether the C++ compiler alone compiles it, if that can be.
        """
        if natively and program.natively:
            seconds = program.native_seconds
            return seconds * sharing.slowdown(alone=True) if settings.background else seconds
        if settings.background and self.ahead_of_time(program):
            return self.worker_cost.predict(program.ops) * sharing.slowdown(program.ledger.library_share or 0.0)
        return self.cost.predict(program.ops)

    def consider(self, program: Program) -> Decision:
        """Decide about a program and act on it, until nothing is left to do before its next call."""
        settings = config.current
        while True:
            decision = decide(program, settings, self.expected)
            if decision is WAIT or not self._apply(program, decision, settings):
                return decision

    def _apply(self, program: Program, decision: Decision, settings: Config) -> bool:
        """Act on a decision; returns whether there is more to decide."""
        action, ledger, family = decision.action, program.ledger, program.family
        if decision.patience is not None:
            ledger.wait(settings, decision.patience)
        if decision.together:
            family.meet_many()
        if action is Action.SETTLE:
            if program.forms.executable in program.forms.agreed:
                ledger.settle(settings)
        elif action is Action.WAIT_APART:
            family.tried = family.count
        elif action is Action.JOIN:
            ledger.compare(len(family.symbolic))
            return not self.join(program)
        elif action is Action.LOOK:
            ledger.look()
            if self.join(program) or self.find(program):
                return False
            ledger.learn_earlier(artifacts.earlier(program.signature).interpreted_seconds)
            self._learn_earlier()
            return True
        elif action is Action.COMPILE:
            if Detected in bus.wanted and not settings.compile and not ledger.asked:
                names = tuple(node.op.name for node in program.graph.nodes)
                bus.emit(Detected(program.signature.exact, names, decision.calls, decision.seconds))
            if settings.compile or not settings.background or not self.ahead_of_time(program):
                # another thread may be compiling: then this call is interpreted, and a later one asks again
                self.compile(program, wait=math.inf if settings.compile else 0)
            elif self._came_to_nothing(program):
                self.compile_all([program], math.inf)
            else:
                self.ask(program, hot=True)
        return False

    def _came_to_nothing(self, program: Program) -> bool:
        """Whether earlier processes interpreted a program for longer than the C++ compiler takes, and never got code.

        Each ended before its code was there, and so may this one: it waits.
        """
        if program.ledger.calls or not program.natively:
            return False
        entry = artifacts.earlier(program.signature)
        return not entry.compiled_calls and entry.interpreted_seconds >= program.native_seconds

    def _learn_earlier(self) -> None:
        """Expect of compiles what they took in earlier processes."""
        if self._earlier_unknown:
            self._earlier_unknown = False
            compiles = artifacts.compiled_before()
            self.cost.learn_earlier(compiles)
            self.worker_cost.learn_earlier(compiles)

    def ahead_of_time(self, program: Program) -> bool:
        """Whether its code can be made in another process, and kept on disk."""
        return find_backend(program.key.backend).ahead_of_time(program.device)

    def join(self, program: Program) -> bool:
        """Run a program by the compiled form of its family for open sizes, if one fits; returns whether one does."""
        code = program.family.find(program.shape) or self._code_of_any_length(program)
        if code is None:
            return False
        with self.lock:
            if program.forms.is_open:  # another thread may have been faster
                self.judging.adopt(program, code)
        return True

    def _code_of_any_length(self, program: Program) -> Code | None:
        """Return code for a program of native loops, if it was compiled for another length of them."""
        if not program.has_calls or any(m.forms.state is State.DEMOTED for m in program.family.members):
            return None
        way = for_own_sizes(program)
        requests = way.schedule.requests
        found = {request: self._made[request] for request in requests if request in self._made}
        return Code(way.in_part(found)) if requests and len(found) == len(requests) else None

    def find(self, program: Program) -> bool:
        """Run a program by what an earlier process compiled, or obey its verdict; returns whether that settles it."""
        if artifacts.empty or not self.ahead_of_time(program):
            return False
        start = perf_counter()
        exact = for_own_sizes(program)
        family = program.family
        try:
            symbolic = None if family.closed else artifacts.find_symbolic(family.name, program.shape)
            executable = None if symbolic is None else symbolic.executable_for(program.shape)
            verdict = None if family.closed or symbolic is not None else artifacts.open_verdict(family.name)
            if verdict is not None:
                family.close(verdict)
            found = None if executable is not None else artifacts.find(exact.names())
        except CompileError as error:
            if self._leave_out(program, error):
                return self.find(program)
            self._fail(program, error, user_location())
            return True
        with self.lock:
            if not program.forms.is_open:
                return True
            if executable is not None:
                assert symbolic is not None
                family.symbolic.append(symbolic)
                code = Code(executable, symbolic)
                family.trials[symbolic] = new_trial(program)
            elif found is None:
                return False
            else:
                code = exact.finish(found)
            self.judging.adopt(program, code)
            self.loaded += 1
        if Loaded in bus.wanted:
            bus.emit(Loaded(program.signature.exact, perf_counter() - start))
        return True

    def _refuse(self, program: Program, location: str) -> bool:
        """Keep a program interpreted if it computes nothing or is one version too many; returns whether it is."""
        family = program.family
        others = family.others(program)
        if 0 in program.dims and others:
            self._end(program, FormEvent.KEPT, "a size is 0: there is nothing to compute")
            return True
        if family.versions < MAX_VERSIONS or program.dims in family.exact or not others:
            return False
        change = difference(others[0].graph, program.graph, (), ())
        why = f" ({family.closed})" if family.closed else ""
        self._end(program, FormEvent.KEPT, f"compiled for {MAX_VERSIONS} other sizes already")
        if not family.warned:
            family.warned = True
            warn_at(
                f"program {program.signature} was compiled for {MAX_VERSIONS} sizes, none of which fits: {change}. It"
                f" could not be compiled for every size{why}, and is interpreted for further ones. Pad that dimension"
                " to a few sizes, or make the integers that follow from it simple functions of it.",
                location,
                CompileWarning,
            )
        return True

    # -- compiling

    @without_modes
    def compile(self, program: Program, wait: float = math.inf) -> None:
        """Compile a program now, in this thread, unless it was tried before. A failure warns once and is final.

        If others of its family have other sizes, the program is compiled for all of them, and later ones run it too.

        Args:
            wait: seconds for a compile of another thread to end, at most; then it stays interpreted for now.
        """
        self._compiler.run(self._compile, program, wait=wait)

    @without_modes
    def compile_all(self, programs: Sequence[Program], wait: float, graph: Graph | None = None) -> None:
        """Have programs compiled, and wait for it; see `compile_asked`."""
        compile_asked(self, programs, wait, graph)

    def ask(self, program: Program, hot: bool) -> None:
        """Have the worker compile a program, as soon as it is at no other one of the family.

        Args:
            hot: whether that pays for its own sizes; see `is_early`.
        """
        with self.lock:
            if program.forms.state is not State.INTERPRETED:
                return
            program.ledger.ask(True)
            program.family.asked[program] = hot, user_location()
        self._request_next(program.family)

    def _request_next(self, family: Family) -> None:
        """Have the worker compile the newest member that was asked for, and that no code has come to fit."""
        way, location = None, ""
        with self.lock:
            while way is None and family.asked and not family.is_busy:
                program, (hot, location) = family.asked.popitem()
                if not program.ledger.asked or self.join(program):
                    continue
                if hot or is_early(program, family.versions):
                    way = self._begin(program, location)
                else:
                    program.ledger.ask(False)
        if way is not None:
            self._submit(way, location)

    def _compile(self, program: Program) -> None:
        with self.lock:
            if not program.forms.is_open or self.join(program):
                return
        if self.find(program) or self._refuse(program, user_location()):
            return
        way = compilation(program)
        self._announce(program, background=False)
        start = perf_counter()
        try:
            try:
                results = self._results(way)
                with self.lock:
                    code = way.finish(results)
            except CompileError as error:
                if way.symbolic is None or concerns_every_program(error):
                    raise
                self._close(program, error)
                way = for_own_sizes(program)
                results = self._results(way)
                with self.lock:
                    code = way.finish(results)
        except CompileError as error:
            program.ledger.learn_compile(perf_counter() - start)
            if self._leave_out(program, error):
                self._compile(program)
            else:
                self._fail(program, error, user_location())
            return
        with self.lock:
            if program.forms.is_open:  # the worker may have been faster
                self._finish(program, code, perf_counter() - start)

    def _results(self, way: Compilation) -> Results:
        """Compile the requests that were not compiled yet: several programs may have the body of a loop in common."""
        program, backend = way.program, find_backend(way.program.key.backend)
        results: dict[CompileRequest, Compiled] = {}
        for name, request in way.names().items():
            compiled = self._made.get(request)
            if compiled is None:
                if self.ahead_of_time(program):
                    compiled = artifacts.compile(name, request, program.signature, way.constants)
                else:
                    compiled = backend.compile(request)
                self._made[request] = compiled
            results[request] = compiled
        return results

    def _begin(self, program: Program, location: str) -> Compilation | None:
        """Note that a program is requested; returns what is to be compiled, or None if it is kept interpreted."""
        if program.forms.state is not State.INTERPRETED or self._refuse(program, location):
            return None
        way = compilation(program)
        program.forms.change(FormEvent.REQUESTED, awaited=way)
        program.family.latest = program
        self._announce(program, background=True)
        return way

    def _submit(self, way: Compilation, location: str) -> None:
        """Have the worker compile a program that somebody asked for at this line; it is interpreted until then."""
        artifacts.request(
            way.names(),
            way.program.signature,
            way.constants,
            lambda outcome, seconds: self._arrived(way, outcome, seconds, location),
            lambda found: self._arrived_in_part(way, found),
            lambda: self._is_awaited(way),
        )

    def _is_awaited(self, way: Compilation) -> bool:
        """Whether somebody still waits for what the worker was asked for. Called in the thread that serves it."""
        program = way.program
        with self.lock:
            if program.forms.awaited is way and program.forgotten:
                program.forms.change(FormEvent.WITHDRAWN)
            if program.forms.awaited is way and not self.join(program):
                return True
        self._request_next(program.family)
        return False

    def _arrived_in_part(self, way: Compilation, found: Results) -> None:
        """Run a program by what is compiled of it. Called in the thread that asks, or that serves the worker."""
        forms = way.program.forms
        with self.lock:
            if forms.awaited is way and PARTLY_COMPILED.on:
                PARTLY_COMPILED.used()
                usual = forms.ledger.usual if forms.partial is None else forms.partial.usual
                forms.change(FormEvent.ARRIVED_IN_PART, partial=PartialForm(way.in_part(found), usual))

    def _arrived(self, way: Compilation, outcome: Results | CompileError, seconds: float, location: str) -> None:
        """Adopt what the worker compiled, or note why it failed. Called in the thread that serves the worker."""
        more = self._adopt(way, outcome, seconds, location)
        if more is not None:
            self._submit(more, location)
        self._request_next(way.program.family)

    def _adopt(
        self, way: Compilation, outcome: Results | CompileError, seconds: float, location: str
    ) -> Compilation | None:
        """Do what `_arrived` says; returns what is to be compiled in place of it."""
        program = way.program
        with self.lock:
            if program.forms.awaited is not way:
                return None  # another thread has compiled the program, or found out about it
            if not isinstance(outcome, CompileError):
                try:
                    code = way.finish(outcome)
                except CompileError as error:
                    outcome = error
                else:
                    self._made.update(outcome)
                    self._finish(program, code, seconds)
                    return None
            program.forms.change(FormEvent.WITHDRAWN)
            if self._leave_out(program, outcome):
                return self._begin(program, location)
            if way.symbolic is not None and not concerns_every_program(outcome):
                # a single size may still compile, when it is hot
                self._close(program, outcome)
            else:
                self._fail(program, outcome, location)
            return None

    def leave_out_as(self, other: TierController) -> None:
        """Have those operators interpreted that another one has interpreted."""
        self.left_out = other.left_out

    def _leave_out(self, program: Program, error: CompileError) -> bool:
        """Have the operators interpreted that a compiler's error names; returns whether something is left to compile.

        The same holds for programs that are made from now on. A short program that has no native code after all is left
        to Inductor, and so is one whose native code was slower.
        """
        with self.lock:
            if not program.forms.is_open:
                return False  # another thread has found out about it
            if isinstance(error, RefusedError) and error.kind is not VerdictKind.FAILED:
                return program.leave_to_inductor(lost=True)
            if isinstance(error, UnsupportedLoopError) and program.leave_to_inductor(lost=False):
                return True
            named = named_operators(str(error)) & program.operators - program.left_out
            if not named:
                return False
            self.left_out |= named
            program.leave_out(named)
            program.family.closed = f"{', '.join(sorted(program.left_out))} cannot be compiled"
            return bool(program.schedule.requests)

    def _announce(self, program: Program, background: bool) -> None:
        latest = self._latest.get(program.structure)
        if latest is not None and Recompiling in bus.wanted:
            change = difference(latest.graph, program.graph, latest.key.strides, program.key.strides)
            bus.emit(Recompiling(program.signature.exact, change))
        bus.emit(CompileStarted(program.signature.exact, program.ops, background))

    def _finish(self, program: Program, code: Code, seconds: float) -> None:
        program.ledger.learn_compile(seconds)
        model = self.cost if code.executable.origin == "process" else self.worker_cost
        if code.symbolic is not None or not program.native:
            model.learn(program.ops, seconds)
        self.compiles += 1
        program.family.calls, program.family.seconds = 0, 0.0
        self._latest.remember(program.structure, program)
        if code.symbolic is not None:
            program.family.trials[code.symbolic] = new_trial(program)
        self.judging.adopt(program, code)
        bus.emit(CompileFinished(program.signature.exact, seconds))

    def _end(self, program: Program, event: FormEvent, reason: str) -> bool:
        """Interpret a program from now on; returns False if another thread has found out about it meanwhile."""
        with self.lock:
            is_open = program.forms.is_open
            if is_open:
                program.forms.change(event, reason=reason)
            return is_open

    def _close(self, program: Program, error: CompileError) -> None:
        program.family.closed = str(error)
        text = "".join(traceback.format_exception(error))
        bus.emit(CompileFailed(program.signature.exact, f"for open sizes: {error}", text))

    def _fail(self, program: Program, error: CompileError, location: str) -> None:
        if isinstance(error, RefusedError):
            failed = error.kind is VerdictKind.FAILED
            self._end(program, FormEvent.FAILED if failed else FormEvent.REFUSED, str(error))
            return
        own = not concerns_every_program(error)
        news = self._end(program, FormEvent.FAILED if own else FormEvent.KEPT, str(error))
        bus.emit(CompileFailed(program.signature.exact, str(error), "".join(traceback.format_exception(error))))
        if not news:
            return
        if own and program.left_out and not program.schedule.requests:
            return  # it only calls operators of torch that compiled code cannot call: nothing is to be mended
        self.warnings.warn(program.signature, error, location)
