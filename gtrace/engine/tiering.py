"""From interpreted to compiled and back: when a program is compiled, by whom, and whether that was worth it."""

from __future__ import annotations

import math
import statistics
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from time import perf_counter

import attrs
import torch

from gtrace.ambient import without_modes
from gtrace.cache.artifacts import Refusal, artifacts
from gtrace.cache.manifest import Verdict, VerdictKind
from gtrace.compile.backend import find_backend
from gtrace.compile.executable import Compiled, Executable, interpreted
from gtrace.compile.inductor.driver import IMPORT_SECONDS, startup_seconds
from gtrace.compile.request import CompileRequest
from gtrace.compile.schedule import Results
from gtrace.config import Config, config
from gtrace.engine import policy as policies
from gtrace.engine.audit import disagreement
from gtrace.engine.compilation import Compilation, compilation, for_own_sizes
from gtrace.engine.program import Program, Trial
from gtrace.errors import AuditWarning, CompileError, CompileWarning, UnsupportedTorchError, user_location, warn_at
from gtrace.events import (
    CompileFailed,
    CompileFinished,
    CompileStarted,
    Detected,
    Judged,
    Loaded,
    Recompiling,
    bus,
)
from gtrace.ir.difference import difference
from gtrace.ir.signature import CompileKey
from gtrace.locks import ExclusiveLock, new_lock
from gtrace.worker.client import worker
from gtrace.worker.sharing import sharing

MAX_VERSIONS = 8
"""Programs of one structure that are compiled for different sizes of their inputs."""

MAX_LATEST = 4096
"""Structures of which the latest compiled program is remembered, to say what has changed."""


