"""Records a program for a batch, each operation by its batching rule.

The batch is axis 0 of every batched intermediate value. Operations without a batched operand are recorded unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gtrace.core.ir.aval import Bundle
from gtrace.core.ir.graph import Graph, Scalar, subgraphs
from gtrace.core.ops.batching import elementwise
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind, emit_all, project
from gtrace.core.trace.capture import located
from gtrace.core.trace.promotion import rule as in_rule
from gtrace.core.trace.record import thread


def batch(graph: Graph, size: int, inputs: Sequence[Array], batched: Sequence[bool]) -> list[tuple[Array, bool]]:
    """Record `graph` for a batch. Operations over the axis `thread.batched_axis` are replaced.

    Args:
        inputs: the inputs of the graph; those that `batched` flags have the batch of `size` as axis 0.

    Returns:
        The outputs, each with such a flag.
    """
    env: dict[int, Any] = dict(zip(graph.inputs, zip(inputs, batched, strict=True), strict=True))
    name = thread.batched_axis
    for node in located(graph):
        op, params = node.op, node.params
        if op is project:
            env[node.out] = env[node.ins[0]][params[0]]  # type: ignore[index]
            continue
        operands = [(x, False) if isinstance(x, Scalar) else env[x] for x in node.ins]
        flags = tuple([flag for _, flag in operands])
        values: list[Any] = [x for x, _ in operands]
        several = node.instr.aval.__class__ is Bundle
        if name is not None and op.rules.named is not None and params[0] == name:
            env[node.out] = op.rules.named(size, flags, values, **dict(zip(op.params, params, strict=True)))
            continue
        if not any(flags) and (name is None or not _mentions(params, name)):
            env[node.out] = (
                [(x, False) for x in emit_all(node.instr, values)] if several else (bind(op, values, params), False)
            )
            continue
        rule = elementwise if op.elementwise else op.rules.batch
        assert rule is not None  # the registry walk in the tests checks this
        with in_rule():
            result = rule(op, size, flags, values, **dict(zip(op.params, params, strict=True)))
        env[node.out] = result if several else (result, True)
    return [env[value] for value in graph.outputs]


def _mentions(params: Any, name: str) -> bool:
    """Return whether a sub-graph among the attributes has an operation over the axis `name`."""
    return any(
        (node.op.rules.named is not None and node.params[0] == name) or _mentions(node.params, name)
        for sub in subgraphs(params)
        for node in sub.graph.nodes
    )
