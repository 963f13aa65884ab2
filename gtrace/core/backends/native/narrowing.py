"""Elementwise operations of which only slices are taken: each slice is computed by itself, where it is needed."""

from __future__ import annotations

from collections.abc import Sequence

from gtrace.core.backends.native.elementwise import lowering
from gtrace.core.base.mechanisms import NARROWING
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Node, Operand
from gtrace.core.ir.op import REGISTRY

Bounds = tuple[tuple[int, int, int], ...]


def narrowed(graph: Graph) -> Graph:
    """Return a program with elementwise operations of slices in place of slices of their results.

    A slice of memory costs nothing, and an operation on it can share the loops of what it is used in. Results that are
    needed as a whole are computed as a whole, and so are those whose slices have more elements than they.
    """
    if not NARROWING.on or not any(node.op.name == "slice" for node in graph.nodes):
        return graph
    users: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for value in set(node.values()):
            users.setdefault(value, []).append(node)
    fresh = 1 + max([*graph.inputs, *(node.out for node in graph.nodes)])
    replaced: set[int] = set()
    made: list[Node] = []  # the last one first
    for node in reversed(graph.nodes):
        slices = users.get(node.out, [])
        if node.out in graph.outputs or lowering(node) is None or not _are_parts(slices, node.instr.aval):
            made.append(node)
            continue
        NARROWING.used()
        for value in set(node.values()):
            users[value].remove(node)
        for user in slices:
            ins: list[tuple[Operand, Aval]] = []
            parts: list[Node] = []
            for x, a in zip(node.ins, node.instr.ins, strict=True):
                bounds = _of_operand(a.shape, user.params[0])
                taker, operand = node, (x, a)
                if isinstance(x, int) and bounds != tuple((0, n, 1) for n in a.shape):
                    taker = Node(REGISTRY["slice"].instr((bounds,), (a,)), (x,), fresh, node.location)
                    operand = fresh, taker.instr.aval
                    parts.append(taker)
                    fresh += 1
                if isinstance(x, int):
                    users[x].append(taker)
                ins.append(operand)
            instr = node.op.instr(node.params, tuple(a for _, a in ins))
            made += [Node(instr, tuple(x for x, _ in ins), user.out, node.location), *parts]
            replaced.add(user.out)
    kept = [node for node in reversed(made) if node.op.name != "slice" or node.out not in replaced]
    return Graph(graph.inputs, graph.avals, tuple(kept), graph.outputs)


def _are_parts(users: Sequence[Node], a: Aval) -> bool:
    """Whether users of a value take slices of it that have at most its elements together."""
    sizes = [user.instr.aval.size if user.op.name == "slice" else 0 for user in users]
    return bool(sizes) and all(sizes) and sum(sizes) <= a.size


def _of_operand(shape: Sequence[int], bounds: Bounds) -> Bounds:
    """Return what a slice of a result takes of an operand of this shape, which is broadcast."""
    lead = len(bounds) - len(shape)
    return tuple((0, 1, 1) if n == 1 else own for n, own in zip(shape, bounds[lead:], strict=True))
