"""Parts of a program: straight lines between loops and branches, and between what is compiled and what is not."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Mapping, Sequence, Set

import attrs

from gtrace.core.ir.aval import Bundle
from gtrace.core.ir.graph import Graph, Node
from gtrace.core.passes.split import NEVER, crossing, results_beside_operations, slices


def cut(graph: Graph, most: int) -> list[Graph]:
    """Cut a program into a sequence of programs of at most `most` nodes, where the fewest bytes cross.

    Each program but the last has more than ``most // 2`` nodes. An operation and its several results stay together,
    even if these are more than `most`.
    """
    count = len(graph.nodes)
    if count <= most:
        return [graph]
    graph = results_beside_operations(graph)
    bytes_at = crossing(graph)
    places: list[int] = []
    start = 0
    while count - start > most:
        start = min(range(start + most // 2 + 1, start + most + 1), key=bytes_at.__getitem__)
        while bytes_at[start] >= NEVER:
            start += 1
        if start < count:
            places.append(start)
    return slices(graph, places)


class _Kind(enum.IntEnum):
    """What becomes of an operation. The parts of one level come in this order."""

    COMPILED = 0
    APART = 1
    CALL = 2  # it has sub-graphs

    def rise(self, user: _Kind) -> bool:
        """Whether a user of its results is on a higher level for that."""
        return self is _Kind.CALL or user not in (self, _Kind.CALL)


Place = tuple[int, _Kind]
"""A level, and what becomes of the operations there."""


@attrs.define(eq=False)
class _Step:
    """An operation with its several results.

    Attributes:
        node: the operation.
        kind: what becomes of it.
        takes: the values that it takes.
        level: what lies before it; see `split`.
        results: the values that are its several results, by index.
    """

    node: Node
    kind: _Kind
    takes: tuple[int, ...]
    level: int
    results: dict[int, int] = attrs.field(factory=dict)

    def assigned(self, fresh: Iterator[int]) -> tuple[int, ...]:
        """Return the values of all results of an operation with sub-graphs, with fresh ones where nothing uses them."""
        count = len(self.node.instr.aval.avals)
        return tuple(self.results[k] if k in self.results else next(fresh) for k in range(count))


def split(
    graph: Graph, taken: Mapping[int, tuple[int, ...]], apart: Set[int], most: int
) -> list[Graph | tuple[Node, tuple[int, ...]]]:
    """Return the straight-line parts, and between them the operations with sub-graphs and the values they assign.

    `taken` has the values that an operation with sub-graphs takes, by the value it assigns, where these are not its
    operands.
    `apart` has the values of straight-line operations that are not compiled: a part has only such ones, or none.
    Parts that are compiled have at most `most` operations.

    The level of an operation counts what lies before it: operations with sub-graphs, and changes between compiled
    operations and others. Of several paths to it, the longest counts. A part is all straight-line operations of one
    level and kind. An operation moves to the level that first needs it if its result is at least as large as its
    operands, as of a broadcast or a constant. Several results of one straight-line operation stay with it.
    """
    steps = _steps(graph, taken, apart)
    _move_later(graph, list(dict.fromkeys(steps.values())))
    nodes: dict[Place, list[Node]] = {}
    users: dict[int, set[Place | None]] = {value: {None} for value in graph.outputs}
    for node in graph.nodes:
        step = steps[node.out]
        place = step.level, step.kind
        nodes.setdefault(place, []).append(node)
        for value in step.takes if node is step.node else node.values():
            users.setdefault(value, set()).add(place)
    avals = graph.value_avals()
    fresh = itertools.count(1 + max(avals, default=0))
    parts: list[Graph | tuple[Node, tuple[int, ...]]] = []
    for place in sorted(nodes):
        if place[1] is _Kind.CALL:
            calls = [steps[node.out] for node in nodes[place] if not node.op.projection]
            parts += [(step.node, step.assigned(fresh)) for step in calls]
            continue
        used = tuple(node for node in nodes[place] if node.out in users)
        if used:
            made = {node.out for node in used}
            ins = tuple(dict.fromkeys(v for node in used for v in node.values() if v not in made))
            outs = tuple(node.out for node in used if users[node.out] - {place})
            part = Graph(ins, tuple(avals[v] for v in ins), used, outs)
            parts += [part] if place[1] is _Kind.APART else cut(part, most)
    return parts


def _steps(graph: Graph, taken: Mapping[int, tuple[int, ...]], apart: Set[int]) -> dict[int, _Step]:
    """Return the step that makes each value, in order, on the lowest level; see `split`."""
    steps: dict[int, _Step] = {}
    for node in graph.nodes:
        if node.op.projection:
            step = steps[node.out] = steps[next(node.values())]
            step.results[node.instr.index] = node.out
            continue
        kind = _Kind.CALL if node.op.rules.body is not None else _Kind.APART if node.out in apart else _Kind.COMPILED
        takes = taken.get(node.out, tuple(node.values()))
        before = [steps[value] for value in takes if value in steps]
        level = max((step.level + step.kind.rise(kind) for step in before), default=0)
        steps[node.out] = _Step(node, kind, takes, level)
    return steps


def _move_later(graph: Graph, steps: Sequence[_Step]) -> None:
    """Move straight-line operations whose results are large to the levels that first need them; see `split`."""
    avals, outputs = graph.value_avals(), set(graph.outputs)
    users: dict[int, list[_Step]] = {}
    for step in steps:
        for value in step.takes:
            users.setdefault(value, []).append(step)
    for step in reversed(steps):
        made, a = step.node.out, step.node.instr.aval
        if isinstance(a, Bundle) or made in outputs or made not in users:
            continue
        if a.nbytes >= sum(avals[value].nbytes for value in set(step.takes)):
            step.level = min(user.level - step.kind.rise(user.kind) for user in users[made])
