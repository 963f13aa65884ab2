"""Arrays whose values their program skipped, because they follow from its other results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gtrace.core.ir.graph import RecordedGraph
from gtrace.core.passes.recomputable_outputs import recomputation
from gtrace.core.runtime.lazy_outputs import PartialResults
from gtrace.core.trace.record import Trace


class RecomputingTrace(Trace):
    """Replaces the trace of such Arrays. It holds only the tensors from which they follow.

    Args:
        trace: the program.
        numbers: the numbers of its outputs.
        results: the values of the outputs.
    """

    __slots__ = ("numbers_of_outputs", "values", "wanted")

    def __init__(self, trace: Trace, numbers: Sequence[int], results: PartialResults) -> None:
        super().__init__()
        self.flat, self.scalars, self.locations = trace.flat, trace.scalars, trace.locations
        self.closed = True
        lazy = results.lazy
        self.numbers_of_outputs = numbers
        self.wanted = lazy.wanted
        self.values = {numbers[place]: results[place] for place in lazy.outputs}
        self.values.update({number: trace.leaves[slot] for number, slot in lazy.slots.items()})

    def decode(self, outputs: Sequence[int]) -> RecordedGraph:
        """Return the program that computes `outputs` from the tensors at hand.

        From now on, programs of this structure compute these outputs themselves.
        """
        self.wanted.update(self.numbers_of_outputs.index(number) for number in outputs)
        graph = recomputation(super().decode(outputs).graph, self.values)
        strides = [self.values[number].stride() for number in graph.inputs]
        return RecordedGraph(graph, strides, list(range(len(strides))), [])

    def inputs(self, program: RecordedGraph) -> list[Any]:
        """Return the inputs of the program, in the order of its graph."""
        return [self.values[number] for number in program.graph.inputs]
