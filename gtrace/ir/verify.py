"""The SSA rules, checked."""

from __future__ import annotations

from typing import Any

from gtrace.errors import GraphError
from gtrace.ir.graph import Graph, subgraphs
from gtrace.ir.op import CODES, REGISTRY, Instr, infer


def verify(graph: Graph) -> None:
    """Check that every value is assigned once and before its use, and that the avals are what inference says.

    Raises:
        GraphError: the first rule that is broken, with the value.
    """
    table: dict[int, Any] = {}
    if len(graph.inputs) != len(graph.avals):
        raise GraphError(f"[verify] expected one aval per input, got {len(graph.avals)} for {len(graph.inputs)}.")
    for value, a in zip(graph.inputs, graph.avals, strict=True):
        if value in table:
            raise GraphError(f"[verify] expected each input once, got %{value} twice.")
        table[value] = a
    for node in graph.nodes:
        known = CODES[node.instr.code]
        if not isinstance(known, Instr) or known.op is not REGISTRY.get(node.op.name):
            raise GraphError(f"[verify] expected a registered operation, got {node.op.name!r} at %{node.out}.")
        avals = []
        for operand in node.ins:
            if isinstance(operand, int):
                if operand not in table:
                    raise GraphError(f"[verify] expected an assigned operand at %{node.out}, got %{operand}.")
                avals.append(table[operand])
            else:
                avals.append(operand.aval)
        if node.out in table:
            raise GraphError(f"[verify] expected single assignment, got a second one of %{node.out}.")
        if tuple(avals) != node.instr.ins:
            raise GraphError(f"[verify] expected operands {node.instr.ins} at %{node.out}, got {tuple(avals)}.")
        inferred = infer(node.op, node.params, node.instr.ins)
        if inferred is not node.instr.aval:
            raise GraphError(f"[verify] expected {inferred!r} at %{node.out} by inference, got {node.instr.aval!r}.")
        table[node.out] = node.instr.aval
        for sub in subgraphs(node.params):
            verify(sub.graph)
    for value in graph.outputs:
        if value not in table:
            raise GraphError(f"[verify] expected an assigned output, got %{value}.")
