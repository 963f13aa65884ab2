"""Python numbers in the bodies of loops, branches and rules: constants until they are seen to change, then inputs.

A body is part of the instruction that runs it. With a number in it that differs in every step of a program, such as a
learning rate, each step would be another program. A flat program has the same rule, see `gtrace.core.runtime.engine`.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from gtrace.core.base.bounded_tables import PER_OPERATION, SMALL, BoundedTable, remembered
from gtrace.core.base.locks import new_lock
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar, Skeleton, Subgraph, skeleton
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.trace.array import Array, wrap_as
from gtrace.core.trace.capture import Captured

VALUES = 3
"""Distinct values that make a number an input. It stays a constant with two, as of two loops that differ in it."""

MAX_BODIES = 512
"""Bodies remembered."""

_lock = new_lock()


def lift_numbers(captured: Captured, what: str) -> Captured:
    """Return a captured function whose numbers that change from capture to capture are further constants.

    Args:
        what: the purpose of the body; the values are kept for each purpose by itself.
    """
    # the values of an equal capture are noted already, as long as they are remembered
    noted = None if captured.memo is None else captured.memo.get(what)
    if noted is None or _seen.get(noted[0]) is not noted[1]:
        noted = _note(captured.graph, what)
        if captured.memo is not None:
            captured.memo.remember(what, noted)
    graph, numbers = _lifted(captured.graph, noted[1])
    if not numbers:
        return captured
    return attrs.evolve(captured, graph=graph, constants=(*captured.constants, *numbers))


def lift_rule_numbers(
    rules: Sequence[Subgraph], origins: Sequence[Subgraph], what: str
) -> tuple[tuple[Subgraph, ...], list[Array]]:
    """Return the rules of sub-graphs, with their numbers that change as common further inputs, and the numbers.

    Only derivative rules of the user's add numbers that change while the original programs stay the same.
    """
    if all(sub.plain is sub for sub in origins):
        return tuple(rules), []
    lifted = [lift_numbers_of(sub.graph, f"{what} {k}") for k, sub in enumerate(rules)]
    every = [x for _, numbers in lifted for x in numbers]
    programs = []
    before = 0
    for sub, (graph, numbers) in zip(rules, lifted, strict=True):
        count = len(sub.graph.inputs)
        fresh = 1 + max([*graph.inputs, *(node.out for node in graph.nodes), -1])
        last = list(range(fresh, fresh + len(every)))
        last[before : before + len(numbers)] = graph.inputs[count:]
        before += len(numbers)
        inputs = (*graph.inputs[:count], *last)
        avals = (*graph.avals[:count], *[x.aval for x in every])
        programs.append(subgraph(Graph(inputs, avals, graph.nodes, graph.outputs)))
    return tuple(programs), every


def lift_numbers_of(graph: Graph, what: str) -> tuple[Graph, list[Array]]:
    """Return `graph` with its numbers that change as further inputs, its last, and these numbers."""
    return _lifted(graph, _note(graph, what)[1])


def _note(graph: Graph, what: str) -> tuple[_Key, _Values]:
    """Note the values of the numbers of a body; returns what these are known by, and their values so far."""
    key, scalars = _key(graph, what)
    with _lock:
        seen = _seen.get(key)
        if seen is None:
            seen = _Values([set() for _ in scalars], len(graph.nodes))
            _seen.remember(key, seen)
        for values, scalar in zip(seen.values, scalars, strict=True):
            if len(values) < VALUES:
                values.add(scalar.value)
        seen.changing = frozenset([k for k, values in enumerate(seen.values) if len(values) == VALUES])
    return key, seen


def _lifted(graph: Graph, seen: _Values) -> tuple[Graph, list[Array]]:
    if not seen.changing:
        return graph, []
    graph, numbers = _with_inputs(graph, seen.changing)
    return graph, [wrap_as(torch.tensor(x.value, dtype=x.aval.dtype, device=x.aval.device), x.aval) for x in numbers]


@attrs.define(eq=False)
class _Values:
    """The values that each number of a body had.

    Attributes:
        values: by the place of the number, counted in order; at most as many as make it an input.
        operations: of the body.
        changing: the places of numbers that are inputs.
    """

    values: list[set[bool | int | float | complex]]
    operations: int
    changing: frozenset[int] = frozenset()


@attrs.frozen(cache_hash=True)
class _Key:
    """What the numbers of a body are known by."""

    what: str
    skeleton: Skeleton


_seen: BoundedTable[_Key, _Values] = BoundedTable(MAX_BODIES, lambda seen: SMALL + PER_OPERATION * seen.operations)
"""By the purpose of a body and its skeleton."""


@remembered(MAX_BODIES, lambda found: SMALL + PER_OPERATION * (len(found[0].skeleton[2]) if found[1] else 0))
def _key(graph: Graph, what: str) -> tuple[_Key, list[Scalar]]:
    """Return the key of a body, and its numbers."""
    scalars = [x for node in graph.nodes for x in node.ins if isinstance(x, Scalar)]
    return _Key(what, skeleton(graph)[0] if scalars else ()), scalars


@remembered(MAX_BODIES, lambda found: SMALL + PER_OPERATION * len(found[0].nodes))
def _with_inputs(graph: Graph, lifted: frozenset[int]) -> tuple[Graph, list[Scalar]]:
    """Return `graph` with the scalars at these places, counted in order, as inputs; and these scalars."""
    fresh = 1 + max([*graph.inputs, *(node.out for node in graph.nodes)])
    place = -1
    numbers: list[Scalar] = []
    nodes = []
    for node in graph.nodes:
        ins: list[Operand] = []
        for x in node.ins:
            if isinstance(x, Scalar):
                place += 1
                if place in lifted:
                    numbers.append(x)
                    x = fresh + len(numbers) - 1
            ins.append(x)
        nodes.append(Node(node.instr, tuple(ins), node.out, node.location))
    inputs = (*graph.inputs, *range(fresh, fresh + len(numbers)))
    return Graph(inputs, (*graph.avals, *[x.aval for x in numbers]), tuple(nodes), graph.outputs), numbers
