"""Python numbers in bodies of loops, branches and rules: constants until they change, then inputs.

A body is part of the instruction that runs it. A number that changes at each step, such as a learning rate, would make
each step a new program. Flat programs follow the same rule; see `gtrace.core.runtime.engine`.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from gtrace.core.base.bounded_tables import PER_OPERATION, SMALL, BoundedTable, remembered
from gtrace.core.base.devices import number_tensor
from gtrace.core.base.locks import new_lock
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar, Skeleton, Subgraph, skeleton
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.trace.array import Array, wrap_as
from gtrace.core.trace.capture import Captured

VALUES = 3
"""Distinct values that turn a number into an input. Two values keep it constant: two loops may differ in it."""

MAX_BODIES = 512
"""The number of cached bodies."""

_lock = new_lock()


def lift_numbers(captured: Captured, what: str) -> Captured:
    """Return a captured function whose changing numbers are additional constants.

    Args:
        what: the purpose of the body. Each purpose has its own record of values.
    """
    # the values of an equal cached capture are noted already
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
    rules: Sequence[Subgraph], origins: Sequence[Subgraph], what: str, held: Sequence[Sequence[Array]] | None = None
) -> tuple[tuple[Subgraph, ...], list[Array]]:
    """Return the rules of sub-graphs, with changing numbers as common additional inputs, and the numbers.

    Only user-defined derivative rules add numbers that change while the original programs stay the same.

    Args:
        held: for each rule, arrays that are its last inputs. They become common additional inputs too.
    """
    if not any(held or ()) and all(sub.plain is sub for sub in origins):
        return tuple(rules), []
    lifted = []
    for k, sub in enumerate(rules):
        graph, numbers = lift_numbers_of(sub.graph, f"{what} {k}")
        lifted.append((graph, [*(held[k] if held else ()), *numbers]))
    every = [x for _, added in lifted for x in added]
    programs = []
    before = 0
    for graph, added in lifted:
        count = len(graph.inputs) - len(added)
        fresh = 1 + max([*graph.inputs, *(node.out for node in graph.nodes), -1])
        last = list(range(fresh, fresh + len(every)))
        last[before : before + len(added)] = graph.inputs[count:]
        before += len(added)
        inputs = (*graph.inputs[:count], *last)
        avals = (*graph.avals[:count], *[x.aval for x in every])
        programs.append(subgraph(Graph(inputs, avals, graph.nodes, graph.outputs)))
    return tuple(programs), every


def lift_numbers_of(graph: Graph, what: str) -> tuple[Graph, list[Array]]:
    """Return `graph` with its changing numbers as additional last inputs, and these numbers."""
    return _lifted(graph, _note(graph, what)[1])


def _note(graph: Graph, what: str) -> tuple[_Key, _Values]:
    """Note the values of the numbers of a body; return its key, and the values so far."""
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
    return graph, [wrap_as(number_tensor(x.value, x.aval.dtype, x.aval.device), x.aval) for x in numbers]


@attrs.define(eq=False)
class _Values:
    """The past values of each number of a body.

    Attributes:
        values: by index of the number; at most as many as turn it into an input.
        operations: the number of operations of the body.
        changing: the indices of numbers that are inputs.
    """

    values: list[set[bool | int | float | complex]]
    operations: int
    changing: frozenset[int] = frozenset()


@attrs.frozen(cache_hash=True)
class _Key:
    """The key of the numbers of a body."""

    what: str
    skeleton: Skeleton


_seen: BoundedTable[_Key, _Values] = BoundedTable(MAX_BODIES, lambda seen: SMALL + PER_OPERATION * seen.operations)
"""By the purpose and the skeleton of a body."""


@remembered(MAX_BODIES, lambda found: SMALL + PER_OPERATION * (len(found[0].skeleton[2]) if found[1] else 0))
def _key(graph: Graph, what: str) -> tuple[_Key, list[Scalar]]:
    """Return the key and the numbers of a body."""
    scalars = [x for node in graph.nodes for x in node.ins if isinstance(x, Scalar)]
    return _Key(what, skeleton(graph)[0] if scalars else ()), scalars


@remembered(MAX_BODIES, lambda found: SMALL + PER_OPERATION * len(found[0].nodes))
def _with_inputs(graph: Graph, lifted: frozenset[int]) -> tuple[Graph, list[Scalar]]:
    """Return `graph` with the scalars at these indices as inputs, and these scalars."""
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
