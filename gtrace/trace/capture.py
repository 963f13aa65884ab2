"""Capturing a function: run it on placeholders, keep the program; and replaying a program as ordinary operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from gtrace.ir.aval import Aval, Bundle
from gtrace.ir.edit import renumber
from gtrace.ir.graph import Graph, Node, Scalar
from gtrace.trace.array import Array
from gtrace.trace.bind import as_input, bind, emit_all, placeholder, project
from gtrace.trace.record import Trace, decode, thread


@attrs.frozen(eq=False)
class Captured:
    """The program of a function for inputs of given avals.

    Attributes:
        graph: its inputs are the arguments and then the constants.
        constants: Arrays from outside that the function used.
        result: what the function returned beside its outputs.
        derived: what was made of the program, kept for the next capture of an equal one; None where this is the first.
    """

    graph: Graph
    constants: tuple[Array, ...]
    result: Any
    derived: dict[Any, Any] | None = None


MAX_STRETCHES = 512
"""Recordings remembered."""


def capture(
    function: Callable[[Sequence[Array]], tuple[Sequence[Array], Any]],
    avals: Sequence[Aval],
    name: str,
    *,
    repeated: bool = False,
) -> Captured:
    """Run `function` on placeholders of `avals`, in a trace of its own.

    Args:
        function: takes the placeholders; returns the Arrays that are the outputs, and anything to keep as `result`.
        name: what errors call the traced function.
        repeated: whether it is likely to be captured again, so that its program is remembered.

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
    if not repeated or trace.special:  # of rules of the user's, each recording has its own
        program = trace.decode(numbers)
        stretch = Stretch(renumber(program.graph), tuple(program.slots))
    else:
        scalars = tuple([(x.__class__, x) for x in trace.scalars])
        locations = tuple((trace.locations or {}).items())
        stretch = _stretch(tuple(trace.flat), scalars, tuple(numbers), locations)
    leaves = trace.leaves
    constants = tuple([leaves[slot] for slot in stretch.slots[len(inputs) :]])
    leaves.clear()  # break the cycle: placeholders refer to their trace
    derived = stretch.derived if stretch.captured else None
    stretch.captured = True
    return Captured(stretch.graph, constants, result, derived)


@attrs.define(eq=False)
class Stretch:
    """What one run of a captured function recorded.

    Attributes:
        graph: the program, renumbered.
        slots: of its inputs, in the trace.
        captured: whether a capture returned it already.
        derived: what was made of the program.
    """

    graph: Graph
    slots: tuple[int, ...]
    captured: bool = False
    derived: dict[Any, Any] = attrs.field(factory=dict)


@functools.lru_cache(maxsize=MAX_STRETCHES)
def _stretch(
    flat: tuple[Any, ...],
    scalars: tuple[tuple[type, Any], ...],
    outputs: tuple[int, ...],
    locations: tuple[tuple[int, str], ...],
) -> Stretch:
    """Return the program that a trace holds: the same object for equal recordings from the same lines.

    The function has run each time, so that a recording is only ever taken for one that it equals.
    """
    program = decode(flat, [x for _, x in scalars], outputs, dict(locations))
    return Stretch(renumber(program.graph), tuple(program.slots))


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
