"""Completes a program whose updates overwrite their operands, so that it cannot run again.

Until the first update begins, an interrupted or failed program can run again from its inputs when an Array is read.
After that the trace has a `Completion`, and every reader of an Array completes it. The reader may be the interrupted
thread, a signal handler, a finalizer or another thread.
"""

from __future__ import annotations

import collections
import operator
import os
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from gtrace.core.base.errors import ExecutionError, message
from gtrace.core.base.locks import new_lock
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.passes.deferred_updates import DeferredResult, DeferredUpdate, Operands
from gtrace.core.runtime.lazy_outputs import PartialResults
from gtrace.core.runtime.worker.sharing import beside_worker
from gtrace.core.trace.array_base import ArrayBase
from gtrace.core.trace.recomputing_trace import RecomputingTrace
from gtrace.core.trace.record import Trace

WRITING = new_lock()
"""Held while a program overwrites inputs, and while another thread's program is taken over."""


@attrs.frozen(eq=False)
class _Writes:
    """The pending writing calls, each of which is made once.

    Attributes:
        left: an iterator that makes the remaining calls. It and the kernels are written in C. A call has begun if and
            only if the iterator has passed it. It has ended whenever Python code of this thread runs.
        operands: the operands of each update.
    """

    left: Iterator[Any]
    operands: dict[DeferredUpdate, Operands]


class Completion:
    """Assigns the values of a program to its Arrays.

    Args:
        trace: the program.
        arrays: the Arrays of its outputs.
        numbers: the numbers of the outputs in the program.
        results: the values; None for values that follow from others.
        updates: the program's deferred updates.
    """

    def __init__(
        self,
        trace: Trace,
        arrays: Sequence[ArrayBase],
        numbers: Sequence[int],
        results: list[Any],
        updates: Sequence[DeferredUpdate],
    ) -> None:
        self._trace: Trace | None = trace
        self._arrays, self._numbers = arrays, numbers
        self._results, self._updates = results, updates
        self._writes: dict[None, _Writes] = {}
        self._error: Exception | None = None
        # inputs that Arrays without a value still need must not be overwritten
        slots = results.lazy.slots.values() if isinstance(results, PartialResults) else ()
        self._kept = [trace.leaves[slot] for slot in slots]

    @without_modes
    def finish(self) -> None:
        """Make the remaining updates, and assign the values of the Arrays.

        Raises:
            ExecutionError: an update failed.
        """
        with WRITING:
            trace = self._trace
            if trace is None:
                return
            if self._error is not None:
                fix = "Begin again from arrays that you have kept, such as those of a checkpoint."
                raise ExecutionError(
                    message("update", "updates that torch can make", f"{self._error}: they are half-made", fix)
                ) from self._error
            writes = self._writes.get(None)
            if writes is None:
                # a signal handler may complete everything at this point; its results then count
                writes = self._writes.setdefault(None, self._decided({*map(id, trace.leaves)}))
            try:
                with beside_worker():
                    collections.deque(writes.left, 0)
            except (RuntimeError, TypeError) as error:
                self._error = error
                return self.finish()
            for k, result in enumerate(self._results):
                if result.__class__ is DeferredResult:
                    self._results[k] = writes.operands[result.update][result.place][result.number]
            assign(trace, self._arrays, self._numbers, self._results, -1)
            # the trace refers to this object, so drop the reference back
            self._trace = None
            self._arrays = self._updates = self._kept = self._results = []
            self._writes = {}

    def _decided(self, inputs: set[int]) -> _Writes:
        """Choose the arrays to overwrite: those that the trace alone holds. Others are copied."""
        operands, calls = {}, []
        for update in self._updates:
            if update.settled:
                operands[update] = update.settled[0]
            else:
                operands[update] = update.in_place(inputs)
                calls.append(update.call(operands[update]))
        return _Writes(map(operator.call, calls), operands)


def assign(
    trace: Trace, arrays: Sequence[ArrayBase], numbers: Sequence[int], results: Sequence[Any], mark: int
) -> None:
    """Assign the values of a program to its Arrays. Arrays without a value follow from others.

    Args:
        mark: the number that they get. It tells gradients whether they follow them.
    """
    recomputing = RecomputingTrace(trace, numbers, results) if results.__class__ is PartialResults else None
    for x, tensor in zip(arrays, results, strict=True):
        if tensor is None:
            x._trace = recomputing
            continue
        x._buf = tensor
        x._trace = None
        x._number = mark


if hasattr(os, "register_at_fork"):  # some systems lack it
    # a child lacks the threads that could finish their writes
    os.register_at_fork(before=WRITING.acquire, after_in_parent=WRITING.release)
