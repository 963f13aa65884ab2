"""Parts of a program: straight lines between loops and branches, and between what is compiled and what is not."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

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
    operands = {node.out: taken.get(node.out, tuple(node.values())) for node in graph.nodes}
    level: dict[int, int] = dict.fromkeys(graph.inputs, 0)
    kind: dict[int, bool] = {}  # of straight-line operations: whether they are apart
    straight: dict[tuple[int, bool], list[Node]] = {}
    calls: dict[int, list[Node]] = {}
    results: dict[int, dict[int, int]] = {}
    named: set[int] = set()  # the operations with sub-graphs, and their results
    for node in graph.nodes:
        own = kind.get(node.ins[0], False) if node.op.projection else node.out in apart  # type: ignore[arg-type]
        body = node.op.rules.body is not None
        here = max((level[v] + (not body and kind.get(v, own) != own) for v in operands[node.out]), default=0)
        if node.op.projection and node.ins[0] in results:
            results[node.ins[0]][node.instr.index] = node.out  # type: ignore[index]
            named.add(node.out)
        elif body:
            calls.setdefault(here, []).append(node)
            results[node.out] = {}
            named.add(node.out)
            here += 1
        else:
            kind[node.out] = own
        level[node.out] = here
    table = graph.value_avals()
    needed: dict[int, int] = dict.fromkeys(graph.outputs, 0)
    for node in reversed(graph.nodes):
        if not node.op.projection and not isinstance(node.instr.aval, Bundle):
            given = sum(table[value].nbytes for value in set(node.values()))
            if needed.get(node.out, 0) > level[node.out] and node.instr.aval.nbytes >= given:
                level[node.out] = needed[node.out]
        here = level[node.out] - (node.op.rules.body is not None)
        own = kind.get(node.out)  # type: ignore[assignment]
        for value in operands[node.out]:
            by = here - (own is not None and kind.get(value, own) != own)
            needed[value] = min(needed.get(value, by), by)
    for node in graph.nodes:
        if node.out not in named:
            straight.setdefault((level[node.out], kind[node.out]), []).append(node)
    fresh = 1 + max(table, default=0)
    parts: list[Graph | tuple[Node, tuple[int, ...]]] = []
    users: dict[int, set[Any]] = {}  # parts that use it; None: operations with sub-graphs, and outputs
    for part, nodes in straight.items():
        for node in nodes:
            for value in node.values():
                users.setdefault(value, set()).add(part)
    for nodes in calls.values():
        for node in nodes:
            for value in operands[node.out]:
                users.setdefault(value, set()).add(None)
    for value in graph.outputs:
        users.setdefault(value, set()).add(None)
    for here in range(1 + max([*(where for where, _ in straight), *calls])):
        for own in (False, True):
            nodes = [node for node in straight.get((here, own), []) if node.out in users]
            if not nodes:
                continue
            made = {node.out for node in nodes}
            ins = tuple(dict.fromkeys(v for node in nodes for v in node.values() if v not in made))
            outs = tuple(node.out for node in nodes if users.get(node.out, set()) - {(here, own)})
            whole = Graph(ins, tuple(table[v] for v in ins), tuple(nodes), outs)
            parts += [whole] if own else cut(whole, most)
        for node in calls.get(here, []):
            names = []
            for k in range(len(node.instr.aval.avals)):
                names.append(results[node.out].get(k, fresh))
                fresh += names[-1] == fresh
            parts.append((node, tuple(names)))
    return parts
