"""Ends interpreted calls that compiled code has overtaken: it arrived meanwhile, or is clearly faster in a trial.

The call is made again by the compiled form. Only programs whose loops are native functions are ended so. An interpreted
step of such a loop takes a hundred times as long, so hardly anything is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch

from gtrace.core.backends.executable import Executable
from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.long_loops import Blocks
from gtrace.core.backends.runs import ended_once
from gtrace.core.base.mechanisms import OVERTAKEN
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.worker.client import worker

CLEARLY = 4.0
"""An interpreted call of a trial is ended when it has taken so many times as long as the compiled one."""

LEAST_SECONDS = 0.01
"""Shorter calls are not ended: that would save little, and a disturbance takes as long."""


def around(program: Program, executable: Executable, blocks: Blocks | None) -> TensorFunction:
    """Return what makes the next call of a program by this form, and may end it.

    Args:
        blocks: how its long loops go on; None: step by step.

    Raises (when run):
        EndedError: the compiled form is to make the call. The inputs are as they were.
    """
    forms = program.forms
    run = executable.run if blocks is None else blocks.around(executable.run)
    if not (OVERTAKEN.on and program.has_calls) or executable is not forms.interpreted:
        return run
    waiting = program.ledger.waiting if forms.trial is not None else None
    if not (program.awaits_native_loops if waiting is None else program.can_begin_anew):
        return run
    donated = program.key.donated
    if waiting is None:

        def is_overtaken() -> bool:
            return forms.compiled is not None

    else:
        until = perf_counter() + max(CLEARLY * waiting, LEAST_SECONDS)

        def is_overtaken() -> bool:
            return perf_counter() > until

    def call(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if waiting is None:
            worker.resume()  # it stands still beside calls of unknown time, and this one needs its code
        with ended_once(is_overtaken, program):
            # neither given away nor written over: the next form takes them too
            return run([x.clone() if k in donated else x for k, x in enumerate(tensors)])

    return call
