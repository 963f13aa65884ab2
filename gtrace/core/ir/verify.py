"""The verifier: checks the rules of a graph."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from gtrace.core.base.errors import GraphError
from gtrace.core.ir.aval import Aval, Bundle
from gtrace.core.ir.graph import Graph, Node, Scalar, Subgraph, print_graph, subgraphs
from gtrace.core.ir.infer import infer
from gtrace.core.ir.op import REGISTRY, Instr

_inferred: weakref.WeakSet[Instr] = weakref.WeakSet()
"""Instructions whose result type was verified. Instructions never change."""


def verify(graph: Graph) -> None:
    """Check the rules of a graph.

    Every value is assigned once, before its use. Operands are values or `Scalar`. Each operation is registered, takes
    operands of the types in its `Instr`, and has the inferred result type. Outputs are arrays. Sub-graphs follow the
    same rules, and their inputs are 0, 1, ... in order.

    Raises:
        GraphError: the first broken rule, with the value.

    >>> from gtrace import ir
    >>> graph = ir.parse_graph('''
    ... graph(%0: f32[3]) {
    ...   %1: f32[3] = sin(%0)
    ...   return %1
    ... }''')
    >>> ir.verify(graph)
    >>> ir.verify(ir.Graph(graph.inputs, graph.avals, graph.nodes, (2,)))
    Traceback (most recent call last):
        ...
    gtrace.errors.GraphError: [verify] expected an assigned output, got %2.
    """
    rule = broken_rule(graph)
    if rule is not None:
        raise GraphError(f"[verify] {rule}.")


def broken_rule(graph: Graph) -> str | None:
    """Return the first rule that a graph violates, as "expected X, got Y"; None if there is none."""
    if not isinstance(graph, Graph):
        return f"expected a Graph, got {type(graph).__name__}"
    for field in ("inputs", "avals", "nodes", "outputs"):
        if not isinstance(getattr(graph, field), tuple):
            return f"expected a tuple of {field}, got {type(getattr(graph, field)).__name__}"
    if len(graph.inputs) != len(graph.avals):
        return f"expected one aval per input, got {len(graph.avals)} for {len(graph.inputs)}"
    table: dict[int, Any] = {}
    for value, a in zip(graph.inputs, graph.avals, strict=True):
        if value.__class__ is not int or not isinstance(a, Aval):
            return f"expected an int and an aval for each input, got {value!r} and {a!r}"
        if value in table:
            return f"expected each input once, got %{value} twice"
        table[value] = a.plain
    for node in graph.nodes:
        rule = _broken_by_node(node, table)
        if rule is not None:
            return rule
        table[node.out] = node.instr.aval
    for value in graph.outputs:
        if value.__class__ is not int or value not in table:
            return f"expected an assigned output, got {_written(value)}"
        if isinstance(table[value], Bundle):
            return f"expected outputs that are one array each, got %{value}: {table[value]!r}"
    return None


def _broken_by_node(node: Node, table: dict[int, Any]) -> str | None:
    """Return the rule that a node violates, or None. `table` has the types of the values assigned so far."""
    if not isinstance(node, Node) or not isinstance(node.instr, Instr) or node.out.__class__ is not int:
        return f"expected a Node with an Instr and an int, got {node!r}"
    instr, out = node.instr, node.out
    known = instr.plain or instr
    if known.op is not REGISTRY.get(instr.op.name):
        return f"expected a registered operation, got {instr.op.name!r} at %{out}"
    avals = []
    for operand in node.ins:
        if operand.__class__ is int:
            if operand not in table:
                return f"expected an assigned operand at %{out}, got %{operand}"
            avals.append(table[operand])
        elif isinstance(operand, Scalar):
            if operand.aval.shape:
                return f"expected scalars without dimensions at %{out}, got {operand!r}"
            avals.append(operand.aval)
        else:
            return f"expected operands that are values or Scalars at %{out}, got {operand!r}"
    if out in table:
        return f"expected single assignment, got a second one of %{out}"
    if tuple(avals) != instr.ins:
        return f"expected operands {instr.ins} at %{out}, got {tuple(avals)}"
    for sub in subgraphs(node.params):
        rule = sub.memo("broken rule", functools.partial(_broken_subgraph, sub))
        if rule is not None:
            return f"in a sub-graph of %{out}: {rule}"
    if instr not in _inferred:
        try:
            inferred = infer(instr.op, instr.params, instr.ins)
        except Exception as error:  # noqa: BLE001 - the rules of operations raise anything if attributes are senseless
            return f"expected operands and attributes that fit {instr.op.name} at %{out}, got an error: {error}"
        if inferred is not instr.aval:
            return f"expected {inferred!r} at %{out} by inference, got {instr.aval!r}"
        _inferred.add(instr)
    return None


def _broken_subgraph(sub: Subgraph) -> str | None:
    rule = broken_rule(sub.graph)
    if rule is not None:
        return rule
    if sub.graph.inputs != tuple(range(len(sub.graph.inputs))):
        return f"expected inputs 0, 1, ... of a sub-graph, got {sub.graph.inputs}"
    if sub.text != print_graph(sub.graph):
        return "expected a sub-graph made by gtrace.core.ir.subgraph, got one with another text"
    return None


def _written(value: object) -> str:
    return f"%{value}" if value.__class__ is int else repr(value)
