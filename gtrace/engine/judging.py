"""Whether compiled programs are right and worth it: trials against their interpreted form, and audits."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping, Sequence

import torch

from gtrace.ambient import without_modes
from gtrace.cache.artifacts import artifacts
from gtrace.cache.manifest import Verdict, VerdictKind
from gtrace.compile.executable import Executable, interpreted
from gtrace.config import config
from gtrace.engine import policy as policies
from gtrace.engine.audit import disagreement
from gtrace.engine.compilation import for_own_sizes
from gtrace.engine.program import Program, Trial
from gtrace.errors import AuditWarning, user_location, warn_at
from gtrace.events import Judged, bus
from gtrace.ir.signature import CompileKey


def new_trial(program: Program) -> Trial:
    """Return a trial of a compiled program. If it was not interpreted before, interpreted calls are to be rare."""
    if program.interpreted_samples:
        return Trial()
    earlier = artifacts.earlier(program.signature)
    calls = earlier.interpreted_calls
    return Trial(expected=earlier.interpreted_seconds / calls if calls else policies.UNKNOWN_SECONDS)


class Judging:
    """Puts compiled programs on trial, and has those that are slower, or wrong, interpreted again.

    Args:
        programs: every program of the engine.
        lock: held to change tiers and ledgers.
    """

    def __init__(self, programs: Mapping[CompileKey, Program], lock: threading.RLock) -> None:
        self._programs = programs
        self._lock = lock

    def adopt(self, program: Program, executable: Executable) -> None:
        """Run a program by its compiled form from now on.

        It and its interpreted form take turns until enough calls of each were timed. The load of the machine changes,
        so only times taken side by side can be compared. Programs that share compiled code are judged together.
        """
        trial = new_trial(program) if program.symbolic is None else program.family.trials.get(program.symbolic)
        if trial is not None and not config.current.compile:
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
        with self._lock:
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
