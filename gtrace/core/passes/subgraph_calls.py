"""Rewrites of operations with sub-graphs: inline bodies, merge equal calls, drop unused results."""

from __future__ import annotations

from collections.abc import Callable

from gtrace.core.ir.edit import inline_bodies, toposort
from gtrace.core.ir.graph import Graph, Node, Operand, Subgraph, is_subgraphs, subgraphs
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.subgraph import select


def has_calls(graph: Graph) -> bool:
    """Whether some operation has sub-graphs."""
    return any(node.op.rules.body is not None for node in graph.nodes)


def communicates(graph: Graph) -> bool:
    """Whether the program has collectives, in its sub-graphs or outside of them."""
    return any(
        node.op.collective or any(communicates(sub.graph) for sub in subgraphs(node.params)) for node in graph.nodes
    )


def has_effects(graph: Graph) -> bool:
    """Whether the program calls Python functions."""
    return any(node.op.effect or any(has_effects(sub.graph) for sub in subgraphs(node.params)) for node in graph.nodes)


def has_loops(graph: Graph) -> bool:
    """Whether the program has loops, in its branches or outside of them."""
    return any(node.op.loop or any(has_loops(sub.graph) for sub in subgraphs(node.params)) for node in graph.nodes)


def count_operations(graph: Graph) -> int:
    """Return the number of operations, those in sub-graphs included."""
    return sum(1 + sum(count_operations(sub.graph) for sub in subgraphs(node.params)) for node in graph.nodes)


def called_operators(graph: Graph) -> frozenset[str]:
    """Return the operators of torch that are called by name, by overload, those in sub-graphs included."""
    found = {str(node.attributes["overload"]) for node in graph.nodes if "overload" in node.op.params}
    return frozenset(
        found.union(*[called_operators(sub.graph) for node in graph.nodes for sub in subgraphs(node.params)])
    )


def map_subgraphs(node: Node, function: Callable[[Subgraph], Subgraph]) -> Node:
    """Return `node` with each of its sub-graphs replaced."""
    if not any(is_subgraphs(value) for value in node.params):
        return node
    params = tuple(
        value
        if not is_subgraphs(value)
        else tuple(function(sub) for sub in value)
        if isinstance(value, tuple)
        else function(value)
        for value in node.params
    )
    return Node(REGISTRY[node.op.name].instr(params, node.instr.ins), node.ins, node.out, node.location)


def inline_calls(graph: Graph) -> Graph:
    """Inline the bodies of operations that do nothing but run their body (`Rules.inlined`)."""
    while chosen := {node.out for node in graph.nodes if node.op.rules.inlined and node.op.rules.inlined(graph)}:
        graph = inline_bodies(graph, chosen)
    return graph


def merge_calls(graph: Graph, canonical: Callable[[Subgraph], Subgraph]) -> Graph:
    """Merge two calls when one returns all results of the other, and possibly more.

    A backward pass records a loop again, with the residuals it needs as further results. The loop without them is then
    redundant. The two have equal operands and attributes, and equal bodies apart from the further outputs.
    """
    groups: dict[object, list[Node]] = {}
    for node in graph.nodes:
        bodies = [value for value in node.params if isinstance(value, Subgraph)]
        if len(bodies) == 1:
            rest = tuple(value for value in node.params if not isinstance(value, Subgraph))
            groups.setdefault((node.op.name, node.ins, rest), []).append(node)
    replaced: dict[int, Operand] = {}
    for nodes in groups.values():
        nodes.sort(key=lambda node: -len(_body(node).graph.outputs))
        for k, node in enumerate(nodes):
            count = len(_body(node).graph.outputs)
            for wider in nodes[:k]:
                if wider.out not in replaced and canonical(select(_body(wider), range(count))) is canonical(
                    _body(node)
                ):
                    replaced[node.out] = wider.out
                    break
    if not replaced:
        return graph
    table = graph.value_avals()
    moved = []
    for node in graph.nodes:
        if node.op.projection and node.ins[0] in replaced:
            whole = replaced[node.ins[0]]  # type: ignore[index]
            instr = node.op.instr(node.params, (table[whole],))  # type: ignore[index]
            node = Node(instr, (whole,), node.out, node.location)
        if node.out not in replaced:
            moved.append(node)
    return Graph(graph.inputs, graph.avals, toposort(moved, graph.inputs), graph.outputs)


def _body(node: Node) -> Subgraph:
    (body,) = (value for value in node.params if isinstance(value, Subgraph))
    return body


def narrow_calls(graph: Graph) -> Graph:
    """Drop results that no ``project`` uses, where the operation allows it (`Rules.narrow`)."""
    taken: dict[int, set[int]] = {}
    for node in graph.nodes:
        if node.op.projection:
            taken.setdefault(node.ins[0], set()).add(node.instr.index)  # type: ignore[arg-type]
    kept: dict[int, tuple[Node, list[int]]] = {}
    nodes = []
    for node in graph.nodes:
        if node.op.rules.narrow is not None:
            wanted = taken.get(node.out, set())
            params, places = node.op.rules.narrow(wanted, **node.attributes)
            if len(places) < len(node.instr.aval.avals):
                instr = REGISTRY[node.op.name].instr(params, node.instr.ins)
                node = Node(instr, node.ins, node.out, node.location)
                kept[node.out] = node, list(places)
        elif node.op.projection and node.ins[0] in kept:
            whole, places = kept[node.ins[0]]  # type: ignore[index]
            instr = node.op.instr((places.index(node.instr.index),), (whole.instr.aval,))
            node = Node(instr, node.ins, node.out, node.location)
        nodes.append(node)
    return Graph(graph.inputs, graph.avals, tuple(nodes), graph.outputs) if kept else graph
