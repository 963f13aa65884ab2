"""From interpreted to compiled and back: when a program is compiled, by whom, and whether that was worth it."""

from __future__ import annotations

import math
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import attrs

from gtrace.core.backends.backend import find_backend
from gtrace.core.backends.executable import Compiled
from gtrace.core.backends.inductor.driver import startup_seconds
from gtrace.core.backends.inductor.failures import named_operators
from gtrace.core.backends.inductor.tuned import IMPORT_SECONDS
from gtrace.core.backends.interpreter import lstm
from gtrace.core.backends.native.values import UnsupportedLoopError
from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.schedule import Results
from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.config import Config, config
from gtrace.core.base.errors import CompileError, CompileWarning, UnsupportedTorchError, user_location, warn_at
from gtrace.core.base.events import (
    Awaiting,
    CompileFailed,
    CompileFinished,
    CompileStarted,
    Detected,
    Loaded,
    Recompiling,
    bus,
)
from gtrace.core.base.locks import ExclusiveLock, new_lock
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.difference import difference
from gtrace.core.ir.signature import CompileKey
from gtrace.core.runtime import policy as policies
from gtrace.core.runtime.cache.artifact_cache import Refusal, artifacts
from gtrace.core.runtime.compilation import Compilation, compilation, for_own_sizes
from gtrace.core.runtime.compile_warnings import CompileWarnings, concerns_every_program
from gtrace.core.runtime.decisions import WAIT, Action, Decision, decide
from gtrace.core.runtime.forms import Code, Event, Partial, State
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.trials import Trials, new_trial
from gtrace.core.runtime.worker.client import find_python, worker
from gtrace.core.runtime.worker.sharing import sharing

MAX_VERSIONS = 8
"""Programs of one structure that are compiled for different sizes of their inputs."""

