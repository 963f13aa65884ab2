"""Programs that cannot have open sizes as a whole: they are cut, and their parts have them.

A compiler of open sizes takes straight-line programs of some length. Loops, branches, operations that are interpreted
and very long programs are compiled for the sizes of one program alone. So the second size of such a structure is cut
there. The parts are programs like any other; those that can have open sizes get them. A cut is a property of the
structure: it is found once, and all further sizes have it.
"""

from __future__ import annotations

from collections.abc import Hashable

import attrs

from gtrace.core.backends.scheduler import Scheduler
from gtrace.core.base.bounded_tables import SMALL, BoundedTable
from gtrace.core.base.mechanisms import OPEN_SIZES
from gtrace.core.ir.graph import Graph, skeleton
from gtrace.core.passes.canonical import Canonical
from gtrace.core.passes.split import slices
from gtrace.core.runtime.program import Program

PER_NODE = 8
"""Bytes of an operation in a cut."""


@attrs.frozen
class Cut:
    """Where programs of one structure are cut.

    Attributes:
        order: the places of the operations in the canonical form, in the order in which they run.
        places: where in this order the parts begin, but for the first.
    """

    order: tuple[int, ...]
    places: tuple[int, ...]

    def of(self, graph: Graph, canonical: Canonical) -> tuple[Graph, list[Graph]]:
        """Return a program as its canonical form with the inputs and outputs that it was given, and the parts of that.

        Args:
            graph: the program.
            canonical: its canonical form, of this structure.
        """
        own = canonical.graph
        fresh = iter(range(len(own.inputs) + len(own.nodes), len(own.inputs) + len(own.nodes) + len(graph.inputs)))
        names = dict(zip(canonical.inputs, own.inputs, strict=True))
        inputs = tuple(names[k] if k in names else next(fresh) for k in range(len(graph.inputs)))
        outputs = tuple(own.outputs[k] if k >= 0 else inputs[-1 - k] for k in canonical.outputs)
        whole = Graph(inputs, graph.avals, own.nodes, outputs)
        nodes = tuple(own.nodes[k] for k in self.order)
        return whole, slices(attrs.evolve(own, nodes=nodes), self.places)


class Cuts:
    """The cuts of structures of which several sizes have come.

    Attributes:
        found: by skeletons.
    """

    def __init__(self, limit: int) -> None:
        self.found: BoundedTable[Hashable, Cut] = BoundedTable(limit, lambda cut: SMALL + PER_NODE * len(cut.order))

    def of(self, program: Program | None, left_out: frozenset[str]) -> tuple[Cut | None, Program | None]:
        """Return where a program is cut, and the program of another size, if the cut is new.

        Args:
            left_out: operators of torch that are interpreted.
        """
        if program is None or not program.family.whole or not OPEN_SIZES.on:
            return None, None
        structure, key = skeleton(program.graph)[0], program.key
        known = self.found.get(structure)
        if known is not None:
            return known, None
        others = program.family.others(program)
        if not others:
            return None, None
        found = Scheduler(key.backend, key.mode, key.threads, left_out).parts_of_open_sizes(program.graph)
        if found is None:
            return None, None
        OPEN_SIZES.used()
        made = Cut(*found)
        self.found.remember(structure, made)
        return made, others[0]
