"""Partial evaluation: split a program into what some of its inputs determine, and the rest."""

from __future__ import annotations

from collections.abc import Sequence

from gtrace.core.ir.graph import Graph, Node
from gtrace.core.ir.simplify import dce


def partial_eval(graph: Graph, known: Sequence[int], again: bool = False) -> tuple[Graph, Graph]:
    """Split a program by what can be computed from some of its inputs.

    Args:
        again: recompute results of `Op.free` operations in the second program, so that they are no residuals.

    Returns:
        (first, second): `first` takes the `known` inputs and returns residuals, `second` takes the other inputs and
        then the residuals, and returns the outputs.

    >>> from gtrace import ir
    >>> graph = gt.make_graph(lambda x, y: gt.sin(x) * y)(gt.ones(2), gt.ones(2))
    >>> early, late = ir.partial_eval(graph, known=(0,))
    >>> [node.op.name for node in early.nodes], [node.op.name for node in late.nodes]
    (['sin'], ['mul'])
    """
    available = set(known)
    early, late = [], []
    for node in graph.nodes:
        if all(value in available for value in node.values()):
            available.add(node.out)
            early.append(node)
        else:
            late.append(node)
    if again:
        makers = {node.out: node for node in early if node.op.free}
        repeated: dict[int, Node] = {}
        open_values = [value for node in late for value in node.values()]
        while open_values:
            view = makers.get(open_values.pop())
            if view is not None and view.out not in repeated:
                repeated[view.out] = view
                open_values += view.values()
        available -= set(repeated)
        late = [node for node in early if node.out in repeated] + late
    wanted = [value for node in late for value in node.values()] + list(graph.outputs)
    residuals = tuple(dict.fromkeys(value for value in wanted if value in available))
    table = graph.value_avals()
    others = tuple(value for value in graph.inputs if value not in set(known))
    first = dce(Graph(tuple(known), tuple(table[v] for v in known), tuple(early), residuals))
    ins = (*others, *residuals)
    return first, dce(Graph(ins, tuple(table[v] for v in ins), tuple(late), graph.outputs))
