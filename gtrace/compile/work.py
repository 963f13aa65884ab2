"""How much a program has to do, roughly, in additions: what a part or a step is worth before anything was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gtrace.interp.products import takes_library
from gtrace.ir.graph import Graph, Node, subgraphs

CALL = 2000
"""Additions that an interpreted operation takes however small it is."""

PRODUCTS = 16
"""Multiplications of a product of matrices that take as long as one addition of elements."""

TORCH_CALL = 10_000
"""Additions of compiled code in the time that a call of torch takes, however small it is."""

LONG_STEP = 1_000_000
"""Additions in a step of a loop above which calls of the compiled body cost little beside it."""

LONG_NATIVE_STEP = 8_000_000
"""Additions in a step above which a loop is not compiled as a whole: libraries are faster for products of that size."""


LONG_NATIVE_PROGRAM = 1 << 26
"""The same in a program without loops: beside it, what interpreting and compiling its operations takes is little."""


def additions(graph: Graph) -> int:
    """Return what a program is worth. A loop whose length is not known counts once; of branches, the largest counts.

    >>> import gtrace as gt
    >>> additions(gt.make_graph(lambda x, y: gt.tanh(x @ y))(gt.ones((16, 16)), gt.ones((16, 16))))
    768
    """
    return sum(node_additions(node) for node in graph.nodes)


def torch_calls(graph: Graph) -> int:
    """Return how many calls of torch interpret a program. Of branches, the longest counts; see `additions`."""
    total = 0
    for node in graph.nodes:
        inner = [torch_calls(sub.graph) for sub in subgraphs(node.params)]
        if not inner:
            total += not node.op.projection
        else:
            total += max(inner) if node.op.name == "switch" else sum(inner) * int(node.attributes.get("length", 1))
    return total


def savable(nodes: Iterable[Node]) -> int:
    """Return how much of interpreted straight-line operations compiling may save: the calls, and passes over memory.

    Products of matrices take the same library.
    """
    return sum(CALL + (0 if takes_library(node.instr) else node_additions(node)) for node in nodes)


def node_additions(node: Node) -> int:
    """Return what one operation is worth."""
    subs = subgraphs(node.params)
    if subs:
        inner = [additions(sub.graph) for sub in subs]
        return max(inner) if node.op.name == "switch" else sum(inner) * int(node.attributes.get("length", 1))
    if node.op.free or node.op.projection:
        return 0
    ins, out = node.instr.ins, node.instr.aval
    if node.op.name == "matmul":
        return int(out.size * ins[0].shape[-1]) // PRODUCTS
    if node.op.name == "einsum":
        terms = node.params[0].partition("->")[0].split(",")
        sizes = {c: n for term, a in zip(terms, ins, strict=True) for c, n in zip(term, a.shape, strict=False)}
        return math.prod(sizes.values()) // PRODUCTS
    return sum(a.nbytes for a in (*ins, out)) // 4
