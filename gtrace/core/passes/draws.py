"""Random draws of a program: what follows from keys alone, and runs before everything else.

A draw is a cipher of some hundred steps for each element. A few elementwise operations make a dropout mask or normal
numbers of its bits. A draw needs nothing of the program but its key, so it can be a program of its own. Draws of equal
shapes are then one program, whatever their keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping

import attrs

from gtrace.core.ir.graph import Graph, Node
from gtrace.core.passes.split import is_constant, slices
from gtrace.core.passes.tuned import LEAST_DRAWN


def has_draws(graph: Graph) -> bool:
    """Whether a program draws random numbers, enough of them for a program of their own."""
    return any(_draws(node) for node in graph.nodes)


def _draws(node: Node) -> bool:
    return node.op.cipher and node.instr.aval.size >= LEAST_DRAWN


def draws_apart(graph: Graph, compiles: Callable[[Node], bool]) -> list[Graph]:
    """Take the random draws of a program out of it.

    Args:
        compiles: whether an operation may be part of a draw, or of what its key follows from.

    Returns:
        Programs to run in this order: one for the keys of all draws, unless these are inputs; one for each draw; one
        for the rest, if there is any. Only the program itself, if it has no draws whose keys follow from integers
        alone.

    >>> from gtrace.core.passes.draws import draws_apart
    >>> def dropout(key, x):
    ...     return gt.where(gt.random.bernoulli(key, 0.9, x.shape), gt.tanh(x), 0.0)
    >>> graph = gt.make_graph(dropout)(gt.random.key(0), gt.ones(1000))
    >>> [[node.op.name for node in part.nodes][-2:] for part in draws_apart(graph, lambda node: True)]
    [['slice', 'slice'], ['mul', 'lt'], ['tanh', 'where']]
    """
    constants = [node for node in graph.nodes if is_constant(node)]
    fixed = {node.out for node in constants}
    others = [node for node in graph.nodes if node.out not in fixed]
    makers = {node.out: node for node in others}
    keys: set[int] = set()
    group: dict[int, int] = {}  # by drawn value: another one of its draw, which is the value itself for one of them

    def find(value: int) -> int:
        while group[value] != value:
            group[value] = value = group[group[value]]
        return value

    for node in others:
        values = [value for value in node.values() if value not in fixed]
        drawn = [value for value in values if value in group]
        if _draws(node):
            found = _key_operations([value for value in values if value not in group], makers, group, compiles)
        else:
            found = set() if drawn and len(drawn) == len(values) and _follows(node) else None
        if found is None or not compiles(node):
            continue
        keys |= found
        group[node.out] = node.out
        for value in drawn:
            group[find(value)] = node.out
    if not group:
        return [graph]
    draws: dict[int, list[Node]] = {}
    for node in others:
        if node.out in group:
            draws.setdefault(find(node.out), []).append(node)
    before = [node for node in others if node.out in keys]
    rest = [node for node in others if node.out not in keys and node.out not in group]
    parts = [[*constants, *before], *draws.values(), rest]
    ordered = attrs.evolve(graph, nodes=tuple(node for part in parts for node in part))
    return slices(ordered, list(itertools.accumulate(map(len, parts[:-1]))))


def _follows(node: Node) -> bool:
    """Whether an operation on what was drawn belongs to the draw: it works on elements, and makes no more of them."""
    return (node.op.elementwise or node.op.moves) and node.instr.aval.size <= sum(a.size for a in node.instr.ins)


def _key_operations(
    values: list[int], makers: Mapping[int, Node], drawn: Container[int], compiles: Callable[[Node], bool]
) -> set[int] | None:
    """Return the values that keys and counters are computed from; None if these follow from more than integers."""
    found: set[int] = set()
    todo = [value for value in values if value in makers]
    while todo:
        value = todo.pop()
        if value in found:
            continue
        node = makers[value]
        if value in drawn or not compiles(node) or any(a.floating for a in node.instr.ins):
            return None
        found.add(value)
        todo += [one for one in node.values() if one in makers]
    return found
