"""Capturing a function: run it on placeholders, keep the program; and replaying a program as ordinary operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import torch

from gtrace.errors import ArgumentError, message
from gtrace.ir.aval import Aval, Bundle
from gtrace.ir.edit import renumber
from gtrace.ir.graph import Graph, Node, Scalar
from gtrace.ir.op import REGISTRY
from gtrace.trace.array import Array, materialize, wrap
from gtrace.trace.bind import as_input, bind, emit_all, placeholder, project
from gtrace.trace.convert import new_tensor
from gtrace.trace.record import Trace, decode, thread


@attrs.frozen(eq=False)
class Captured:
    """The program of a function for inputs of given avals.

    Attributes:
        graph: its inputs are the arguments and then the constants.
        constants: Arrays from outside that the function used.
        result: what the function returned beside its outputs.
        derived: what was made of the program, kept for the next capture of an equal one; None where this is the first.
        token: the only output is that of calls that the function makes for their effect; it has none of its own.
    """

    graph: Graph
    constants: tuple[Array, ...]
    result: Any
    derived: dict[Any, Any] | None = None
    token: bool = False


MAX_STRETCHES = 512
"""Recordings remembered."""


def capture(
    function: Callable[[Sequence[Array]], tuple[Sequence[Array], Any]],
    avals: Sequence[Aval],
    name: str,
    *,
    repeated: bool = False,
    tokens: str = "refused",
) -> Captured:
    """Run `function` on placeholders of `avals`, in a trace of its own.

    Args:
        function: takes the placeholders; returns the Arrays that are the outputs, and anything to keep as `result`.
        name: what errors call the traced function.
        repeated: whether it is likely to be captured again, so that its program is remembered.
        tokens: what becomes of a function with effects, such as printing, and without outputs: it is "refused", or,
            with "if any", a token is its output; with "always" also that of a function without effects.

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
        token = not outputs and (bool(trace.effects) or tokens == "always")
        if token or trace.effects:
            outputs = _with_effects(outputs, trace, tokens)
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
    return Captured(stretch.graph, constants, result, derived, token)


def _with_effects(outputs: Sequence[Array], trace: Trace, tokens: str) -> list[Array]:
    """Return outputs that need the effects of the function being traced; of a function without outputs, a token.

    Raises:
        ArgumentError: the function has no outputs, and its caller knows of no tokens.
    """
    noted = [token for token, _ in trace.effects]
    after = REGISTRY["after"]
    if outputs:
        return [bind(after, (x, *noted)) for x in outputs]
    if tokens == "refused":
        expected = "a function that returns arrays, where it prints or calls back"
        raise ArgumentError(message("callback", expected, f"nothing from {trace.capture}", "Return a value."))
    if not noted:
        return [wrap(new_tensor([], torch.uint8))]
    return [bind(after, tuple(noted))]


@attrs.frozen
class NoOutputs:
    """In place of the structure of the outputs, of a function with effects and without outputs."""

    structure: Any

    def unflatten(self, leaves: Iterable[Array]) -> Any:
        """Return what the function returned; its effects are those of the function that it is called in."""
        note_token(*leaves)
        return self.structure.unflatten([])


def note_token(token: Array) -> None:
    """Make the effects of a call those of the function that is being traced; outside of any, have them now."""
    if thread.trace.capture is None:
        materialize(token, "callback")
    else:
        thread.trace.effects.append((token, False))


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
