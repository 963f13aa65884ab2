"""Calls about which there is something to decide, or which somebody measures or watches.

A call goes through these steps, in this order:

1. The policy looks at the program: it may be compiled, or its library calls are to be measured.
2. The form is chosen: the one that runs, or the one whose turn it is in a trial.
3. Either somebody measures the call, or a comparison takes its inputs and its long loops may go on in blocks.
4. It is made, beside the worker if that is busy. A call that compiled code has overtaken ends here, and begins anew.
5. It is counted, and its results are compared.

What may happen while it runs is in `gtrace.core.backends.runs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import attrs
import torch

from gtrace.core.backends.executable import Executable
from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.interpreter.run_errors import REFUSALS, refuse
from gtrace.core.backends.long_loops import Blocks
from gtrace.core.backends.runs import EndedError
from gtrace.core.base.config import Config
from gtrace.core.base.events import Ran, bus
from gtrace.core.base.mechanisms import OVERTAKEN
from gtrace.core.base.torch_internals import profiler_enabled
from gtrace.core.base.torch_modes import deterministic_algorithms
from gtrace.core.runtime.clock import clock
from gtrace.core.runtime.comparisons import Comparisons
from gtrace.core.runtime.decisions import NOTHING, Action
from gtrace.core.runtime.forms import State
from gtrace.core.runtime.instruments import Instrument, instrumented, measure_library_share
from gtrace.core.runtime.loop_blocks import LoopBlocks
from gtrace.core.runtime.overtaken import around
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.taken_inputs import Taken
from gtrace.core.runtime.tier_controller import TierController
from gtrace.core.runtime.trials import TrialCall
from gtrace.core.runtime.worker.client import worker
from gtrace.core.runtime.worker.sharing import sharing

Tensors = Sequence[torch.Tensor]


@attrs.define
class ObservedCalls:
    """Makes them.

    Attributes:
        tiering, comparisons, blocks: those of the engine.
        instrument: runs every program in another way, which measures something; None: nobody measures.
    """

    tiering: TierController
    comparisons: Comparisons
    blocks: LoopBlocks
    instrument: Instrument | None = None

    def make(self, program: Program, tensors: Tensors, settings: Config) -> list[torch.Tensor]:
        """Run a program on its inputs."""
        if settings.deterministic:
            return self._as_recorded(program, tensors)
        forms = program.forms
        decision = self.tiering.consider(program) if forms.state is State.INTERPRETED else NOTHING
        form, own = forms.next_form(), measure_library_share if decision.action is Action.MEASURE else None
        if self.instrument is not None or own is not None or profiler_enabled():
            return self._counted(program, form, self._measured(program, form, own), tensors, decision.waits)
        taken = self.comparisons.begin(program, form, tensors, settings.audit)
        blocks = self.blocks.of(program, form, settings)
        start = perf_counter()
        try:
            run = around(program, form, blocks)
            return self._counted(program, form, run, tensors, decision.waits, blocks, taken)
        except EndedError as error:
            if error.of is not program:
                raise
        OVERTAKEN.used()
        self.comparisons.withdraw(program, form, perf_counter() - start)
        return self.make(program, tensors, settings)

    def _as_recorded(self, program: Program, tensors: Tensors) -> list[torch.Tensor]:
        """Make a call in the deterministic mode: nothing is decided, and the worker changes no number of threads."""
        form = program.as_recorded
        run, stop = self._measured(program, form), clock(form, wait=False)
        try:
            with deterministic_algorithms():
                results = run(tensors)
        except REFUSALS as error:
            refuse(f"program {program.signature}", error)
        self._count(program, TrialCall(stop(), False, form.interprets, False, False, bool(worker.pending)))
        return results

    def _measured(self, program: Program, form: Executable, own: Instrument | None = None) -> TensorFunction:
        """Return what makes a call by this form while somebody measures.

        Args:
            own: the instrument of the policy, which gives way to the user's.
        """
        if self.instrument is None and own is None and not profiler_enabled():
            return form.run
        return instrumented(program, form, self.instrument or own).run

    def _counted(
        self,
        program: Program,
        form: Executable,
        run: TensorFunction,
        tensors: Tensors,
        waits: bool = False,
        blocks: Blocks | None = None,
        taken: Taken | None = None,
    ) -> list[torch.Tensor]:
        """Make a call by `run`, and count and compare it; returns the results to go on with.

        Args:
            form: what `run` runs.
            waits: whether the policy waits for calls of the program's family.
            blocks: how its long loops go on.
            taken: what a comparison needs; None: it is not compared.
        """
        compiled, on_trial = form is program.forms.compiled, program.forms.trial is not None
        sampled = on_trial and program.forms.sampled
        stop = clock(form, wait=sampled)
        try:
            if worker.pending:
                results, disturbed = sharing.run(run, tensors, program.ledger.usual)
            else:
                results, disturbed = run(tensors), False
        except REFUSALS as error:
            refuse(f"program {program.signature}", error)
        seconds, saved = stop(), None if blocks is None else blocks.saved
        self._count(
            program, TrialCall(seconds, compiled, form.interprets, sampled, waits, disturbed or on_trial, saved)
        )
        if taken is not None and saved is not None:
            self.comparisons.skip_long(program.signature.exact)
        elif taken is not None:
            results = self.comparisons.end(program, form, taken, results, seconds)
        return results

    def _count(self, program: Program, call: TrialCall) -> None:
        self.tiering.judging.count(program, call)
        if Ran in bus.wanted:
            bus.emit(Ran(program.signature.exact, "compiled" if call.compiled else "interpreted", call.seconds))
