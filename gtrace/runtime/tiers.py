"""From interpreted to compiled and back: when a program is compiled, by whom, and whether that was worth it."""

from __future__ import annotations

import statistics
import threading
import traceback
import warnings
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from gtrace.config import Config, config
from gtrace.errors import AuditWarning, CompileError, CompileWarning, user_location
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
from gtrace.runtime import hot
from gtrace.runtime.audit import disagreement
from gtrace.runtime.difference import difference
from gtrace.runtime.entry import Entry, Trial
from gtrace.runtime.inductor import compile_unit, startup_seconds
from gtrace.runtime.interpret import Program, interpreter
from gtrace.runtime.plan import Plan, plan
from gtrace.runtime.shelf import Refusal, shelf
from gtrace.runtime.signature import CompileKey
from gtrace.runtime.unit import Made

MAX_VERSIONS = 8
"""Programs of one structure that are compiled for different sizes of their inputs."""

LEDGER_SECONDS = 0.01
"""Time spent on a program that was never compiled from which on the ledger on disk has a line for it."""


class Tiers:
    """Moves entries between tiers.

    Attributes:
        entries: every program.
        cost, worker_cost: what compiling takes, here and in the worker.
        compiles: programs compiled so far, here or in the worker.
        loaded: programs found compiled on disk.
    """

    def __init__(self) -> None:
        self.entries: dict[CompileKey, Entry] = {}
        self.cost = hot.CostModel(startup=startup_seconds())
        self.worker_cost = hot.CostModel(base=hot.WORKER_SECONDS)
        self.compiles = 0
        self.loaded = 0
        self._latest: dict[tuple[str, str, str], Entry] = {}
        self._ledger = threading.Lock()
        self._compiling = threading.RLock()

    # -- deciding

    def expected(self, ops: int, settings: Config) -> float:
        """Return what compiling a program of `ops` operations is expected to cost the running program, in seconds."""
        if settings.background:
            return self.worker_cost.predict(ops) * hot.WORKER_SHARE
        return self.cost.predict(ops)

    def consider(self, entry: Entry) -> bool:
        """Compile an entry whose interpretation has cost as much as compiling it should; whether it is to wait."""
        if entry.requested or entry.reason:
            return False
        settings, family = config.current, entry.family
        if (
            entry.interpreted_seconds < entry.patience
            and entry.settings is settings
            and entry.seen == len(family.general)
            and (family.closed or len(family.members) == 1)
        ):
            return True
        policy = hot.Policy(settings.auto_compile, settings.compile, settings.hot_threshold, settings.min_seq)
        ops = len(entry.graph.nodes)
        expected = self.expected(ops, settings)
        # the call about to happen counts: from the threshold-th repetition on a program is hot
        calls, seconds = entry.interpreted_calls + 1, entry.interpreted_seconds
        own = hot.decide(hot.History(ops, calls, seconds), policy, expected)
        if own is hot.Decision.NEVER:
            return False
        if entry.seen != len(family.general):
            entry.seen = len(family.general)
            if self._join(entry):
                return False
        if not entry.looked and not policy.compile:
            entry.looked = True
            if self._find(entry, refusals=True):
                return False
        if own is hot.Decision.WAIT:
            if policy.hot_threshold is None:
                entry.settings, entry.patience = settings, expected
            # each size may be rare, and all together frequent
            if family.closed or family.requested or family.tried == family.count or not family.others(entry):
                return True
            calls, seconds = family.calls + 1, family.seconds
            if hot.decide(hot.History(ops, calls, seconds), policy, expected) is not hot.Decision.COMPILE:
                return True
            if family.relate(entry) is None:
                family.tried = family.count
                return True
        if Detected in bus.wanted and not settings.compile:
            names = tuple(node.op.name for node in entry.graph.nodes)
            bus.emit(Detected(str(entry.signature), names, calls, seconds))
        if policy.compile or not settings.background or entry.key.backend != "inductor":
            self.compile(entry)
        else:
            self._request(entry)
        return False

    def _join(self, entry: Entry) -> bool:
        """Let an entry run a general program of its family, if one fits."""
        general = entry.family.find(entry.shape)
        if general is None:
            return False
        entry.general, entry.origin = general, general.origin
        self.adopt(entry, general.bind(entry.shape))
        return True

    def _find(self, entry: Entry, refusals: bool) -> bool:
        """Let an entry run what an earlier process compiled; whether that settles its tier.

        Args:
            refusals: whether it also counts that an earlier process failed to compile it, or found it slower.
        """
        start = perf_counter()
        general = shelf.find_general(entry)
        if general is not None:
            entry.family.general.append(general)
            entry.general, general.origin = general, "cache"
            program = general.bind(entry.shape)
        else:
            exact = Plan(entry)
            found = shelf.find(exact)
            if isinstance(found, Refusal) and refusals:
                entry.tier, entry.reason = found.tier, found.reason
                return True
            if not isinstance(found, dict):
                return False
            program = exact.build(lambda unit: found[unit.name], "artifact")
        entry.origin = "cache"
        self.adopt(entry, program)
        with self._ledger:
            self.loaded += 1
        if Loaded in bus.wanted:
            bus.emit(Loaded(str(entry.signature), perf_counter() - start))
        return True

    def _refuse(self, entry: Entry) -> bool:
        """Let an entry stay interpreted if it computes nothing or would be one version too many."""
        family = entry.family
        others = family.others(entry)
        if 0 in entry.dims and others:
            entry.reason = "a size is 0: there is nothing to compute"
            return True
        if len(family.exact) + len(family.general) < MAX_VERSIONS or entry.dims in family.exact or not others:
            return False
        change = difference(others[0].graph, entry.graph, (), ())
        why = f" ({family.closed})" if family.closed else ""
        entry.reason = f"compiled for {MAX_VERSIONS} other sizes already"
        if not family.warned:
            family.warned = True
            _warn(
                f"program {entry.signature} was compiled for {MAX_VERSIONS} sizes, none of which fits: {change}. It"
                f" could not be compiled for every size{why}, and is interpreted for further ones. Pad that dimension"
                " to a few sizes, or make the integers that follow from it simple functions of it.",
                user_location(),
            )
        return True

    # -- compiling

    def compile(self, entry: Entry) -> None:
        """Compile an entry now, in this thread, unless it was tried before. A failure warns once and is final.

        If others of its family have other sizes, the program is compiled for all of them, and later ones run it too.
        """
        with self._compiling:
            if entry.tier != "interpreted" or entry.reason or self._join(entry):
                return
            if self._find(entry, refusals=False) or self._refuse(entry):
                return
            way = plan(entry)
            self._announce(entry, background=False)
            start = perf_counter()
            try:
                try:
                    program = way.build(compile_unit, "inductor")
                except CompileError as error:
                    if way.unit is None:
                        raise
                    self._close(entry, error)
                    way = Plan(entry)
                    program = way.build(compile_unit, "inductor")
            except CompileError as error:
                entry.compile_seconds = perf_counter() - start
                self._fail(entry, error, user_location())
                return
            self._finish(way, program, perf_counter() - start, "process")
        if config.current.background and shelf.store is not None and entry.key.backend == "inductor":
            shelf.request(way, lambda outcome: self._replace(way, outcome))

    def _request(self, entry: Entry) -> None:
        """Have an entry compiled by the worker; it is interpreted until that is done."""
        with self._compiling:
            if entry.tier != "interpreted" or entry.reason or entry.requested or self._join(entry):
                return
            if self._refuse(entry):
                return
            way = plan(entry)
            entry.requested = True
            if way.unit is not None:
                entry.family.requested = True
            self._announce(entry, background=True)
            location = user_location()
        start = perf_counter()
        shelf.request(way, lambda outcome: self._arrived(way, outcome, perf_counter() - start, location))

    def _arrived(self, way: Plan, outcome: dict[str, Made] | CompileError, seconds: float, location: str) -> None:
        """Run what the worker made of an entry, or note why there is nothing. Called in the worker's thread."""
        entry = way.entry
        with self._compiling:
            entry.requested = False
            if way.unit is not None:
                entry.family.requested = False
            if entry.tier != "interpreted":
                return
            if not isinstance(outcome, CompileError):
                made = outcome
                try:
                    program = way.build(lambda unit: made[unit.name], "artifact")
                except CompileError as error:
                    outcome = error
                else:
                    self._finish(way, program, seconds, "worker")
                    return
            if way.unit is not None:
                # it may well compile for one size, when that is hot
                self._close(entry, outcome)
            else:
                self._fail(entry, outcome, location)

    def _replace(self, way: Plan, outcome: dict[str, Made] | CompileError) -> None:
        """Run an artifact in place of what was compiled in this process: calling it takes less time."""
        entry = way.entry
        if isinstance(outcome, CompileError):
            return  # the program is compiled as it is
        with self._compiling:
            if entry.tier != "compiled":
                return
            if way.unit is None:
                entry.program = way.build(lambda unit: outcome[unit.name], "artifact")
                entry.origin = "worker"
                return
            general, made = entry.general, outcome[way.unit.name]
            if general is None:
                return
            general.program, general.conditions, general.origin = made.program, made.conditions, "worker"
            for other in list(self.entries.values()):
                if other.general is general and general.fits(other.shape):
                    other.program = general.bind(other.shape)
                    other.origin = "worker"

    def _announce(self, entry: Entry, background: bool) -> None:
        latest = self._latest.get(_structure(entry))
        if latest is not None and Recompiling in bus.wanted:
            change = difference(latest.graph, entry.graph, latest.key.strides, entry.key.strides)
            bus.emit(Recompiling(str(entry.signature), change))
        bus.emit(CompileStarted(str(entry.signature), len(entry.graph.nodes), background))

    def _finish(self, way: Plan, program: Program, seconds: float, origin: str) -> None:
        entry = way.entry
        entry.compile_seconds, entry.origin = seconds, origin
        model = self.cost if origin == "process" else self.worker_cost
        model.learn(len(entry.graph.nodes), seconds)
        self.compiles += 1
        entry.family.calls, entry.family.seconds = 0, 0.0
        self._latest[_structure(entry)] = entry
        if entry.general is not None:
            entry.general.origin = origin
            if entry.interpreted_samples:
                entry.family.trials[entry.general] = Trial()
        self.adopt(entry, program)
        bus.emit(CompileFinished(str(entry.signature), seconds))

    def _close(self, entry: Entry, error: CompileError) -> None:
        entry.family.closed = str(error)
        bus.emit(
            CompileFailed(str(entry.signature), f"for open sizes: {error}", "".join(traceback.format_exception(error)))
        )

    def _fail(self, entry: Entry, error: CompileError, location: str) -> None:
        entry.reason = str(error)
        entry.tier = "failed"
        bus.emit(CompileFailed(str(entry.signature), entry.reason, "".join(traceback.format_exception(error))))
        _warn(
            f"compiling {entry.signature} failed, interpreting instead: {entry.reason}"
            " (GT_DEBUG_COMPILE=2 for the traceback)",
            location,
        )

    # -- judging

    def adopt(self, entry: Entry, program: Program) -> None:
        """Run `entry` as the compiled `program` from now on.

        If it was interpreted before, the two take turns until enough calls of each were timed: the machine may be
        busier now than it was then, so that only times taken side by side say which is faster. Programs that share
        compiled code are judged together.
        """
        trial = Trial() if entry.interpreted_samples else None
        if entry.general is not None:
            trial = entry.family.trials.get(entry.general)
        if trial is not None:
            trial.entries.append(entry)
            entry.trial, entry.reference = trial, entry.program
            entry.interpreted_samples.clear()
        entry.program = program
        entry.tier = "compiled"

    def judge(self, trial: Trial) -> None:
        """Compare tiers once enough calls were timed; a compiled program that is slower is interpreted again."""
        speedup = hot.judge(trial.pairs)
        if speedup is None:
            return
        before = statistics.median(interpreted for interpreted, _ in trial.pairs)
        first = trial.entries[0]
        for entry in trial.entries:
            reference, entry.reference, entry.trial, entry.waiting = entry.reference, None, None, None
            if speedup < 1.0:
                assert reference is not None
                entry.program, entry.tier = reference, "demoted"
                entry.reason = f"compiled {before / speedup * 1e3:.2f} ms, interpreted {before * 1e3:.2f} ms"
        if first.general is not None:
            first.family.trials.pop(first.general)
        if speedup < 1.0:
            self._abandon(first, "demoted", first.reason)
        bus.emit(Judged(str(first.signature), before, before / speedup, speedup < 1.0))

    def _abandon(self, entry: Entry, field: str, reason: str) -> None:
        """Do not run an entry's compiled code again, in this process and in later ones."""
        if entry.general is not None:
            if entry.general in entry.family.general:
                entry.family.general.remove(entry.general)
            entry.family.closed = f"for open sizes it was {field}: {reason}"
        shelf.amend(entry, **{field: reason})

    def audit(self, entry: Entry, tensors: Sequence[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
        """Compare a compiled call with its interpretation; returns the results to go on with."""
        if entry.audited is None:
            entry.audited = interpreter(entry.graph)
        expected = entry.audited(tensors)
        problem = disagreement(expected, results)
        if not problem:
            return results
        reason = f"audit: {problem}"
        with self._compiling:
            for other in list(self.entries.values()):
                if other is entry or (entry.general is not None and other.general is entry.general):
                    other.program, other.tier, other.reason = interpreter(other.graph), "demoted", reason
                    other.reference = other.trial = other.waiting = None
            self._abandon(entry, "quarantined", reason)
        _warn(
            f"compiled program {entry.signature} is wrong and is interpreted from now on, in later runs too: {problem}",
            user_location(),
            AuditWarning,
        )
        return expected

    # -- the ledger on disk

    def save_ledger(self) -> None:
        """Add what this process has measured to the ledger of the store."""
        if shelf.store is None:
            return
        noted: dict[str, dict[str, Any]] = {}
        for entry in list(self.entries.values()):
            if entry.origin or entry.interpreted_seconds + entry.compiled_seconds >= LEDGER_SECONDS:
                noted[str(entry.signature)] = {
                    "runs": 1,
                    "ops": " ".join(node.op.name for node in entry.graph.nodes[:12]),
                    "tier": entry.tier,
                    "interpreted_calls": entry.interpreted_calls,
                    "interpreted_seconds": entry.interpreted_seconds,
                    "compiled_calls": entry.compiled_calls,
                    "compiled_seconds": entry.compiled_seconds,
                    "compile_seconds": entry.compile_seconds,
                    "saved_seconds": entry.saved_seconds or 0.0,
                }
        shelf.store.note(noted)


def _structure(entry: Entry) -> tuple[str, str, str]:
    return entry.signature.structural, entry.key.backend, entry.key.mode


def _warn(text: str, location: str, category: type[Warning] = CompileWarning) -> None:
    name, _, line = location.rpartition(":")
    warnings.warn_explicit(text, category, name, int(line))
