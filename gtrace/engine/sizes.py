"""Programs whose sizes are new at each call: the first call of each size runs as it was recorded.

A program is prepared when it is recorded for the first time: simplified, divided, brought into its canonical form. That
takes as long as some calls of it, and is lost if these sizes never come again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import attrs
import torch

from gtrace.compile.executable import interpreted
from gtrace.config import config
from gtrace.engine.programs import MAX_PROGRAMS
from gtrace.events import Ran, bus
from gtrace.interp.memory import REFUSALS, refuse
from gtrace.ir.aval import Bundle
from gtrace.ir.calls import has_calls
from gtrace.ir.graph import Graph, RecordedGraph
from gtrace.ir.simplify import dce
from gtrace.tables import BoundedTable
from gtrace.torch_internals import profiler_enabled
from gtrace.worker.client import worker
from gtrace.worker.sharing import sharing

PREPARED = 4
"""Sizes of which every program is prepared at its first call."""

CALLS = 3
"""Calls of further sizes that run as they were recorded: preparing takes about what that loses in them."""

EVERY = 16
"""Of further sizes one in so many is prepared at its first call: the policy sees programs that are prepared only."""


@attrs.define
class Structure:
    """What is known of programs that differ in sizes only.

    Attributes:
        sizes: how many of them there were.
        calls: how often those ran that run as they were recorded, by hashes of their keys.
    """

    sizes: int = 0
    calls: dict[int, int] = attrs.field(factory=dict)


class NewSizes:
    """Tells which recorded programs are not worth preparing yet, and runs them.

    Attributes:
        calls: how many calls ran as they were recorded.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._structures: BoundedTable[Hashable, Structure] = BoundedTable(MAX_PROGRAMS)

    def run(self, key: Hashable, program: RecordedGraph, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Run a program of new sizes as it was recorded; None if it is to be prepared.

        Args:
            key: that of the recording.
            tensors: its inputs, by slot.
        """
        graph = program.graph
        name = tuple([node.op.name for node in graph.nodes]), len(graph.inputs), graph.outputs
        structure = self._structures.get(name)
        if structure is None:
            structure = Structure()
            self._structures.remember(name, structure)
        known = hash(key)
        calls = structure.calls.pop(known, 0)
        if not calls:
            structure.sizes += 1
            if structure.sizes <= PREPARED or structure.sizes % EVERY == 0:
                return None
        if calls == CALLS or not _simple(graph):
            return None
        if len(structure.calls) >= MAX_PROGRAMS:
            structure.calls.clear()
        structure.calls[known] = calls + 1
        executable = interpreted(dce(graph), program.strides)
        given = [tensors[slot] for slot in program.slots]
        try:
            self.calls += 1
            return sharing.run(executable.run, given, 0.0)[0] if worker.pending else executable.run(given)
        except REFUSALS as error:
            refuse("a program", error)


def _simple(graph: Graph) -> bool:
    """Whether nobody wants to know of the call, and interpreting a program is no different from preparing it."""
    settings = config.current
    if settings.deterministic or settings.compile or settings.hot_threshold is not None:
        return False
    if Ran in bus.wanted or profiler_enabled() or has_calls(graph):
        return False
    avals = [*graph.avals, *[node.instr.aval for node in graph.nodes]]
    return all(a.__class__ is Bundle or a.sharding is None for a in avals)
