"""The torch calls that compute a graph: in which order they run, which memory is reused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from gtrace.core.backends.interpreter.tuned import LEAST_REUSED
from gtrace.core.base.mechanisms import MEMORY_REUSE
from gtrace.core.ir.aliasing import is_fresh
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Node, Operand
from gtrace.core.ir.wide_unsigned import is_wide


def overwriting(node: Node, call: Callable[..., Any], place: int | None) -> Callable[..., Any]:
    """Return `call`, the function of a node, such that its result overwrites the operand at `place`, if any."""
    if place == 0:
        assert node.op.rules.in_place is not None
        return node.op.rules.in_place
    return (lambda x, y: call(x, y, out=y)) if place == 1 else call


def in_call_order(nodes: Sequence[Node]) -> list[Node]:
    """Order nodes so that results are used soon after they are made, while they are in the CPU's cache.

    The walk starts at each result that no other node uses. It visits operands depth first, the one with the longest
    chain of nodes first.
    """
    at = {node.out: node for node in nodes}
    operands: dict[int, list[int]] = {}
    depth: dict[int, int] = {}
    used = set()
    for node in nodes:
        values = operands[node.out] = [v for v in node.values() if v in at]
        used.update(values)
        depth[node.out] = 1 + max([depth[v] for v in values], default=0)
    order: dict[int, Node] = {}
    pending = [node.out for node in reversed(nodes) if node.out not in used]
    while pending:
        value = pending[-1]
        missing = [v for v in operands[value] if v not in order]
        if missing:
            pending += sorted(missing, key=depth.__getitem__)
        else:
            order.setdefault(value, at[value])
            pending.pop()
    return list(order.values())


def reusable(graph: Graph, order: Sequence[Node], donated: Collection[int] = ()) -> dict[int, int]:
    """Return for each node that may overwrite an operand, by its result, the place of this operand.

    The operand must be the result of an earlier node, or an input that is given away, with the shape and dtype of this
    node's result. This node must be its last use. No other value may share its memory: it has memory of its own, and so
    have the results of its users.

    Args:
        order: the nodes, in the order in which they run.
        donated: the places of the inputs that may be written over.
    """
    if not MEMORY_REUSE.on:
        return {}
    made = {node.out: node.instr.aval for node in order if is_fresh(node)}
    made |= {graph.inputs[k]: graph.avals[k] for k in donated}
    users: dict[int, list[Node]] = {}
    for node in order:
        for value in node.values():
            users.setdefault(value, []).append(node)
    kept = set(graph.outputs)

    def is_free(operand: Operand, user: Node, a: Aval) -> bool:
        return (
            isinstance(operand, int)
            and operand in made
            and operand not in kept
            and users[operand][-1] is user
            and users[operand].count(user) == 1
            and made[operand].shape == a.shape
            and made[operand].dtype is a.dtype
            and all(map(is_fresh, users[operand]))
        )

    found: dict[int, int] = {}
    for node in order:
        a = node.instr.aval
        if node.op.rules.in_place is not None and not is_wide(a) and not a.complex:
            for place, operand in enumerate(node.ins):
                if is_free(operand, node, a) and (place == 0 or a.nbytes >= LEAST_REUSED):
                    found[node.out] = place
                    break
    if found:
        MEMORY_REUSE.used()
    return found
