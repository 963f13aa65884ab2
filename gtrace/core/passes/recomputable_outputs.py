"""Outputs of a program that need not be computed with it, because they follow from its other outputs.

A training loop has a variable for its updates, the arrays that are added to its parameters. So they live until the next
step, although nobody reads them. Writing them takes as long as the new parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Node
from gtrace.core.ir.simplify import dce
from gtrace.core.passes.tuned import LEAST_LAZY_NODES, MAX_LAZY_NODES


def recomputable_outputs(graph: Graph, wanted: Collection[int] = ()) -> dict[int, frozenset[int]]:
    """Return the places of outputs that follow from other outputs and from inputs, each with these values.

    The program only adds such an output to an input of its type, or subtracts it. The result is another output. All
    operations before it are elementwise, or move elements.

    Args:
        wanted: the places of outputs that are computed in any case.
    """
    graph = dce(graph)
    if len(graph.nodes) < LEAST_LAZY_NODES:
        return {}
    avals = graph.value_avals()
    made = {node.out: node for node in graph.nodes}
    users: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for value in node.values():
            users.setdefault(value, []).append(node)
    inputs, returned = frozenset(graph.inputs), frozenset(graph.outputs)
    candidates = {
        value: place
        for place, value in enumerate(graph.outputs)
        if value in made and place not in wanted and _is_added(value, users.get(value, []), avals, inputs, returned)
    }
    given = inputs | (returned - candidates.keys())
    found = {}
    for value, place in candidates.items():
        sources = _sources(value, made, given)
        if sources is not None:
            found[place] = sources
    return found


def _is_added(
    value: int, users: list[Node], avals: Mapping[int, Aval], inputs: Collection[int], returned: Collection[int]
) -> bool:
    """Whether the only use of a value is a sum with an input, or a difference from one, which is an output."""
    if len(users) != 1 or not avals[value].shape:
        return False
    node = users[0]
    if not node.op.sum:
        return False
    other, last = node.ins
    if other == value and node.op.commutative:
        other, last = last, other
    if last != value or other not in inputs or node.out not in returned:
        return False
    return avals[other] is avals[value] is node.instr.aval  # type: ignore[index]


def _sources(value: int, made: Mapping[int, Node], given: Collection[int]) -> frozenset[int] | None:
    """Return the given values that a value is computed from by few cheap operations; None: by others."""
    left, between, sources = [value], {value}, set()
    while left:
        node = made[left.pop()]
        if not (node.op.elementwise or node.op.moves or node.op.constant):
            return None
        for x in node.values():
            if x in given:
                sources.add(x)
            elif x not in between:
                between.add(x)
                left.append(x)
        if len(between) > MAX_LAZY_NODES:
            return None
    return frozenset(sources)


def recomputation(graph: Graph, given: Collection[int]) -> Graph:
    """Return the part of a graph that computes its outputs from given values. These become its inputs."""
    made = {node.out: node for node in graph.nodes}
    avals = graph.value_avals()
    left = [value for value in graph.outputs if value not in given]
    needed, inputs = set(left), {value for value in graph.outputs if value in given}
    while left:
        for x in made[left.pop()].values():
            if x in given:
                inputs.add(x)
            elif x not in needed:
                needed.add(x)
                left.append(x)
    ordered = sorted(inputs)
    nodes = tuple(node for node in graph.nodes if node.out in needed)
    return Graph(tuple(ordered), tuple(avals[x] for x in ordered), nodes, graph.outputs)
