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
from gtrace.core.backends.executable import Compiled, Executable
from gtrace.core.backends.inductor.driver import IMPORT_SECONDS, startup_seconds
from gtrace.core.backends.inductor.failures import named_operators
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
from gtrace.core.runtime.instruments import measure_library_share
from gtrace.core.runtime.program import Partial, Program
from gtrace.core.runtime.trials import Trials, new_trial
from gtrace.core.runtime.worker.client import find_python, worker
from gtrace.core.runtime.worker.sharing import sharing

MAX_VERSIONS = 8
"""Programs of one structure that are compiled for different sizes of their inputs."""

MAX_LATEST = 4096
"""Structures of which the latest compiled program is remembered, to say what has changed."""


class TierController:
    """Moves programs between tiers.

    Two locks: `lock` is held for a moment, to change tiers and ledgers. The other is held while this process compiles,
    because torch's compilers run one at a time; only a caller that asks for a compile waits for it.

    Args:
        programs: every program of the engine.

    Attributes:
        judging: what judges compiled programs.
        cost, worker_cost: what compiling takes, here and in the worker.
        compiles: programs compiled so far, here or in the worker.
        loaded: programs found compiled on disk.
        warnings: what warns of compiles that failed.
        left_out: operators of torch that are not compiled, by overload: those that the compiler was found to have no
            code for, and layers that are calls of a library.
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
            program.requested = program.family.requested = False
            program.partial = None

    # -- deciding

    def expected(self, program: Program, settings: Config, natively: bool = True) -> float:
        """Return what compiling a program is expected to cost the running program, in seconds.

        Args:
            natively: whether the C++ compiler alone compiles it, if that can be.
        """
        if natively and program.natively:
            seconds = program.native_seconds
            return seconds * sharing.slowdown(alone=True) if settings.background else seconds
        if settings.background:
            return self.worker_cost.predict(program.ops) * sharing.slowdown(program.library_share or 0.0)
        return self.cost.predict(program.ops)

    def consider(self, program: Program) -> bool:
        """Compile a program once interpreting has cost as much as compiling should; returns whether it waits."""
        if program.requested or program.reason:
            return False
        settings, family = config.current, program.family
        if (
            program.interpreted_seconds < program.patience
            and program.settings is settings
            and program.seen == len(family.symbolic)
            and (family.closed or len(family.members) == 1)
        ):
            return True
        policy = policies.Policy(settings.auto_compile, settings.compile, settings.hot_threshold, settings.min_seq)
        ops = program.ops
        expected = self.expected(program, settings)
        # the call about to happen counts: from the threshold-th repetition on a program is hot
        calls = program.interpreted_calls + 1
        won = program.won
        seconds = (program.interpreted_seconds + program.earlier) * won
        own = policies.decide(policies.History(ops, calls, seconds), policy, expected)
        if own is policies.Decision.NEVER:
            program.settled = settings
            return False
        if program.seen != len(family.symbolic):
            program.seen = len(family.symbolic)
            if self._join(program):
                return False
        if not program.looked and not policy.compile:
            program.looked = True
            if self._find(program, refusals=True):
                return False
            program.earlier = artifacts.earlier(program.signature).interpreted_seconds
            self._learn_earlier()
        if own is policies.Decision.WAIT:
            if policy.hot_threshold is None:
                program.settings, program.patience = settings, expected / won - program.earlier if won else math.inf
            # each size may be rare, and all together frequent
            if family.closed or family.requested or family.tried == family.count or not family.others(program):
                return True
            calls, seconds = family.calls + 1, family.seconds * won
            if program.short:
                expected = self.expected(program, settings, natively=False)
            together = policies.decide(policies.History(ops, calls, seconds), policy, expected)
            if together is not policies.Decision.COMPILE:
                return True
            if family.relate(program) is None:
                family.tried = family.count
                return True
            family.many = True
        if policy.hot_threshold is None and not policy.compile and program.unmeasured:
            if program.instrument is None:  # a profile measures it too
                program.instrument = measure_library_share
            return True
        if Detected in bus.wanted and not settings.compile:
            names = tuple(node.op.name for node in program.graph.nodes)
            bus.emit(Detected(program.signature.exact, names, calls, seconds))
        if policy.compile or not settings.background or not self._ahead_of_time(program):
            # another thread may be compiling: then this call is interpreted, and a later one asks again
            self.compile(program, wait=math.inf if policy.compile else 0)
        else:
            self._request(program)
        return False

    def _learn_earlier(self) -> None:
        """Expect of compiles what they took in earlier processes."""
        if self._earlier_unknown:
            self._earlier_unknown = False
            compiles = artifacts.compiled_before()
            self.cost.learn_earlier(compiles)
            self.worker_cost.learn_earlier(compiles)

    def _ahead_of_time(self, program: Program) -> bool:
        return find_backend(program.key.backend).ahead_of_time(program.key.mode, program.device)

    def _join(self, program: Program) -> bool:
        """Run a program by the compiled form of its family for open sizes, if one fits; returns whether one does."""
        found = program.family.find(program.shape)
        if found is None:
            return False
        with self.lock:
            program.symbolic, executable = found
            program.origin = executable.origin
            self.judging.adopt(program, executable)
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
            if program.tier != "interpreted":
                return True
            if executable is not None:
                assert symbolic is not None
                family.symbolic.append(symbolic)
                program.symbolic = symbolic
                family.trials[symbolic] = new_trial(program)
            elif isinstance(found, Refusal):
                slow = found.tier == "demoted"
                if program.leave_to_inductor() if slow else self._leave_out(program, CompileError(found.reason)):
                    return self._find(program, refusals)
                if refusals:
                    program.tier, program.reason = found.tier, found.reason
                return refusals
            elif found is None:
                return False
            else:
                executable = exact.finish(found)
            program.origin = executable.origin
            self.judging.adopt(program, executable)
            self.loaded += 1
        if Loaded in bus.wanted:
            bus.emit(Loaded(program.signature.exact, perf_counter() - start))
        return True

    def _refuse(self, program: Program) -> bool:
        """Keep a program interpreted if it computes nothing or is one version too many; returns whether it is."""
        family = program.family
        others = family.others(program)
        if 0 in program.dims and others:
            program.reason = "a size is 0: there is nothing to compute"
            return True
        if len(family.exact) + len(family.symbolic) < MAX_VERSIONS or program.dims in family.exact or not others:
            return False
        change = difference(others[0].graph, program.graph, (), ())
        why = f" ({family.closed})" if family.closed else ""
        program.reason = f"compiled for {MAX_VERSIONS} other sizes already"
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
            elif program.tier == "interpreted" and not program.reason:
                program.looked = True
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
                bus.emit(Awaiting(total - sum(program.requested for program in programs) - len(here), total))
            return not any(program.requested for program in awaited)

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
            if program.tier != "interpreted" or program.reason or self._join(program):
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
                    executable = way.finish(results)
            except CompileError as error:
                if way.symbolic is None or concerns_every_program(error):
                    raise
                self._close(program, error)
                way = for_own_sizes(program)
                results = self._results(way)
                with self.lock:
                    executable = way.finish(results)
        except CompileError as error:
            program.compile_seconds = perf_counter() - start
            if self._leave_out(program, error):
                self._compile(program)
            else:
                self._fail(program, error, user_location())
            return
        with self.lock:
            if program.tier == "interpreted":  # the worker may have been faster
                self._finish(way, executable, perf_counter() - start)

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
            if program.tier != "interpreted" or program.reason or program.requested or self._join(program):
                return
            if self._refuse(program):
                return
            way = compilation(program)
            program.requested = True
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
        program = way.program
        with self.lock:
            if program.requested and program.tier == "interpreted":
                partial = program.partial
                usual = program.usual if partial is None else partial.usual
                program.partial, program.usual = Partial(way.in_part(found), usual), 0.0

    def _arrived(self, way: Compilation, outcome: Results | CompileError, seconds: float, location: str) -> None:
        """Adopt what the worker compiled, or note why it failed. Called in the thread that serves the worker."""
        program = way.program
        with self.lock:
            program.requested, program.partial = False, None
            if way.symbolic is not None:
                program.family.requested = False
            if program.tier != "interpreted":
                return
            if not isinstance(outcome, CompileError):
                try:
                    executable = way.finish(outcome)
                except CompileError as error:
                    outcome = error
                else:
                    self._finish(way, executable, seconds)
                    return
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

    def _finish(self, way: Compilation, executable: Executable, seconds: float) -> None:
        program = way.program
        program.compile_seconds, program.origin = seconds, executable.origin
        model = self.cost if executable.origin == "process" else self.worker_cost
        if program.symbolic is not None or not program.native:
            model.learn(program.ops, seconds)
        self.compiles += 1
        program.family.calls, program.family.seconds = 0, 0.0
        self._latest.remember(program.structure, program)
        if program.symbolic is not None:
            program.family.trials[program.symbolic] = new_trial(program)
        self.judging.adopt(program, executable)
        bus.emit(CompileFinished(program.signature.exact, seconds))

    def _close(self, program: Program, error: CompileError) -> None:
        program.family.closed = str(error)
        text = "".join(traceback.format_exception(error))
        bus.emit(CompileFailed(program.signature.exact, f"for open sizes: {error}", text))

    def _fail(self, program: Program, error: CompileError, location: str) -> None:
        program.reason = str(error)
        own = not concerns_every_program(error)
        if own:
            program.tier = "failed"
        bus.emit(CompileFailed(program.signature.exact, program.reason, "".join(traceback.format_exception(error))))
        if own and program.left_out and not program.schedule.requests:
            return  # it only calls operators of torch that compiled code cannot call: nothing is to be mended
        self.warnings.warn(program.signature, error, location)
