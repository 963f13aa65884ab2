"""Views of values: finds their strides, and makes each part of a cut program create its own views.

A part reads its inputs row by row, or with known strides. A view with other strides would be copied between parts;
queries, keys and values are such slices of one matmul.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from gtrace.core.ir.aval import Aval, contiguous_strides
from gtrace.core.ir.edit import substitute
from gtrace.core.ir.graph import Graph, Node, Operand


@attrs.frozen
class ViewCall:
    """A value that is a view of another one.

    Attributes:
        of: the other value, which is contiguous.
        strides: the strides of the view.
    """

    of: int
    strides: tuple[int, ...]


def find_views(graph: Graph) -> dict[int, ViewCall]:
    """Return the views of other operations' results in a program, assuming the layouts of torch's kernels.

    >>> from gtrace.core.ir.views import find_views
    >>> find_views(gt.make_graph(lambda x: gt.exp(x).T)(gt.ones((2, 3))))
    {2: ViewCall(of=1, strides=(1, 3))}
    """
    avals = graph.value_avals()
    made: set[int] = set()
    found: dict[int, ViewCall] = {}
    known: dict[int, tuple[int, Any]] = {}  # for each view or bundle of views: its base, and a tensor without data
    for node in graph.nodes:
        made.add(node.out)
        operand = node.ins[0] if node.ins else None
        if not isinstance(operand, int) or operand not in made or not _makes_views(node):
            continue
        a = avals[operand]
        if operand in known:
            whole, x = known[operand]
        elif isinstance(a, Aval):
            whole, x = operand, torch.empty(a.shape, dtype=a.dtype, device="meta")
        else:
            continue  # a bundle that holds no views
        view = node.op.impl(x, **node.attributes)
        if isinstance(view, torch.Tensor):
            if not view._is_view() and view is not x:
                continue  # a copy
            found[node.out] = ViewCall(whole, view.stride())
        known[node.out] = whole, view
    return found


def views_in_parts(graph: Graph, places: Sequence[int]) -> tuple[Graph, list[int]]:
    """Make each part of a program create its own views of earlier values. The program is cut before nodes `places`.

    Only non-contiguous views move. Their base is needed later anyway, or is at most twice as large as the views
    together. So no part keeps much more memory.

    Returns:
        The program, and its new cuts.

    >>> from gtrace.core.ir.views import views_in_parts
    >>> graph = gt.make_graph(lambda x: gt.tanh(gt.exp(x).T))(gt.ones((2, 3)))
    >>> cut, places = views_in_parts(graph, [2])
    >>> [node.op.name for node in cut.nodes], places
    (['exp', 'permute', 'permute', 'tanh'], [2])
    """
    made = {node.out: k for k, node in enumerate(graph.nodes)}
    part = [bisect.bisect_right(places, k) for k in range(len(graph.nodes))]
    later: dict[int, set[int]] = {}  # for each value, the later parts that read it
    for k, node in enumerate(graph.nodes):
        for value in node.values():
            if value in made and part[made[value]] < part[k]:
                later.setdefault(value, set()).add(part[k])
    avals: dict[int, Any] = graph.value_avals()
    views = find_views(graph)
    of: dict[int, list[int]] = {}  # views by their base
    for value in later:
        if value in views and views[value].strides != contiguous_strides(avals[value].shape):
            of.setdefault(views[value].of, []).append(value)
    again = [
        value
        for whole, values in of.items()
        if whole in later or 2 * sum(avals[value].nbytes for value in values) >= avals[whole].nbytes
        for value in values
    ]
    fresh = itertools.count(graph.fresh)
    nodes: list[Node] = []
    cuts = []
    for number, (start, stop) in enumerate(itertools.pairwise((0, *places, len(graph.nodes)))):
        cuts.append(len(nodes))
        own: dict[int, Operand] = {}  # the number that each recreated value has in this part
        for value in again:
            if number not in later[value]:
                continue
            for node in _chain(graph, made, value, views[value].of):
                if node.out not in own:
                    out = next(fresh)
                    nodes.append(Node(node.instr, substitute(node, own).ins, out, node.location))
                    own[node.out] = out
        nodes += [substitute(node, own) for node in graph.nodes[start:stop]]
    return Graph(graph.inputs, graph.avals, tuple(nodes), graph.outputs), cuts[1:]


def _chain(graph: Graph, made: dict[int, int], value: int, whole: int) -> list[Node]:
    """Return the operations that make a view of a value, in order."""
    chain: list[Node] = []
    while value != whole:
        chain.append(graph.nodes[made[value]])
        (value,) = chain[-1].values()
    return chain[::-1]


def _makes_views(node: Node) -> bool:
    view = node.op.view
    return node.op.projection or (view if isinstance(view, bool) else view(**node.attributes))
