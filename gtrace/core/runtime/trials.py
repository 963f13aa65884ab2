"""Decides whether compiled programs are correct, by audits, and faster than their interpreted forms, by trials."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterable, Mapping

import attrs

from gtrace.core.backends.executable import Executable
from gtrace.core.backends.symbolic import SymbolicProgram
from gtrace.core.base.config import config
from gtrace.core.base.events import Judged, bus
from gtrace.core.base.mechanisms import REVIEWS
from gtrace.core.ir.aval import place_of
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.signature import CompileKey
from gtrace.core.passes.subgraph_calls import has_calls
from gtrace.core.runtime import policy as policies
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.cache.findings import findings
from gtrace.core.runtime.cache.manifest import Verdict, VerdictKind
from gtrace.core.runtime.compilation import for_own_sizes
from gtrace.core.runtime.forms import Code, FormEvent, Rival, State, Trial
from gtrace.core.runtime.program import Program


def new_trial(program: Program) -> Trial:
    """Return a trial of a compiled program. If it was not interpreted before, interpreted calls are to be rare."""
    if program.ledger.interpreted_samples:
        return Trial()
    if program.ledger.expected:
        return Trial(expected=program.ledger.expected)
    earlier = artifacts.earlier(program.signature)
    calls = earlier.interpreted_calls
    return Trial(expected=earlier.interpreted_seconds / calls if calls else expected_seconds(program.graph))


def expected_seconds(graph: Graph) -> float:
    """Return what an interpreted call may take, roughly; of a small program not much more than it does.

    A program that was never interpreted stays on trial until this time, twenty times, is a tenth of its time.
    """
    return policies.UNKNOWN_SECONDS if has_calls(graph) else operations_seconds(graph)


def operations_seconds(graph: Graph) -> float:
    """Return what the operations of a program take, roughly, each once and without the bodies of its calls."""
    moved = sum(a.nbytes for node in graph.nodes for a in (*node.instr.ins, node.instr.aval))
    on_gpu = place_of(graph.avals).type == "cuda"
    byte = policies.GPU_BYTE_SECONDS if on_gpu else policies.BYTE_SECONDS
    return len(graph.nodes) * policies.OPERATION_SECONDS + moved * byte


@attrs.define  # frozen ones take twice as long to make
class TrialCall:
    """What the engine has seen of a call.

    Attributes:
        compiled: whether the compiled form ran.
        interpreted: whether the interpreter ran all of it.
        sampled: whether it is one of those that a trial compares.
        waits: whether the program may be compiled once its family was interpreted for long.
        disturbed: whether the time is not what such calls usually take.
        saved: seconds that it took less because loops went on in blocks; None: none did.
    """

    seconds: float
    compiled: bool
    interpreted: bool
    sampled: bool
    waits: bool
    disturbed: bool
    saved: float | None = None


def as_text(program: Program) -> str:
    """Return the interpreted form of a program in words, equal in each process."""
    key = program.key
    return f"program {key.signature} {key.strides} {key.donated}"


def form_as_text(program: Program, executable: Executable) -> str:
    """Return a form of a program in words, equal in each process that runs the same code; empty: nothing tells."""
    return f"{as_text(program)} by {executable.identity}" if executable.identity else ""


def _names(program: Program, symbolic: SymbolicProgram | None) -> list[str]:
    if symbolic is None:
        return list(for_own_sizes(program).names())
    return artifacts.symbolic_names(program.family.name, symbolic.relations, symbolic.constants)


class Trials:
    """Puts compiled programs on trial, and has those that are slower, or wrong, interpreted again.

    Args:
        programs: every program of the engine.
        lock: held to change tiers and ledgers.
    """

    def __init__(self, programs: Mapping[CompileKey, Program], lock: threading.RLock) -> None:
        self._programs = programs
        self._lock = lock

    def adopt(self, program: Program, code: Code) -> None:
        """Run a program by its compiled form from now on.

        It and its interpreted form take turns until enough calls of each were timed. The load of the machine changes,
        so only times taken side by side can be compared. Programs that share compiled code are judged together.
        """
        trial = new_trial(program) if code.symbolic is None else program.family.trials.get(code.symbolic)
        if trial is None or config.current.compile:
            program.forms.change(FormEvent.ACCEPTED, code=code)
            return
        trial.forms.append(program.forms)
        program.ledger.forget_samples()
        program.forms.change(FormEvent.ADOPTED, code=code, trial=trial)

    def count(self, program: Program, call: TrialCall) -> None:
        """Add a call to the ledger of a program, and to its trial if it is on one."""
        forms, ledger = program.forms, program.ledger
        with self._lock:
            if not call.disturbed and call.saved is None:
                self._took(program, call.seconds)
            if call.saved is None:
                ledger.count(call.seconds, call.compiled or not call.interpreted)
            else:
                ledger.count_blocks(call.seconds, call.seconds + call.saved)
            trial = forms.trial
            if call.compiled:
                if call.sampled:
                    ledger.owe(call.seconds)
            elif call.waits:
                program.family.calls += 1
                program.family.seconds += call.seconds
            elif ledger.waiting is not None and trial is not None:
                trial.pairs.append((call.seconds, ledger.waiting))
                ledger.owe(None)
                self.judge(program, trial)
            self.review(program)

    def _took(self, program: Program, seconds: float) -> None:
        """Note what an undisturbed call took. Code for parts of a program is given up if that makes it slower."""
        partial = program.forms.partial
        if partial is None:
            program.ledger.took(seconds)
            return
        partial.took(seconds, program.ledger)
        if partial.is_slower(program.ledger):
            program.forms.change(FormEvent.PARTS_SLOWER)

    def judge(self, program: Program, trial: Trial) -> None:
        """Compare both forms once enough calls were timed; a compiled program that is slower is interpreted again."""
        speedup = policies.judge(trial.pairs)
        if speedup is None:
            return
        before = statistics.median(interpreted for interpreted, _ in trial.pairs)
        after = before / speedup
        faster, review = speedup >= 1.0, program.forms.state is State.REVIEW
        reason = "" if faster else f"compiled {after * 1e3:.2f} ms, interpreted {before * 1e3:.2f} ms"
        for forms in trial.forms:
            rival = Rival(before if faster else after, sum(map(sum, trial.pairs)), forms.ledger.seconds)
            forms.change(FormEvent.FASTER if faster else FormEvent.SLOWER, reason=reason, rival=rival)
        if program.forms.symbolic is not None:
            program.family.trials.pop(program.forms.symbolic, None)
        if review:
            # the load of this machine today says nothing of later processes; that the code can be faster, does
            if faster:
                artifacts.set_verdict(self.names(program), None)
        elif not faster:
            self._abandon(program, program.forms.symbolic, Verdict(VerdictKind.DEMOTED, reason))
            if program.forms.symbolic is None:
                program.leave_to_inductor(lost=True)
        bus.emit(Judged(program.signature.exact, before, after, not faster))

    def review(self, program: Program) -> None:
        """Compare the forms of a program again, if its calls have become slower than those of the form that lost.

        Another load of the machine makes another form the faster one. Compiled loops that are divided among threads
        wait for the last thread, for example, which may have no core.
        """
        with self._lock:
            if program.forms.review_due:
                REVIEWS.used()
                program.forms.change(FormEvent.REVIEWED, trial=Trial([program.forms]))

    def lose(self, program: Program, symbolic: SymbolicProgram, reason: str) -> None:
        """End the trial of code for open sizes that was slower than the recordings of which `program` is a part.

        Code that has won its trial at some size is kept for the programs that run it.
        """
        with self._lock:
            trial = program.family.trials.pop(symbolic, None)
            if trial is None:
                return
            for forms in trial.forms:
                forms.change(FormEvent.SLOWER, reason=reason)
            self._abandon(program, symbolic, Verdict(VerdictKind.DEMOTED, reason))

    def names(self, program: Program) -> list[str]:
        """Return the names of a program's compiled code on disk."""
        return _names(program, program.forms.symbolic)

    def _abandon(self, program: Program, symbolic: SymbolicProgram | None, verdict: Verdict) -> None:
        """Do not run a program's compiled code again, in this process unless it is reviewed, nor in later ones."""
        family = program.family
        if symbolic is not None:
            if symbolic in family.symbolic:
                family.symbolic.remove(symbolic)
            family.close(verdict)
        artifacts.set_verdict(_names(program, symbolic), verdict)

    def agree(self, program: Program, executable: Executable, seconds: float, found: str) -> None:
        """Note that a form agreed with the reference, or cannot be compared.

        Args:
            seconds: of comparing it.
            found: what was found, in words.
        """
        with self._lock:
            program.ledger.compared(seconds, found)
            program.forms.agree(executable)

    def recall(self, program: Program, executable: Executable, seconds: float, since: float) -> None:
        """Note that a form agreed in an earlier process.

        Args:
            seconds: of comparing it.
            since: seconds that it is taken to have run after that.
        """
        with self._lock:
            program.ledger.recall(seconds, since)
            program.forms.agree(executable)

    def distrust(self, program: Program, reason: str) -> None:
        """Run a program's reference from now on, and do not compile it."""
        interpreted = program.forms.interpreted
        run = Executable(program.reference, interpreted.origin, interpreted.device)
        with self._lock:
            program.forms.change(FormEvent.MISINTERPRETED, reason=reason, interpreted=run)
            program.forms.agree(run)

    def doubt(self, programs: Iterable[Program]) -> None:
        """Have the next calls of programs compared, whatever they agreed with so far."""
        with self._lock:
            for program in programs:
                program.forms.doubt()

    def disagreed(self, program: Program, executable: Executable, problem: str) -> bool:
        """Do not run a form again, in this process or a later one. Programs that share its code are interpreted too.

        Returns:
            whether it was still one of the program's: another thread may have found the same.
        """
        reason, forms = f"audit: {problem}", program.forms
        with self._lock:
            if executable is forms.interpreted:
                self.distrust(program, reason)
                findings.keep_wrong(as_text(program), reason)
                return True
            if executable is not forms.executable and executable is not forms.compiled:
                return False
            symbolic = forms.symbolic
            for other in {program, *list(self._programs.values())}:
                shares = symbolic is not None and other.forms.symbolic is symbolic
                if (other is program or shares) and other.forms.may(FormEvent.DISAGREED):
                    other.forms.change(FormEvent.DISAGREED, reason=reason)
            self._abandon(program, symbolic, Verdict(VerdictKind.QUARANTINED, reason))
            return True
