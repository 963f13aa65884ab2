"""Programs that run as they were recorded, without being prepared.

To prepare a program is to simplify it, divide it, and bring it into canonical form. That takes as long as a few calls,
or as dozens of calls of a long program with small arrays. It is wasted on a program that does not come again. Two kinds
often do not: a program with sizes that are new at each call, and the first step of a training loop, whose moments are
zeros. So the first calls of new sizes run unprepared, and so does the first call of a long program. If nothing is
compiled, long programs are prepared at their first call, so that all calls have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.backends.cost_model import additions
from gtrace.core.backends.interpreter.interpreter import Owned, TensorFunction
from gtrace.core.backends.interpreter.reference import reference
from gtrace.core.backends.interpreter.result_strides import with_strides
from gtrace.core.backends.interpreter.run_errors import REFUSALS, refuse
from gtrace.core.base.bounded_tables import PER_OPERATION, BoundedTable
from gtrace.core.base.config import config
from gtrace.core.base.events import Ran, bus
from gtrace.core.base.torch_internals import profiler_enabled
from gtrace.core.ir.aval import Bundle
from gtrace.core.ir.graph import Graph, RecordedGraph
from gtrace.core.passes.subgraph_calls import has_calls
from gtrace.core.passes.whole_program import spelled_out
from gtrace.core.runtime.lifted_scalars import Scalars
from gtrace.core.runtime.programs import MAX_PROGRAMS, PROGRAM
from gtrace.core.runtime.worker.client import worker
from gtrace.core.runtime.worker.sharing import sharing

PREPARED = 4
"""Sizes of which every program is prepared at its first call."""

CALLS = 12
"""Calls of further sizes that run as they were recorded: preparing takes about what that loses in them."""

HASH = 150
"""Bytes of an entry by a hash: two numbers, and its part of the table."""

EVERY = 16
"""Of further sizes one in so many is prepared at its first call: the policy sees programs that are prepared only."""


LONG = 100
"""Operations of a program that is not prepared at its first call, at least."""

MOST_ADDITIONS, MOST_WORK = 1_000_000, 1 << 31
"""The most additions of such a program: on average for an operation, and in all.

With more, preparing may pay in one call. Attention and norms also take more memory as they are written."""

FIRST_CALLS = 64
"""How many of these programs have their numbers remembered until the second call."""


@attrs.define(eq=False)
class Unprepared:
    """A program that runs as it was recorded.

    Attributes:
        run: the interpreter of the program with these scalars.
        slots: of the tensors that it takes.
        scalars: the numbers in it.
        operations: how many it has.
        calls: how often it ran.
    """

    run: TensorFunction
    slots: list[int]
    scalars: Scalars
    operations: int
    calls: int = 0


class NewSizes:
    """Tells which recorded programs are not worth preparing yet, and runs them.

    Attributes:
        calls: how many calls ran as they were recorded.
    """

    def __init__(self) -> None:
        self.calls = 0
        # by hashes of structures, how many sizes there were
        self._sizes: BoundedTable[int, int] = BoundedTable(MAX_PROGRAMS, HASH)
        self._seen: BoundedTable[int, None] = BoundedTable(MAX_PROGRAMS, HASH)  # hashes of keys
        self._kept: BoundedTable[Hashable, Unprepared] = BoundedTable(
            MAX_PROGRAMS, lambda kept: PROGRAM // 2 + PER_OPERATION * kept.operations
        )
        self._called: BoundedTable[int, None] = BoundedTable(MAX_PROGRAMS, HASH)  # hashes of keys of long programs
        self._numbers: BoundedTable[int, Scalars] = BoundedTable(FIRST_CALLS)  # of these, in that call

    def find(self, key: Hashable, scalars: Scalars, decode: Callable[[], RecordedGraph]) -> Unprepared | RecordedGraph:
        """Return how to run a program as it was recorded, or the program, if it is to be prepared.

        Args:
            key: that of the recording.
            scalars: the numbers of the program.
            decode: gives the program.
        """
        kept = self._kept.get(key)
        if kept is not None and (kept.calls >= CALLS or not _is_plain()):
            self._kept.pop(key, None)
            return decode()
        if kept is None or kept.scalars != scalars:
            program = decode()
            if kept is None and self._is_prepared(key, scalars, program.graph):
                return program
            kept = self._keep(key, scalars, program)
        return kept

    def run(self, kept: Unprepared, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Run a program as it was recorded.

        Args:
            tensors: its inputs, by slot.
        """
        kept.calls += 1
        self.calls += 1
        given = Owned([tensors[slot] for slot in kept.slots])
        try:
            return sharing.run(kept.run, given, 0.0)[0] if worker.pending else kept.run(given)
        except REFUSALS as error:
            refuse("a program", error)

    def numbers_before(self, key: Hashable) -> Scalars | None:
        """Return the numbers of the first call of a program whose second one is due, if that ran as recorded."""
        return self._numbers.pop(hash(key), None)

    def _is_prepared(self, key: Hashable, scalars: Scalars, graph: Graph) -> bool:
        """Whether a program that is not kept is to be prepared."""
        known = hash(key)
        prepared = first = False
        graph = spelled_out(graph)
        if known not in self._seen:
            name = hash((tuple([node.op.name for node in graph.nodes]), len(graph.inputs), graph.outputs))
            sizes = self._sizes.get(name, 0) + 1
            self._sizes.remember(name, sizes)
            prepared = sizes <= PREPARED or sizes % EVERY == 0
            first = prepared and config.current.auto_compile and _is_long(graph)
        elif known in self._called:
            return True
        if (prepared and not first) or not _is_plain() or has_calls(graph):
            return True
        avals = [*graph.avals, *[node.instr.aval for node in graph.nodes]]
        if not all(a.__class__ is Bundle or a.sharding is None for a in avals):
            return True
        if first:
            self._called.remember(known, None)
            self._numbers.remember(known, scalars)
        return False

    def _keep(self, key: Hashable, scalars: Scalars, program: RecordedGraph) -> Unprepared:
        graph = spelled_out(program.graph)
        run = with_strides(reference(graph), graph, program.strides)
        made = Unprepared(run, list(program.slots), scalars, len(graph.nodes))
        known = hash(key)
        if known not in self._seen:  # most sizes never come again
            self._seen.remember(known, None)
            return made
        before = self._kept.get(key)
        # other numbers: keeping it saved nothing
        made.calls = 1 if before is None else before.calls + CALLS // 4
        self._kept.remember(key, made)
        return made


def _is_long(graph: Graph) -> bool:
    """Whether preparing a program takes longer than what it saves in one call."""
    nodes = graph.nodes
    return len(nodes) >= LONG and additions(graph) <= min(MOST_ADDITIONS * len(nodes), MOST_WORK)


def _is_plain() -> bool:
    """Whether nobody wants to know of a call, and interpreting a program is no different from preparing it."""
    settings = config.current
    if settings.deterministic or settings.compile or settings.hot_threshold is not None:
        return False
    return Ran not in bus.wanted and not profiler_enabled()
