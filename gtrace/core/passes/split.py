"""Splitting a program: at the marks of regions, into independent parts, or between any two operations."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from gtrace.core.ir.aval import Bundle
from gtrace.core.ir.graph import Graph, Marks, Node, Region
from gtrace.core.ir.simplify import dce

NEVER = 1 << 60
"""Bytes that cross a place where a program cannot be cut."""


def split_regions(graph: Graph, marks: Marks) -> list[tuple[Graph, Region | None]]:
    """Cut a program where regions with a mode begin and end. Its values must be numbered in recording order.

    Returns:
        Programs to run in this order, with their regions. Each takes inputs of the whole program and results of earlier
        programs. Each returns the values that later programs use, or that are outputs.
    """
    graph = dce(graph)
    places = [number for number, _ in marks]
    groups: list[tuple[int, Region | None, list[Node]]] = []
    for node in graph.nodes:
        k = bisect.bisect_right(places, node.out) - 1
        region = marks[k][1] if k >= 0 and marks[k][1] is not None and marks[k][1].mode else None  # type: ignore[union-attr]
        key = k if region is not None else -1
        if not groups or groups[-1][0] != key:
            groups.append((key, region, []))
        groups[-1][2].append(node)
    table = graph.value_avals()
    wanted = set(graph.outputs)
    found: list[tuple[Graph, Region | None]] = []
    for _, region, nodes in reversed(groups):
        made = {node.out for node in nodes}
        ins = tuple(dict.fromkeys(v for node in nodes for v in node.values() if v not in made))
        outs = tuple(node.out for node in nodes if node.out in wanted)
        wanted.update(ins)
        found.append((Graph(ins, tuple(table[v] for v in ins), tuple(nodes), outs), region))
    found.reverse()
    return found


def components(graph: Graph, least: int) -> list[Graph]:
    """Return the parts of a program that share no computed value, each with the inputs it uses and its outputs.

    Inputs may be shared. Parts of fewer than `least` nodes are joined into one. Dead code is dropped. An output that is
    an input belongs to the first part.
    """
    graph = dce(graph)
    group = {node.out: node.out for node in graph.nodes}

    def find(value: int) -> int:
        while group[value] != value:
            group[value] = value = group[group[value]]
        return value

    for node in graph.nodes:
        for value in node.values():
            if value in group:
                group[find(value)] = find(node.out)
    parts: dict[int, list[Node]] = {}
    for node in graph.nodes:
        parts.setdefault(find(node.out), []).append(node)
    small = [root for root, nodes in parts.items() if len(nodes) < least]
    if len(parts) - len(small) + bool(small) <= 1:
        return [graph]
    together = [node for node in graph.nodes if find(node.out) in set(small)]
    avals = dict(zip(graph.inputs, graph.avals, strict=True))
    rest = [value for value in graph.outputs if value in avals]
    found = []
    for nodes in [*[nodes for root, nodes in parts.items() if root not in small], *([together] if together else [])]:
        made = {node.out for node in nodes}
        outputs = (*rest, *[value for value in graph.outputs if value in made])
        used = {value for node in nodes for value in node.values()} | set(rest)
        inputs = tuple(value for value in graph.inputs if value in used)
        found.append(Graph(inputs, tuple(avals[value] for value in inputs), tuple(nodes), outputs))
        rest = []
    return found


def grouped_components(graph: Graph, key: Callable[[Graph], Hashable]) -> list[tuple[Any, Graph]]:
    """Return the parts of a program that share no computed value, those of one `key` joined, each with its key."""
    graph = dce(graph)
    groups: dict[Hashable, list[Graph]] = {}
    for part in components(graph, 1):
        groups.setdefault(key(part), []).append(part)
    if len(groups) == 1:
        return [(next(iter(groups)), graph)]
    avals = dict(zip(graph.inputs, graph.avals, strict=True))
    found = []
    for name, parts in groups.items():
        made = {node.out for part in parts for node in part.nodes}
        used = {value for part in parts for value in part.inputs}
        inputs = tuple(value for value in graph.inputs if value in used)
        nodes = tuple(node for node in graph.nodes if node.out in made)
        outputs = tuple(value for part in parts for value in part.outputs)
        found.append((name, Graph(inputs, tuple(avals[value] for value in inputs), nodes, outputs)))
    return found


def crossing(graph: Graph) -> list[int]:
    """Return for each place before a node, and for the end, the bytes of computed values that are needed after it.

    Constants do not count, because `slices` makes them anew. Several results of one operation are not to be parted from
    it: there the number is at least `NEVER`.
    """
    nodes = graph.nodes
    table = graph.value_avals()
    made = {node.out: k for k, node in enumerate(nodes) if not is_constant(node)}
    last = dict(made)
    for k, node in enumerate(nodes):
        for value in node.values():
            last[value] = k
    for value in graph.outputs:
        last[value] = len(nodes)
    change = [0] * (len(nodes) + 2)
    for value, k in made.items():
        size = NEVER if isinstance(table[value], Bundle) else table[value].nbytes
        change[k + 1] += size
        change[last[value] + 1] -= size
    return list(itertools.accumulate(change))[:-1]


def results_beside_operations(graph: Graph) -> Graph:
    """Move results of an operation with several directly behind it, so that cuts can fall between any two others."""
    results: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        if node.op.projection:
            results.setdefault(node.ins[0], []).append(node)
    others = [node for node in graph.nodes if not node.op.projection]
    nodes = [one for node in others for one in (node, *results.get(node.out, ()))]
    return Graph(graph.inputs, graph.avals, tuple(nodes), graph.outputs)


def slices(graph: Graph, places: Sequence[int]) -> list[Graph]:
    """Cut a program before the nodes at `places`, in ascending order; returns the programs in between.

    Constants belong to every program that uses them.
    """
    nodes = graph.nodes
    table = graph.value_avals()
    constants = {node.out: node for node in nodes if is_constant(node)}
    wanted = set(graph.outputs)
    parts = []
    for start, stop in reversed(list(itertools.pairwise((0, *places, len(nodes))))):
        own = [node for node in nodes[start:stop] if node.out not in constants or node.out in wanted]
        used = dict.fromkeys(v for node in own for v in node.values())
        made = {node.out for node in own}
        own = [constants[v] for v in used if v in constants and v not in made] + own
        made.update(node.out for node in own)
        ins = tuple(v for v in used if v not in made)
        outs = tuple(node.out for node in nodes[start:stop] if node.out in wanted)
        wanted.difference_update(outs)
        wanted.update(ins)
        if outs:
            parts.append(Graph(ins, tuple(table[v] for v in ins), tuple(own), outs))
    return parts[::-1]


def is_constant(node: Node) -> bool:
    """Whether a node computes the same whatever the inputs are."""
    return node.op.rules.body is None and not any(True for _ in node.values())
