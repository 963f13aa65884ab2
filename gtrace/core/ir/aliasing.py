"""Which values may share memory, and which outputs may overwrite a donated input."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Node

Pairs = tuple[tuple[int, int], ...]
"""(k, j): output j of a program overwrites its input k."""


def is_fresh(node: Node) -> bool:
    """Whether the result of a node has its own memory."""
    fresh = node.op.fresh
    return fresh if isinstance(fresh, bool) else fresh(node.instr.ins, node.instr.aval)


def aliases(graph: Graph) -> dict[int, frozenset[int]]:
    """Return, for each value, the inputs whose memory it may share. An input shares its own."""
    found: dict[int, frozenset[int]] = {value: frozenset((value,)) for value in graph.inputs}
    for node in graph.nodes:
        shared = () if node.op.rules.body is None and is_fresh(node) else [found[v] for v in node.values()]
        found[node.out] = frozenset().union(*shared)
    return found


def given_away(graph: Graph, parts: Sequence[Collection[int]], donated: Collection[int]) -> list[frozenset[int]]:
    """Return, for each part of a graph, the graph inputs that the part may overwrite.

    Args:
        parts: the values that each part reads, in the order in which the parts run.
        donated: the inputs that the graph may overwrite.
    """
    found: list[frozenset[int]] = [frozenset()] * len(parts)
    shared = aliases(graph)
    kept = set().union(*(shared[value] for value in graph.outputs))
    for k in reversed(range(len(parts))):
        taken = [value for value in dict.fromkeys(parts[k]) if value in shared]
        # the last part that reads it; no other value that the part reads may share its memory
        found[k] = frozenset(
            v for v in taken if v in donated and v not in kept and sum(v in shared[other] for other in taken) == 1
        )
        kept.update(*(shared[value] for value in taken))
    return found


def written_over(graph: Graph, donated: Collection[int]) -> Pairs:
    """Return which outputs overwrite which inputs.

    An output overwrites an input of its type if it is an elementwise function of that input. So one loop reads and
    writes it. No other output may share the memory of that input.

    Args:
        donated: the indices of the inputs that may be overwritten.
    """
    shared = aliases(graph)
    kept = set().union(*(shared[value] for value in graph.outputs))
    free = {graph.inputs[k]: k for k in donated if graph.inputs[k] not in kept}
    nodes = {node.out: node for node in graph.nodes}
    avals = graph.value_avals()
    pairs = []
    for j, output in enumerate(graph.outputs):
        if free and graph.outputs.count(output) == 1:
            found = _nearest(output, nodes, avals, free)
            if found is not None:
                pairs.append((free.pop(found), j))
    return tuple(pairs)


def _nearest(output: int, nodes: Mapping[int, Node], avals: Mapping[int, Aval], free: Collection[int]) -> int | None:
    """Return the nearest free input of the output's type that it is an elementwise function of, if any."""
    wanted = avals[output]
    seen = {output}
    front = [output]
    while front:
        following = []
        for value in front:
            node = nodes.get(value)
            if node is None or not node.op.elementwise:
                continue
            for operand in node.values():
                a = avals[operand]
                if operand in seen or a.shape != wanted.shape:
                    continue
                if operand in free and (a.dtype, a.device) == (wanted.dtype, wanted.device):
                    return operand
                seen.add(operand)
                following.append(operand)
        front = following
    return None
