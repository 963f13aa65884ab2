"""The end of a program whose updates write over their operands, when it may no longer be run again.

Until an update begins, a program can be interrupted, or fail, and is run again from its inputs when somebody looks at
one of its Arrays. From then on the trace has a `Completion`, and whoever looks at an Array completes it: in the thread
that was interrupted, in a signal handler or finalizer that runs in the middle, or in another thread.
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
"""Held while inputs of programs are written over, and while somebody takes those of another thread's program."""


@attrs.frozen(eq=False)
class _Writes:
    """The calls that write, each of which is made once.

    Attributes:
        left: the calls that are to be made. The iterator, and the kernels, are in C: a call has begun if and only if
            the iterator has left it behind, and has ended when any Python of this thread runs.
        operands: of each update.
    """

    left: Iterator[Any]
    operands: dict[DeferredUpdate, Operands]


class Completion:
    """Gives the Arrays of a program their values.

    Args:
        trace: the program.
        arrays: of its outputs.
        numbers: theirs in the program.
        results: their values; None for those that follow from others.
        updates: those that the program has deferred.
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
        # the inputs that Arrays without a value are computed from are somebody's
        slots = results.lazy.slots.values() if isinstance(results, PartialResults) else ()
        self._kept = [trace.leaves[slot] for slot in slots]

    @without_modes
    def finish(self) -> None:
        """Make what is left of the updates, and give the Arrays their values.

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
                # a signal handler may finish everything in the middle of this, and then what it has made counts
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
            # the trace has this object as long as there is a trace, so it must not have the trace
            self._trace = None
            self._arrays = self._updates = self._kept = self._results = []
            self._writes = {}

    def _decided(self, inputs: set[int]) -> _Writes:
        """Decide what is written over: the arrays that nobody but the trace has. The others are copied."""
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
    """Give the Arrays of a program their values; those without one follow from others.

    Args:
        mark: the number that they get, by which a gradient knows them.
    """
    recomputing = RecomputingTrace(trace, numbers, results) if results.__class__ is PartialResults else None
    for x, tensor in zip(arrays, results, strict=True):
        if tensor is None:
            x._trace = recomputing
            continue
        x._buf = tensor
        x._trace = None
        x._number = mark


if hasattr(os, "register_at_fork"):  # not on every system
    # a child has no threads that could finish what they were writing
    os.register_at_fork(before=WRITING.acquire, after_in_parent=WRITING.release)
