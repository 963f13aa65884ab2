"""Repeated structure: where a program, in the order in which it was recorded, does the same several times in a row.

Layers of a model, their gradients and the updates of their parameters make such runs. In a run of period p, instruction
i equals instruction i + p for many i in a row. A program is cut so that the repetitions become programs of their own.
They have one canonical form, and are compiled once. Only operations, types and numbers are compared here. Repetitions
that are different programs after all cost a compile each, and are correct.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np

from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Node, Scalar
from gtrace.core.ir.views import views_in_parts
from gtrace.core.passes.split import NEVER, crossing, is_constant, results_beside_operations, slices
from gtrace.core.passes.tuned import (
    LARGE_PART_BYTES,
    LEAST_CUT_NODES,
    LEAST_SAVED,
    MAX_PERIOD,
    PART_NODES,
    PART_NODES_OF_SMALL_ARRAYS,
    PART_NODES_OF_TINY_ARRAYS,
    TINY_BYTES,
)

if TYPE_CHECKING:
    import numpy.typing as npt


_AVOIDED = 1 << 40
"""Added to the bytes that cross a place within an update, which fuses: it is cut there only if no place is left."""


@attrs.frozen
class Repeat:
    """A stretch that repeats: from `start`, `length` operations with period `period`."""

    start: int
    length: int
    period: int

    @property
    def stop(self) -> int:
        return self.start + self.length

    @property
    def saved(self) -> int:
        """Operations that repeat earlier ones."""
        return self.length - self.period


def cut_repeats(graph: Graph) -> list[Graph]:
    """Cut a simplified program in recorded order so that repetitions are programs of their own.

    Returns:
        Programs to run in this order. Each takes inputs of the whole program and results of earlier programs. Each
        returns the values that later programs use, or that are outputs. One program, if nothing repeats.
    """
    if len(graph.nodes) < LEAST_CUT_NODES:
        return [graph]
    graph = results_beside_operations(graph)
    order, inside = _beside_gradients(graph)
    graph = attrs.evolve(graph, nodes=tuple(graph.nodes[k] for k in order))
    bytes_at = [count + (_AVOIDED if place in inside else 0) for place, count in enumerate(crossing(graph))]
    written = np.cumsum([0, *(node.instr.aval.nbytes for node in graph.nodes)])
    places: set[int] = set()
    for run in find_runs(graph, LEAST_SAVED):
        places.update(_places(run, bytes_at, written))
    return slices(*views_in_parts(graph, sorted(places - {0, len(graph.nodes)})))


def updates_beside_gradients(graph: Graph) -> Graph:
    """Move the elementwise ends of a program, such as updates of parameters, to where their last operand is made.

    Optimizers go over all parameters several times: for each moment, then for the new parameters. Ordered by parameter,
    these passes are one stretch that repeats with the layers, in which the passes over one parameter fuse.

    >>> from gtrace import ir
    >>> from gtrace.core.passes.repeats import updates_beside_gradients
    >>> def update(xs):
    ...     gradients = [x.sum() for x in xs]
    ...     moments = [g * 0.9 for g in gradients]
    ...     return moments, [x - m for x, m in zip(xs, moments)]
    >>> graph = gt.make_graph(update)([gt.ones(2), gt.ones(3)])
    >>> [node.op.name for node in graph.nodes]
    ['sum', 'sum', 'mul', 'mul', 'sub', 'sub']
    >>> [node.op.name for node in updates_beside_gradients(graph).nodes]
    ['sum', 'mul', 'sub', 'sum', 'mul', 'sub']
    """
    order, _ = _beside_gradients(graph)
    return attrs.evolve(graph, nodes=tuple(graph.nodes[k] for k in order))


def _beside_gradients(graph: Graph) -> tuple[list[int], set[int]]:
    """Return the order of `updates_beside_gradients`, and the places in it that are within an update.

    Longer ends than a part has operations, at least, are not kept whole.
    """
    nodes = graph.nodes
    place = {node.out: k for k, node in enumerate(nodes)}
    used = [False] * len(nodes)
    moves = [_moves(node) for node in nodes]
    for k in range(len(nodes) - 1, -1, -1):
        for value in nodes[k].values():
            if value in place:
                used[place[value]] = True
                moves[place[value]] &= moves[k]
    after: dict[int, list[int]] = {}  # by the last fixed operand of an end: the ends
    last = list(range(len(nodes)))
    for k, node in enumerate(nodes):
        if moves[k]:
            last[k] = max((last[place[value]] for value in node.values() if value in place), default=-1)
            if not used[k]:
                after.setdefault(last[k], []).append(k)
    order: list[int] = []
    inside: set[int] = set()
    done = [False] * len(nodes)

    def add(end: int) -> None:
        cone, rest = {end}, [end]
        while rest:
            for value in nodes[rest.pop()].values():
                k = place.get(value, -1)
                if k >= 0 and moves[k] and not done[k] and k not in cone:
                    cone.add(k)
                    rest.append(k)
        if len(cone) <= PART_NODES:
            inside.update(range(len(order) + 1, len(order) + len(cone)))
        for k in sorted(cone):
            done[k] = True
            order.append(k)

    for k in range(len(nodes)):
        if not moves[k]:
            order.append(k)
            for end in after.get(k, ()):
                add(end)
    for end in after.get(-1, ()):
        add(end)
    return order, inside


def _moves(node: Node) -> bool:
    """Whether an operation costs the same elsewhere: it works by element, returns a view, or computes one number."""
    op, avals = node.op, (*node.instr.ins, node.instr.aval)
    number = all(isinstance(a, Aval) and a.size == 1 for a in avals) and not (op.effect or op.collective)
    return op.elementwise or op.free or is_constant(node) or number


def _places(run: Repeat, bytes_at: list[int], written: npt.NDArray[np.int64]) -> range:
    """Return where to cut a run: into equal parts, at the phase at which the fewest bytes cross.

    Nowhere, if every phase would part an operation from its several results.
    """
    bytes_written = written[run.start + run.period] - written[run.start]
    nodes = PART_NODES if bytes_written >= LARGE_PART_BYTES else PART_NODES_OF_SMALL_ARRAYS
    if bytes_written < TINY_BYTES * run.period:
        nodes = PART_NODES_OF_TINY_ARRAYS
    least = -(-nodes // run.period)
    # of parts of up to twice the least size, those that leave the fewest operations to compile
    sizes = [run.period * count for count in range(least, 2 * least + 1) if 2 * run.period * count <= run.length]
    if not sizes:
        return range(0)
    size = min(sizes, key=lambda size: (size + run.length % size, -size))
    whole = run.length // size
    for count in (whole, whole - 1):  # one part fewer leaves every phase to choose from
        starts = range(run.start, run.stop - count * size + 1)
        phases = [range(start, start + count * size + 1, size) for start in starts]
        best = min(phases, key=lambda places: sum(bytes_at[place] for place in places))
        if all(bytes_at[place] < NEVER for place in best):
            return best
    return range(0)


def find_runs(graph: Graph, least: int) -> list[Repeat]:
    """Return disjoint runs of at least `least` saved operations, in order: chosen greedily, those that save most first.

    >>> from gtrace.core.passes.repeats import find_runs
    >>> def layers(x):
    ...     for _ in range(4):
    ...         x = gt.tanh(gt.sin(x) * 2)
    ...     return x.sum()
    >>> find_runs(gt.make_graph(layers)(gt.ones(2)), 4)
    [Repeat(start=0, length=12, period=3)]
    """
    known: dict[object, int] = {}
    kinds = [
        known.setdefault((node.instr, *[x if isinstance(x, Scalar) else None for x in node.ins]), len(known))
        for node in graph.nodes
    ]
    found = _maximal(np.array(kinds, dtype=np.int32), least)
    chosen: list[Repeat] = []
    while found:
        best = max(found, key=lambda run: (run.saved, -run.period, -run.start))
        chosen.append(best)
        rest = []
        for run in found:
            before = Repeat(run.start, min(run.stop, best.start) - run.start, run.period)
            start = max(run.start, best.stop)
            after = Repeat(start, run.stop - start, run.period)
            rest += [part for part in (before, after) if part.saved >= max(least, part.period)]
        found = rest
    return sorted(chosen, key=lambda run: run.start)


def _maximal(kinds: npt.NDArray[np.int32], least: int) -> list[Repeat]:
    """Return every maximal stretch of at least two periods that saves enough."""
    found = []
    for period in range(1, min(len(kinds) // 2, MAX_PERIOD) + 1):
        same = np.concatenate(([False], kinds[period:] == kinds[:-period], [False]))
        edges = np.flatnonzero(same[1:] != same[:-1])
        starts, stops = edges[::2], edges[1::2]
        for k in np.flatnonzero(stops - starts >= max(least, period)):
            found.append(Repeat(int(starts[k]), int(stops[k] - starts[k]) + period, period))
    return found
