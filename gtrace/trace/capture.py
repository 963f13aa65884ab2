"""Capturing a function: run it on placeholders, keep the program; and replaying a program as ordinary operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from gtrace.ir.aval import Aval, Bundle
from gtrace.ir.edit import renumber
from gtrace.ir.graph import Graph, Node, Scalar
from gtrace.trace.array import Array
from gtrace.trace.bind import as_input, bind, emit_all, placeholder, project
from gtrace.trace.record import Trace, thread


@attrs.frozen(eq=False)
class Captured:
    """The program of a function for inputs of given avals.

    Attributes:
        graph: its inputs are the arguments and then the constants.
        constants: Arrays from outside that the function used.
        result: what the function returned beside its outputs.
    """

    graph: Graph
    constants: tuple[Array, ...]
    result: Any


def capture(
    function: Callable[[Sequence[Array]], tuple[Sequence[Array], Any]], avals: Sequence[Aval], name: str
) -> Captured:
    """Run `function` on placeholders of `avals`, in a trace of its own.

    Args:
        function: takes the placeholders; returns the Arrays that are the outputs, and anything to keep as `result`.
        name: what errors call the traced function.

    Raises:
        ConcretizationError: the function looked at a placeholder's value.
    """
    outer, layout = thread.trace, thread.layout
    trace = Trace(capture=name)
    # before the trace is the current one, so that a signal handler cannot record an input ahead of the placeholders
    inputs = [placeholder(trace, a) for a in avals]
    thread.trace, thread.layout = trace, None  # a region around a function is not part of it
    try:
        outputs, result = function(inputs)
        # an output may come from outside, or be an input: either way it must have a number here
        numbers = [x._number if x._trace is trace else as_input(trace, x) for x in outputs]
    finally:
        thread.trace, thread.layout = outer, layout
        trace.closed = True
    program = trace.decode(numbers)
    constants = tuple(trace.inputs(program)[len(inputs) :])
    trace.leaves.clear()  # break the cycle: placeholders refer to their trace
    return Captured(renumber(program.graph), constants, result)


def located(graph: Graph) -> Iterator[Node]:
    """Iterate over the nodes of `graph`; what is recorded meanwhile has the location of the node."""
    if thread.trace.locations is None:
        yield from graph.nodes
        return
    before = thread.origin
    try:
        for node in graph.nodes:
            thread.origin = node.location or before
            yield node
    finally:
        thread.origin = before


def replay(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Record the operations of `graph` on `inputs` in the current trace; returns its outputs."""
    env: dict[int, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for node in located(graph):
        if node.op is project:
            env[node.out] = env[node.ins[0]][node.params[0]]  # type: ignore[index]
            continue
        if node.instr.aval.__class__ is Bundle:
            env[node.out] = emit_all(node.instr, [env[x] for x in node.ins])  # type: ignore[index]
            continue
        operands: list[Array | Scalar] = [env[x] if isinstance(x, int) else x for x in node.ins]
        env[node.out] = bind(node.op, operands, node.params)
    return [env[value] for value in graph.outputs]
