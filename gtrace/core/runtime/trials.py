"""Whether compiled programs are right and worth it: trials against their interpreted form, and audits."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping, Sequence

import torch

from gtrace.core.backends.executable import Executable
from gtrace.core.base.config import config
from gtrace.core.base.errors import AuditWarning, user_location, warn_at
from gtrace.core.base.events import Judged, bus
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.signature import CompileKey
from gtrace.core.passes.subgraph_calls import has_calls
from gtrace.core.runtime import policy as policies
from gtrace.core.runtime.audit import disagreement
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.cache.manifest import Verdict, VerdictKind
from gtrace.core.runtime.compilation import for_own_sizes
from gtrace.core.runtime.program import Program, Rival, Trial


def new_trial(program: Program) -> Trial:
    """Return a trial of a compiled program. If it was not interpreted before, interpreted calls are to be rare."""
    if program.interpreted_samples:
        return Trial()
    earlier = artifacts.earlier(program.signature)
    calls = earlier.interpreted_calls
    return Trial(expected=earlier.interpreted_seconds / calls if calls else _interpreted_seconds(program.graph))


def _interpreted_seconds(graph: Graph) -> float:
    """Return what an interpreted call may take, roughly; of a small program not much more than it does.

    A program stays on trial until this time, twenty times, is a tenth of its time.
    """
    if has_calls(graph):
        return policies.UNKNOWN_SECONDS
    moved = sum(a.nbytes for node in graph.nodes for a in (*node.instr.ins, node.instr.aval))
    return len(graph.nodes) * policies.OPERATION_SECONDS + moved * policies.BYTE_SECONDS


class Trials:
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

    def count(self, program: Program, seconds: float, compiled: bool, interpreted: bool, waits: bool) -> None:
        """Add a call to the ledger of a program, and to its trial if it is on one. The lock is held.

        Args:
            compiled: whether the program is; on trial, a call in between is not.
            interpreted: whether the interpreter ran it, and no code for parts of it.
            waits: whether it may be compiled once its family was interpreted for long.
        """
        program.count(seconds, compiled or not interpreted)
        trial = program.trial
        if compiled:
            if trial is not None and trial.due(program.compiled_seconds):
                program.waiting = seconds
        elif waits:
            program.family.calls += 1
            program.family.seconds += seconds
        elif program.waiting is not None and trial is not None:
            trial.pairs.append((seconds, program.waiting))
            program.waiting = None
            self.judge(trial)
        if program.review_due:
            self.review(program)

    def judge(self, trial: Trial) -> None:
        """Compare tiers once enough calls were timed; a compiled program that is slower is interpreted again."""
        speedup = policies.judge(trial.pairs)
        if speedup is None:
            return
        before = statistics.median(interpreted for interpreted, _ in trial.pairs)
        after = before / speedup
        first = trial.programs[0]
        for program in trial.programs:
            reference, program.reference, program.trial, program.waiting = program.reference, None, None, None
            assert reference is not None
            loser, seconds = (reference, before) if speedup >= 1.0 else (program.executable, after)
            program.rival = Rival(loser, seconds, sum(map(sum, trial.pairs)), program.seconds)
            program.usual = 0.0
            if speedup < 1.0:
                program.executable, program.tier = reference, "demoted"
                program.reason = f"compiled {after * 1e3:.2f} ms, interpreted {before * 1e3:.2f} ms"
            else:
                program.reason = ""
        if first.symbolic is not None:
            first.family.trials.pop(first.symbolic, None)
        if trial.review:
            # the load of this machine today says nothing of later processes; that the code can be faster, does
            if speedup >= 1.0:
                artifacts.set_verdict(self._names(first), None)
        elif speedup < 1.0:
            self._abandon(first, Verdict(VerdictKind.DEMOTED, first.reason))
            first.leave_to_inductor()
        bus.emit(Judged(first.signature.exact, before, after, speedup < 1.0))

    def review(self, program: Program) -> None:
        """Compare the forms of a program again: its calls have become slower than those of the form that lost.

        Another load of the machine makes another form the faster one. Compiled loops that are divided among threads
        wait for the last thread, for example, which may have no core.
        """
        rival, program.rival = program.rival, None
        assert rival is not None
        program.trial = Trial([program], review=True)
        if program.tier == "compiled":
            program.reference = rival.executable
        else:
            program.reference, program.executable, program.tier = program.executable, rival.executable, "compiled"

    def _names(self, program: Program) -> list[str]:
        """Return the names of a program's compiled code on disk."""
        symbolic = program.symbolic
        if symbolic is None:
            return list(for_own_sizes(program).names())
        return artifacts.symbolic_names(program.family.name, symbolic.relations, symbolic.constants)

    def _abandon(self, program: Program, verdict: Verdict) -> None:
        """Do not run a program's compiled code again, in this process unless it is reviewed, nor in later ones."""
        family, symbolic = program.family, program.symbolic
        if symbolic is not None:
            if symbolic in family.symbolic:
                family.symbolic.remove(symbolic)
            family.closed = f"for open sizes it was {verdict}"
        artifacts.set_verdict(self._names(program), verdict)

    @without_modes
    def audit(
        self, program: Program, tensors: Sequence[torch.Tensor], results: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Compare a compiled call with its interpretation; returns the results to go on with."""
        expected = program.reinterpreted.run(tensors)
        problem = disagreement(expected, results)
        if not problem:
            return results
        reason = f"audit: {problem}"
        with self._lock:
            for other in list(self._programs.values()):
                if other is program or (program.symbolic is not None and other.symbolic is program.symbolic):
                    other.executable, other.tier, other.reason = other.reinterpreted, "demoted", reason
                    other.reference = other.trial = other.waiting = other.rival = None
            self._abandon(program, Verdict(VerdictKind.QUARANTINED, reason))
        warn_at(
            f"compiled program {program.signature} is wrong and is interpreted from now on, in later runs too:"
            f" {problem}",
            user_location(),
            AuditWarning,
        )
        return expected