MAX_LATEST = 4096
"""Structures of which the latest compiled program is remembered, to say what has changed."""


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
        self.lock = new_lock()
        self._compiler = ExclusiveLock()
        self.judging = Trials(programs, self.lock)

    def forked(self) -> None:
        """Begin anew, as in a process that was forked.

        Outcomes of the parent's worker do not reach this process, so these programs may be requested again.
        """
        for program in list(self._programs.values()):
            program.family.requested = False
            if program.forms.is_requested:
                program.forms.change(Event.WITHDRAWN)

    # -- deciding

    def expected(self, program: Program, settings: Config, natively: bool = True) -> float:
        """Return what compiling a program is expected to cost the running program, in seconds.

        Args:
            natively: whether the C++ compiler alone compiles it, if that can be.
        """
        if natively and program.natively:
            seconds = program.native_seconds
            return seconds * sharing.slowdown(alone=True) if settings.background else seconds
        if settings.background and self._ahead_of_time(program):
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
            family.many = True
        if action is Action.SETTLE:
            if program.forms.executable in program.forms.agreed:
                ledger.settle(settings)
        elif action is Action.WAIT_APART:
            family.tried = family.count
        elif action is Action.JOIN:
            ledger.compare(len(family.symbolic))
            return not self._join(program)
        elif action is Action.LOOK:
            ledger.look()
            if self._find(program, refusals=True):
                return False
            ledger.learn_earlier(artifacts.earlier(program.signature).interpreted_seconds)
            self._learn_earlier()
            return True
        elif action is Action.COMPILE:
            if Detected in bus.wanted and not settings.compile:
                names = tuple(node.op.name for node in program.graph.nodes)
                bus.emit(Detected(program.signature.exact, names, decision.calls, decision.seconds))
            if settings.compile or not settings.background or not self._ahead_of_time(program):
                # another thread may be compiling: then this call is interpreted, and a later one asks again
                self.compile(program, wait=math.inf if settings.compile else 0)
            elif self._came_to_nothing(program):
                self.compile_all([program], math.inf)
            else:
                self._request(program)
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

    def _ahead_of_time(self, program: Program) -> bool:
        return find_backend(program.key.backend).ahead_of_time(program.device)

    def _join(self, program: Program) -> bool:
        """Run a program by the compiled form of its family for open sizes, if one fits; returns whether one does."""
        code = program.family.find(program.shape)
        if code is None:
            return False
        with self.lock:
            if program.forms.is_open:  # another thread may have been faster
                self.judging.adopt(program, code)
        return True

    def _find(self, program: Program, refusals: bool) -> bool:
        """Run a program by what an earlier process compiled; returns whether its tier is settled.

        Args:
            refusals: whether the tier is settled too if an earlier process failed to compile it, or found it slower.
        """
        if artifacts.empty or not self._ahead_of_time(program):
            return False
        start = perf_counter()
        exact = for_own_sizes(program)
        family = program.family
        try:
            symbolic = None if family.closed else artifacts.find_symbolic(family.name, program.shape)
            executable = None if symbolic is None else symbolic.executable_for(program.shape)
            found = None if executable is not None else artifacts.find(exact.names())
        except UnsupportedTorchError as error:
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
            elif isinstance(found, Refusal):
                slow = found.tier == "demoted"
                if program.leave_to_inductor() if slow else self._leave_out(program, CompileError(found.reason)):
                    return self._find(program, refusals)
                if refusals:
                    program.forms.change(Event.REFUSED if slow else Event.FAILED, reason=found.reason)
                return refusals
            elif found is None:
                return False
            else:
                code = exact.finish(found)
            self.judging.adopt(program, code)
            self.loaded += 1
        if Loaded in bus.wanted:
            bus.emit(Loaded(program.signature.exact, perf_counter() - start))
        return True

    def _refuse(self, program: Program) -> bool:
        """Keep a program interpreted if it computes nothing or is one version too many; returns whether it is."""
        family = program.family
        others = family.others(program)
        if 0 in program.dims and others:
            self._end(program, Event.KEPT, "a size is 0: there is nothing to compute")
            return True
        if len(family.exact) + len(family.symbolic) < MAX_VERSIONS or program.dims in family.exact or not others:
            return False
        change = difference(others[0].graph, program.graph, (), ())
        why = f" ({family.closed})" if family.closed else ""
        self._end(program, Event.KEPT, f"compiled for {MAX_VERSIONS} other sizes already")
        if not family.warned:
            family.warned = True
            warn_at(
                f"program {program.signature} was compiled for {MAX_VERSIONS} sizes, none of which fits: {change}. It"
                f" could not be compiled for every size{why}, and is interpreted for further ones. Pad that dimension"
                " to a few sizes, or make the integers that follow from it simple functions of it.",
                user_location(),
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
    def compile_all(self, programs: Sequence[Program], wait: float) -> None:
        """Have programs compiled, and wait for it.

        Args:
            wait: seconds, at most; after that they are interpreted until they are compiled. No time is spent on waiting
                if none is expected to be compiled by then. Infinity: this thread compiles too, and waits to the end.
        """
        settings = config.current
        to_the_end = wait == math.inf or settings.compile
        end = perf_counter() + wait
        here: list[Program] = []
        short: list[Program] = []
        missing: list[Program] = []
        for program in programs:
            # a loop takes the C++ compiler a third of a second, less than a worker takes to start
            native = program.natively and program.native_seconds <= wait
            if not settings.background or (native and to_the_end) or not self._ahead_of_time(program):
                here.append(program)
            elif program.forms.is_open:
                program.ledger.look()
                if not self._find(program, refusals=not settings.compile):
                    (short if native and program.natively else missing).append(program)
        sizes = [program.ops for program in missing]
        alone = not to_the_end or worker.pending > 0
        cost = self._cost_from_now()
        split = (
            [to_the_end] * len(sizes) if alone or find_python() is None else policies.split_work(sizes, self.cost, cost)
        )
        there = [program for program, own in zip(missing, split, strict=True) if not own]
        here += [program for program, own in zip(missing, split, strict=True) if own]
        for program in (*short, *there):
            self._request(program)
        total = len(here) + len(short) + len(there)
        # where another thread compiles in this process, waiting for that counts too
        bounded = settings.background and not to_the_end

        def done(awaited: Sequence[Program] = programs) -> bool:
            if Awaiting in bus.wanted:
                bus.emit(Awaiting(total - sum(program.forms.is_requested for program in programs) - len(here), total))
            return not any(program.forms.is_requested for program in awaited)

        try:
            while here:
                done()
                self.compile(here.pop(0), max(end - perf_counter(), 0.0) if bounded else math.inf)
            left = min(end - perf_counter(), threading.TIMEOUT_MAX)
            if to_the_end or (sizes and cost.predict(min(sizes)) <= left):
                worker.wait(left, done)
            elif short:
                worker.wait(left, lambda: done(short))
        finally:
            if Awaiting in bus.wanted:
                bus.emit(Awaiting(total, total, over=True))

    def _cost_from_now(self) -> policies.CostModel:
        """Return the cost of the worker, which may have to start again."""
        if worker.pid is not None or self.worker_cost.startup:
            return self.worker_cost
        return attrs.evolve(self.worker_cost, startup=IMPORT_SECONDS + policies.WORKER_START_SECONDS)

    def _compile(self, program: Program) -> None:
        with self.lock:
            if not program.forms.is_open or self._join(program):
                return
        if self._find(program, refusals=False) or self._refuse(program):
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
                if self._ahead_of_time(program):
                    compiled = artifacts.compile(name, request, program.signature, way.constants)
                else:
                    compiled = backend.compile(request)
                self._made[request] = compiled
            results[request] = compiled
        return results

    def _request(self, program: Program) -> None:
        """Have a program compiled by the worker; it is interpreted until that is done."""
        with self.lock:
            if program.forms.state is not State.INTERPRETED or self._join(program) or self._refuse(program):
                return
            way = compilation(program)
            program.forms.change(Event.REQUESTED, awaited=way)
            if way.symbolic is not None:
                program.family.requested = True
            self._announce(program, background=True)
            location = user_location()
        artifacts.request(
            way.names(),
            program.signature,
            way.constants,
            lambda outcome, seconds: self._arrived(way, outcome, seconds, location),
            lambda found: self._arrived_in_part(way, found),
        )

    def _arrived_in_part(self, way: Compilation, found: Results) -> None:
        """Run a program by what is compiled of it. Called in the thread that asks, or that serves the worker."""
        forms = way.program.forms
        with self.lock:
            if forms.awaited is way:
                usual = forms.ledger.usual if forms.partial is None else forms.partial.usual
                forms.change(Event.ARRIVED_IN_PART, partial=Partial(way.in_part(found), usual))

    def _arrived(self, way: Compilation, outcome: Results | CompileError, seconds: float, location: str) -> None:
        """Adopt what the worker compiled, or note why it failed. Called in the thread that serves the worker."""
        program = way.program
        with self.lock:
            if way.symbolic is not None:
                program.family.requested = False
            if program.forms.awaited is not way:
                return  # another thread has compiled the program, or found out about it
            if not isinstance(outcome, CompileError):
                try:
                    code = way.finish(outcome)
                except CompileError as error:
                    outcome = error
                else:
                    self._finish(program, code, seconds)
                    return
            program.forms.change(Event.WITHDRAWN)
            if self._leave_out(program, outcome):
                self._request(program)
            elif way.symbolic is not None and not concerns_every_program(outcome):
                # a single size may still compile, when it is hot
                self._close(program, outcome)
            else:
                self._fail(program, outcome, location)

    def _leave_out(self, program: Program, error: CompileError) -> bool:
        """Have the operators interpreted that a compiler's error names; returns whether something is left to compile.

        The same holds for programs that are made from now on. A short program that has no native code after all is left
        to Inductor.
        """
        with self.lock:
            if isinstance(error, UnsupportedLoopError) and program.leave_to_inductor():
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

    def _end(self, program: Program, event: Event, reason: str) -> bool:
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
        own = not concerns_every_program(error)
        news = self._end(program, Event.FAILED if own else Event.KEPT, str(error))
        bus.emit(CompileFailed(program.signature.exact, str(error), "".join(traceback.format_exception(error))))
        if not news:
            return
        if own and program.left_out and not program.schedule.requests:
            return  # it only calls operators of torch that compiled code cannot call: nothing is to be mended
        self.warnings.warn(program.signature, error, location)
