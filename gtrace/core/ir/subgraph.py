"""Graphs as attributes of operations: simplified, renumbered and interned, so that equal programs are one object."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from gtrace.core.ir.edit import inline_bodies, renumber
from gtrace.core.ir.graph import Graph, Node, Subgraph, is_subgraphs, print_graph, subgraphs
from gtrace.core.ir.interning import InternTable
from gtrace.core.ir.op import REGISTRY, Instr, Op, Params
from gtrace.core.ir.pipeline import CSE, DCE, FOLD, JOIN_PARTS, Pass, Pipeline
from gtrace.core.ir.simplify import remove_identities


def without_named_calls(graph: Graph) -> Graph:
    """Return `graph` with the bodies of operations for which there may be kernels (`Op.lowered`) in their place."""
    calls = {node.out for node in graph.nodes if node.op.lowered}
    return inline_bodies(graph, calls) if calls else graph


SUBGRAPH = Pipeline(
    "subgraph",
    (
        Pass("without_named_calls", without_named_calls),
        Pass("remove_identities", lambda graph: remove_identities(graph, keep_stops=True)),
        DCE,
        FOLD,
        JOIN_PARTS,
        DCE,
        CSE,
        DCE,
        Pass("renumber", renumber),
    ),
)
"""The passes that turn a graph into a sub-graph. Identities that change derivatives stay."""

_interned: InternTable[Subgraph] = InternTable(keep=0)

_made: weakref.WeakValueDictionary[Graph, Subgraph] = weakref.WeakValueDictionary()
"""Sub-graphs by graph, while somebody uses them: bodies are captured again and again."""


def subgraph(graph: Graph) -> Subgraph:
    """Return the interned `Subgraph` of this program, without duplicates and dead code.

    A program with user-defined derivative rules is not interned: each call makes a new sub-graph.

    >>> from gtrace import ir
    >>> one, other = (ir.subgraph(gt.make_graph(f)(gt.ones(2))) for f in (gt.sin, lambda x: (x + 1, gt.sin(x))[1]))
    >>> one is other
    True
    """
    known = _made.get(graph)
    if known is not None:
        return known
    simple = SUBGRAPH.run(graph)
    text = print_graph(simple)
    plain = Graph(simple.inputs, simple.avals, tuple(map(without_rules, simple.nodes)), simple.outputs)
    found = _interned.intern(text, lambda: Subgraph(plain, text))
    if all(node.instr is bare.instr for node, bare in zip(simple.nodes, plain.nodes, strict=True)):
        _made[graph] = found
        return found
    return Subgraph(simple, text, found)


def without_rules(node: Node) -> Node:
    """Return `node` without the user's derivative rules, also inside its sub-graphs."""
    op = REGISTRY[node.op.name]
    if node.op is op and all(sub.plain is sub for sub in subgraphs(node.params)):
        return node
    instr = plain_instr(op, node.params, node.instr.ins)
    return Node(instr, node.ins, node.out, node.location)


def plain_instr(op: Op, params: Params, avals: tuple[Any, ...]) -> Instr:
    """Return the instruction for these attributes, with the user's derivative rules removed from its sub-graphs."""
    return op.instr(tuple([_plain(value) for value in params]), avals)


def _plain(value: Any) -> Any:
    if isinstance(value, Subgraph):
        return value.plain
    return tuple([sub.plain for sub in value]) if is_subgraphs(value) else value


def select(sub: Subgraph, outputs: Iterable[int]) -> Subgraph:
    """Return `sub` with only the outputs at these indices.

    >>> from gtrace import ir
    >>> sub = ir.subgraph(gt.make_graph(lambda x: (gt.sin(x), gt.cos(x)))(gt.ones(2)))
    >>> ir.select(sub, [1])
    graph(%0: f32[2]) {
      %1: f32[2] = cos(%0)
      return %1
    }
    """
    places = tuple(outputs)

    def make() -> Subgraph:
        graph = sub.graph
        return subgraph(Graph(graph.inputs, graph.avals, graph.nodes, tuple(graph.outputs[k] for k in places)))

    return sub.memo(("select", places), make)