class Tiering:
    """Moves programs between tiers.

    Two locks: `lock` is held for a moment, to change tiers and ledgers. The other is held while this process compiles,
    because torch's compilers run one at a time; only a caller that asks for a compile waits for it.

    Args:
        programs: every program of the engine.

    Attributes:
        cost, worker_cost: what compiling takes, here and in the worker.
        compiles: programs compiled so far, here or in the worker.
        loaded: programs found compiled on disk.
    """

    def __init__(self, programs: Mapping[CompileKey, Program]) -> None:
        self.cost = policies.CostModel(startup=startup_seconds())
        self.worker_cost = policies.CostModel(startup=startup_seconds() + policies.WORKER_START_SECONDS)
        self.compiles = 0
        self.loaded = 0
        self._programs = programs
        self._made: weakref.WeakKeyDictionary[CompileRequest, Compiled] = weakref.WeakKeyDictionary()
        self._latest: dict[tuple[str, str, str, int], Program] = {}
        self._unsupported = False
        self.lock = new_lock()
        self._compiler = ExclusiveLock()

    def forked(self) -> None:
        """Begin anew, as in a process that was forked.

        Outcomes of the parent's worker do not reach this process, so these programs may be requested again.
        """
        for program in list(self._programs.values()):
            program.requested = program.family.requested = False

    # -- deciding

    def expected(self, ops: int, settings: Config) -> float:
        """Return what compiling a program of `ops` operations is expected to cost the running program, in seconds."""
        if settings.background:
            return self.worker_cost.predict(ops) * sharing.slowdown
        return self.cost.predict(ops)

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
        ops = len(program.graph.nodes)
        expected = self.expected(ops, settings)
        # the call about to happen counts: from the threshold-th repetition on a program is hot
        calls = program.interpreted_calls + 1
        won = 1.0 - (program.products or 0.0)
        seconds = (program.interpreted_seconds + program.earlier) * won
        own = policies.decide(policies.History(ops, calls, seconds), policy, expected)
        if own is policies.Decision.NEVER:
            return False
        if program.seen != len(family.symbolic):
            program.seen = len(family.symbolic)
            if self._join(program):
                return False
        if not program.looked and not policy.compile:
            program.looked = True
            if self._find(program, refusals=True):
                return False
            program.earlier = artifacts.interpreted_before(program.signature)
        if own is policies.Decision.WAIT:
            if policy.hot_threshold is None:
                program.settings, program.patience = settings, expected / won - program.earlier if won else math.inf
            # each size may be rare, and all together frequent
            if family.closed or family.requested or family.tried == family.count or not family.others(program):
                return True
            calls, seconds = family.calls + 1, family.seconds * won
            together = policies.decide(policies.History(ops, calls, seconds), policy, expected)
            if together is not policies.Decision.COMPILE:
                return True
            if family.relate(program) is None:
                family.tried = family.count
                return True
        if policy.hot_threshold is None and not policy.compile and program.unmeasured:
            program.measuring = True
            return True
        if Detected in bus.wanted and not settings.compile:
            names = tuple(node.op.name for node in program.graph.nodes)
            bus.emit(Detected(program.signature.exact, names, calls, seconds))
        if policy.compile or not settings.background or not self._ahead_of_time(program):
            # another thread may be compiling: then this call is interpreted, and a later one asks again
            self.compile(program, wait=policy.compile)
        else:
            self._request(program)
        return False

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
            self.adopt(program, executable)
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
            elif isinstance(found, Refusal):
                if refusals:
                    program.tier, program.reason = found.tier, found.reason
                return refusals
            elif found is None:
                return False
            else:
                executable = exact.finish(found)
            program.origin = executable.origin
            self.adopt(program, executable)
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
    def compile(self, program: Program, wait: bool = True) -> None:
        """Compile a program now, in this thread, unless it was tried before. A failure warns once and is final.

        If others of its family have other sizes, the program is compiled for all of them, and later ones run it too.

        Args:
            wait: for a compile of another thread to end; else it stays interpreted for now.
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
        missing = []
        for program in programs:
            if not settings.background or not self._ahead_of_time(program):
                self.compile(program)
            elif program.tier == "interpreted" and not program.reason:
                program.looked = True
                if not self._find(program, refusals=not to_the_end):
                    missing.append(program)
        sizes = [len(program.graph.nodes) for program in missing]
        alone = not to_the_end or worker.pending > 0
        cost = self._cost_from_now()
        here = [to_the_end] * len(sizes) if alone else policies.split_work(sizes, self.cost, cost)
        for program, own in zip(missing, here, strict=True):
            if not own:
                self._request(program)
        for program, own in zip(missing, here, strict=True):
            if own:
                self.compile(program)
        left = min(end - perf_counter(), threading.TIMEOUT_MAX)
        if to_the_end or (sizes and cost.predict(min(sizes)) <= left):
            worker.wait(left, lambda: not any(program.requested for program in programs))

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
                if way.symbolic is None or isinstance(error, UnsupportedTorchError):
                    raise
                self._close(program, error)
                way = for_own_sizes(program)
                results = self._results(way)
                with self.lock:
                    executable = way.finish(results)
        except CompileError as error:
            program.compile_seconds = perf_counter() - start
            self._fail(program, error, user_location())
            return
        with self.lock:
            if program.tier == "interpreted":  # the worker may have been faster
                self._finish(way, executable, perf_counter() - start)

    def _results(self, way: Compilation) -> Results:
        """Compile the requests that were not compiled yet: several programs may have the body of a loop in common."""
        program, backend = way.program, find_backend(way.program.key.backend)
        for name, request in way.names().items():
            if request in self._made:
                continue
            if self._ahead_of_time(program):
                compiled = artifacts.compile(name, request, program.signature, way.constants)
            else:
                compiled = backend.compile(request)
            self._made[request] = compiled
        return {request: self._made[request] for request in way.schedule.requests}

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
        start = perf_counter()
        artifacts.request(
            way.names(),
            program.signature,
            way.constants,
            lambda outcome: self._arrived(way, outcome, perf_counter() - start, location),
        )

    def _arrived(self, way: Compilation, outcome: Results | CompileError, seconds: float, location: str) -> None:
        """Adopt what the worker compiled, or note why it failed. Called in the thread that serves the worker."""
        program = way.program
        with self.lock:
            program.requested = False
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
            if way.symbolic is not None and not isinstance(outcome, UnsupportedTorchError):
                # a single size may still compile, when it is hot
                self._close(program, outcome)
            else:
                self._fail(program, outcome, location)

    def _announce(self, program: Program, background: bool) -> None:
        latest = self._latest.get(program.structure)
        if latest is not None and Recompiling in bus.wanted:
            change = difference(latest.graph, program.graph, latest.key.strides, program.key.strides)
            bus.emit(Recompiling(program.signature.exact, change))
        bus.emit(CompileStarted(program.signature.exact, len(program.graph.nodes), background))

    def _finish(self, way: Compilation, executable: Executable, seconds: float) -> None:
        program = way.program
        program.compile_seconds, program.origin = seconds, executable.origin
        model = self.cost if executable.origin == "process" else self.worker_cost
        model.learn(len(program.graph.nodes), seconds)
        self.compiles += 1
        program.family.calls, program.family.seconds = 0, 0.0
        if len(self._latest) >= MAX_LATEST:
            self._latest.clear()
        self._latest[program.structure] = program
        if program.symbolic is not None and program.interpreted_samples:
            program.family.trials[program.symbolic] = Trial()
        self.adopt(program, executable)
        bus.emit(CompileFinished(program.signature.exact, seconds))

    def _close(self, program: Program, error: CompileError) -> None:
        program.family.closed = str(error)
        text = "".join(traceback.format_exception(error))
        bus.emit(CompileFailed(program.signature.exact, f"for open sizes: {error}", text))

    def _fail(self, program: Program, error: CompileError, location: str) -> None:
        program.reason = str(error)
        if isinstance(error, UnsupportedTorchError):  # no program's fault: each stays interpreted
            if not self._unsupported:
                warn_at(f"{error}. Everything is interpreted.", location, CompileWarning)
            self._unsupported = True
            return
        program.tier = "failed"
        bus.emit(CompileFailed(program.signature.exact, program.reason, "".join(traceback.format_exception(error))))
        warn_at(
            f"compiling {program.signature} failed, interpreting instead: {program.reason}"
            " (GT_DEBUG_COMPILE=2 for the traceback)",
            location,
            CompileWarning,
        )

    # -- judging

    def adopt(self, program: Program, executable: Executable) -> None:
        """Run a program by its compiled form from now on.

        If it was interpreted before, the two take turns until enough calls of each were timed. The load of the machine
        changes, so only times taken side by side can be compared. Programs that share
        compiled code are judged together.
        """
        trial = Trial() if program.interpreted_samples else None
        if program.symbolic is not None:
            trial = program.family.trials.get(program.symbolic)
        if trial is not None:
            trial.programs.append(program)
            program.trial, program.reference = trial, program.executable
            program.interpreted_samples.clear()
        program.executable = executable
        program.tier = "compiled"
        program.usual = 0.0

    def judge(self, trial: Trial) -> None:
        """Compare tiers once enough calls were timed; a compiled program that is slower is interpreted again."""
        speedup = policies.judge(trial.pairs)
        if speedup is None:
            return
        before = statistics.median(interpreted for interpreted, _ in trial.pairs)
        first = trial.programs[0]
        for program in trial.programs:
            reference, program.reference, program.trial, program.waiting = program.reference, None, None, None
            if speedup < 1.0:
                assert reference is not None
                program.executable, program.tier = reference, "demoted"
                program.reason = f"compiled {before / speedup * 1e3:.2f} ms, interpreted {before * 1e3:.2f} ms"
        if first.symbolic is not None:
            first.family.trials.pop(first.symbolic)
        if speedup < 1.0:
            self._abandon(first, Verdict(VerdictKind.DEMOTED, first.reason))
        bus.emit(Judged(first.signature.exact, before, before / speedup, speedup < 1.0))

    def _abandon(self, program: Program, verdict: Verdict) -> None:
        """Do not run a program's compiled code again, in this process and in later ones."""
        family, symbolic = program.family, program.symbolic
        if symbolic is None:
            names = list(for_own_sizes(program).names())
        else:
            if symbolic in family.symbolic:
                family.symbolic.remove(symbolic)
            family.closed = f"for open sizes it was {verdict}"
            names = artifacts.symbolic_names(family.name, symbolic.relations, symbolic.constants)
        artifacts.set_verdict(names, verdict)

    @without_modes
    def audit(
        self, program: Program, tensors: Sequence[torch.Tensor], results: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Compare a compiled call with its interpretation; returns the results to go on with."""
        if program.audited is None:
            program.audited = interpreted(program.graph)
        expected = program.audited.run(tensors)
        problem = disagreement(expected, results)
        if not problem:
            return results
        reason = f"audit: {problem}"
        with self.lock:
            for other in list(self._programs.values()):
                if other is program or (program.symbolic is not None and other.symbolic is program.symbolic):
                    other.executable, other.tier, other.reason = interpreted(other.graph), "demoted", reason
                    other.reference = other.trial = other.waiting = None
            self._abandon(program, Verdict(VerdictKind.QUARANTINED, reason))
        warn_at(
            f"compiled program {program.signature} is wrong and is interpreted from now on, in later runs too:"
            f" {problem}",
            user_location(),
            AuditWarning,
        )
        return expected
