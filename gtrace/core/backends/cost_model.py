"""How much a program has to do, roughly, in additions: what a part or a step is worth before anything was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gtrace.core.backends.interpreter.matmul import takes_library
from gtrace.core.backends.tuned import INTERPRETED_CALL, LARGE_OPERATION, PRODUCTS, SAVED_OF_LARGE, SMALL_OPERATION
from gtrace.core.ir.graph import Graph, Node, subgraphs


def additions(graph: Graph) -> int:
    """Return what a program is worth. A loop whose length is not known counts once; of branches, the largest counts.

    >>> additions(gt.make_graph(lambda x, y: gt.tanh(x @ y))(gt.ones((16, 16)), gt.ones((16, 16))))
    768
    """
    return sum(node_additions(node) for node in graph.nodes)


def savable(nodes: Iterable[Node]) -> int:
    """Return how much of interpreted straight-line operations compiling may save: the calls, and passes over memory.

    Products of matrices take the same library.
    """
    return sum(INTERPRETED_CALL + (0 if takes_library(node.instr) else node_additions(node)) for node in nodes)


def saved_beside_libraries(graph: Graph) -> float:
    """Return the fraction of what an interpreted program takes beside products that compiling should save.

    Operations on small arrays cost little but their calls, and nearly all of that is saved. Operations on large arrays
    wait for memory, most of which compiled code reads and writes too. Trials gave 0.7 to 1.0 for layers of a
    transformer of width 128 with 256 rows, and 0.3 for width 256 with 1,024 rows. They gave 0.4 for convolutions of 64
    images of 32 by 32.

    >>> def layer(x, w):
    ...     return gt.tanh(x @ w)
    >>> small, large = gt.make_graph(layer)(gt.ones((64, 64)), gt.ones((64, 64))), gt.ones((2048, 2048))
    >>> saved_beside_libraries(small), saved_beside_libraries(gt.make_graph(layer)(large, large))
    (1.0, 0.4)
    """
    beside = [node for node in graph.nodes if not (node.op.free or node.op.projection or takes_library(node.instr))]
    moved = [sum(a.nbytes for a in (*node.instr.ins, node.instr.aval)) for node in beside]
    total = sum(moved)
    if not total:
        return 1.0
    mean = sum(n * n for n in moved) / total  # weighted by what they take
    share = (math.log(max(mean, 1)) - math.log(SMALL_OPERATION)) / (
        math.log(LARGE_OPERATION) - math.log(SMALL_OPERATION)
    )
    return 1.0 - (1.0 - SAVED_OF_LARGE) * min(max(share, 0.0), 1.0)


def node_additions(node: Node) -> int:
    """Return what one operation is worth."""
    subs = subgraphs(node.params)
    if subs:  # of branches the longest, of a loop all steps
        inner = [additions(sub.graph) for sub in subs]
        return max(inner) if node.op.branch else sum(inner) * int(node.attributes.get("length", 1))
    if node.op.free or node.op.projection:
        return 0
    ins, out = node.instr.ins, node.instr.aval
    if node.op.contraction is not None:
        return node.op.contraction(ins, out, **node.attributes) // PRODUCTS
    return sum(a.nbytes for a in (*ins, out)) // 4
