"""Outputs of recorded programs that are computed only when somebody asks for them.

`gtrace.core.passes.recomputable_outputs` says which these are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch

from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.mechanisms import LAZY_OUTPUTS
from gtrace.core.ir.graph import Graph, RecordedGraph
from gtrace.core.partitioner.partition import has_placements
from gtrace.core.passes.recomputable_outputs import recomputable_outputs
from gtrace.core.runtime.programs import MAX_PROGRAMS


@attrs.frozen(eq=False)
class LazyOutputs:
    """Outputs of a recorded program that are not computed with it, as they follow from others.

    Attributes:
        places: of these outputs.
        computed: for each output its place among those that are computed, or -1.
        outputs: what they follow from: the places of other outputs,
        slots: and the slots of inputs, by the number of the value.
        wanted: the places of outputs that somebody asked for, of this program with any sizes.
    """

    places: frozenset[int]
    computed: tuple[int, ...]
    outputs: tuple[int, ...]
    slots: Mapping[int, int]
    wanted: set[int]

    def holds(self) -> bool:
        """Whether nobody has asked for one of the outputs."""
        return self.places.isdisjoint(self.wanted)


class PartialResults(list[torch.Tensor]):
    """Results of a recorded program, with None in place of those that were not computed.

    Attributes:
        lazy: how these follow from the others.
    """

    def __init__(self, results: Sequence[torch.Tensor], lazy: LazyOutputs) -> None:
        super().__init__([results[k] if k >= 0 else None for k in lazy.computed])  # type: ignore[misc]
        self.lazy = lazy


class LazyOutputFinder:
    """Tells which outputs of a program are left out. What somebody asked for once is computed from then on."""

    def __init__(self) -> None:
        self._wanted: BoundedTable[int, set[int]] = BoundedTable(MAX_PROGRAMS)  # by hashes of the structure

    def leave_out(self, program: RecordedGraph) -> tuple[Graph, LazyOutputs | None]:
        """Return the graph to run, and what is known of the outputs that it does not have."""
        graph = program.graph
        if not LAZY_OUTPUTS.on or any(a.sharding is not None for a in graph.avals) or has_placements(graph):
            return graph, None
        structure = hash((tuple([node.op.name for node in graph.nodes]), len(graph.inputs), graph.outputs))
        wanted = self._wanted.get(structure, set())
        found = recomputable_outputs(graph, wanted)
        if not found:
            return graph, None
        LAZY_OUTPUTS.used()
        self._wanted.remember(structure, wanted)
        kept = [place for place in range(len(graph.outputs)) if place not in found]
        position = {place: k for k, place in enumerate(kept)}
        sources = frozenset[int]().union(*found.values())
        lazy = LazyOutputs(
            frozenset(found),
            tuple(position.get(place, -1) for place in range(len(graph.outputs))),
            tuple(place for place in kept if graph.outputs[place] in sources),
            {value: slot for value, slot in zip(graph.inputs, program.slots, strict=True) if value in sources},
            wanted,
        )
        return attrs.evolve(graph, outputs=tuple(graph.outputs[place] for place in kept)), lazy
