"""Sub-graphs that transforms derive from a sub-graph: pullback, pushforward, batched form. Each is made once.

A rule of the user's may use arrays from outside. They are the last inputs of the derived program, and are called held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.edit import substitute
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar, Subgraph
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.simplify import dce
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.ops.batching import spread
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import capture, replay
from gtrace.core.trace.force import captured_by
from gtrace.core.trace.record import thread
from gtrace.core.transform.batch import batch
from gtrace.core.transform.jvp import push
from gtrace.core.transform.tape import Tape, pull, record

Flags = tuple[bool, ...]
Held = tuple[Array, ...]


def captured_subgraph(function: Callable[[Sequence[Array]], Sequence[Array]], avals: Sequence[Aval]) -> Subgraph:
    """Return the program of a function that uses only its inputs."""
    graph, held = captured_program(function, avals)
    assert not held, f"a program of its inputs alone uses an array from outside, {held[0].aval!r}"
    return subgraph(graph)


def captured_program(
    function: Callable[[Sequence[Array]], Sequence[Array]], avals: Sequence[Aval]
) -> tuple[Graph, Held]:
    """Return the program of a function as recorded, with the lines of its operations, and the arrays it holds."""
    captured = capture(lambda inputs: (function(inputs), None), avals, "the body of an operation")
    graph, constants = captured.graph, captured.constants
    if any(map(_is_held, constants)):  # a signal handler or finalizer may have recorded something
        graph, constants = _needed(graph, constants)
    return _with_numbers(graph, constants)


def _is_held(x: Array) -> bool:
    return bool(x.shape) or captured_by(x) is not None


def _needed(graph: Graph, constants: Sequence[Array]) -> tuple[Graph, Held]:
    """Return a program and its constants without unused parts."""
    graph = dce(graph)
    count = len(graph.inputs) - len(constants)
    used = {*graph.outputs, *[value for node in graph.nodes for value in node.values()]}
    kept = [k for k, value in enumerate(graph.inputs) if k < count or value in used]
    inputs, avals = tuple([graph.inputs[k] for k in kept]), tuple([graph.avals[k] for k in kept])
    return Graph(inputs, avals, graph.nodes, graph.outputs), tuple([constants[k - count] for k in kept[count:]])


def _with_numbers(graph: Graph, constants: Sequence[Array]) -> tuple[Graph, Held]:
    """Return `graph` with numbers of rules among its last inputs as scalar operands, and the arrays that stay inputs.

    Loops, branches and outputs take only arrays. For them the number is multiplied by 1, which gives an array.
    """
    count = len(graph.inputs) - len(constants)
    numbers: dict[int, Operand] = {}
    products = []
    held = {}
    taken = {v for node in graph.nodes if node.op.rules.body is not None for v in node.values()} | set(graph.outputs)
    for value, x in zip(graph.inputs[count:], constants, strict=True):
        if _is_held(x):
            held[value] = x
            continue
        number = Scalar(x.item(), x.aval)
        if value in taken:
            one = Scalar(type(number.value)(1), x.aval)
            products.append(Node(REGISTRY["mul"].instr((), (x.aval, x.aval)), (number, one), value))
        else:
            numbers[value] = number
    nodes = (*products, *[substitute(node, numbers) for node in graph.nodes])
    inputs, avals = (*graph.inputs[:count], *held), (*graph.avals[:count], *[x.aval for x in held.values()])
    return Graph(inputs, avals, nodes, graph.outputs), tuple(held.values())


def _held_subgraph(
    function: Callable[[Sequence[Array]], Sequence[Array]], avals: Sequence[Aval]
) -> tuple[Subgraph, Held]:
    graph, held = captured_program(function, avals)
    return subgraph(graph), held


def holding(sub: Subgraph, held: Held, before: int) -> Subgraph:
    """Return a derived sub-graph with what it holds not as last inputs, but before the input with this index."""
    if not held:
        return sub
    graph = sub.graph
    end = len(graph.inputs) - len(held)
    order = [*range(before), *range(end, len(graph.inputs)), *range(before, end)]
    inputs, avals = tuple([graph.inputs[k] for k in order]), tuple([graph.avals[k] for k in order])
    return subgraph(Graph(inputs, avals, graph.nodes, graph.outputs))


def _taped(graph: Graph, primals: Sequence[Array], active: Flags) -> tuple[list[Array], Tape]:
    """Record a program, with a tape of everything that depends on its active inputs."""
    values = list(primals)
    chosen = [k for k, flag in enumerate(active) if flag]

    def forward(copies: list[Array]) -> list[Array]:
        for k, x in zip(chosen, copies, strict=True):
            values[k] = x
        return replay(graph, values)

    return record([values[k] for k in chosen], forward)


def pullback(sub: Subgraph, needed: Flags, given: Flags) -> tuple[Subgraph, Held]:
    """Return the program that takes the inputs and the given cotangents, and returns outputs and needed cotangents.

    What it holds is its last inputs.

    Args:
        needed: flags the inputs whose cotangents are needed.
        given: flags the outputs that have a cotangent.
    """

    def make() -> tuple[Subgraph, Held]:
        graph = sub.graph
        outs = graph.out_avals
        count = len(graph.inputs)

        def run(arrays: Sequence[Array]) -> list[Array]:
            cts = arrays[count:]
            results, tape = _taped(graph, arrays[:count], needed)
            ends = [x for x, flag in zip(results, given, strict=True) if flag]
            return [*results, *pull(tape, ends, cts)]

        return _held_subgraph(run, [*graph.avals, *[a for a, flag in zip(outs, given, strict=True) if flag]])

    return sub.memo(("pullback", needed, given, thread.linear), make)


def pushforward(sub: Subgraph, moved: Flags, wanted: Flags) -> tuple[Subgraph, Held]:
    """Return the program that takes the inputs and the given tangents, and returns outputs and wanted tangents.

    What it holds is its last inputs.

    Args:
        moved: flags the inputs that have a tangent.
        wanted: flags the outputs whose tangents are needed.
    """

    def make() -> tuple[Subgraph, Held]:
        graph = sub.graph
        count = len(graph.inputs)
        chosen = [k for k, flag in enumerate(moved) if flag]

        def run(arrays: Sequence[Array]) -> list[Array]:
            tangents = arrays[count:]
            results, tape = _taped(graph, arrays[:count], moved)
            ends = [x for x, flag in zip(results, wanted, strict=True) if flag]
            return [*results, *push(tape, ends, tangents)]

        return _held_subgraph(run, [*graph.avals, *[graph.avals[k] for k in chosen]])

    return sub.memo(("pushforward", moved, wanted), make) if thread.deferred is None else make()


def batched(sub: Subgraph, size: int, flags: Flags, forced: Flags) -> tuple[Subgraph, Flags, Held]:
    """Return the program for a batch, flags of its batched outputs, and what it holds: its last inputs, not batched.

    Args:
        flags: flags the inputs with the batch on axis 0.
        forced: flags the outputs that must have it there.
    """

    def make() -> tuple[Subgraph, Flags, Held]:
        program, reached, held = batched_program(sub.graph, size, flags, forced)
        return subgraph(program), reached, held

    return sub.memo(("batched", size, flags, forced, thread.batched_axis), make)


def batched_program(graph: Graph, size: int, flags: Flags, forced: Flags) -> tuple[Graph, Flags, Held]:
    """Return what `batched` does, for a graph, with the lines of its operations."""
    avals = [
        aval((size, *a.shape), a.dtype, a.device, a.weak) if flag else a
        for a, flag in zip(graph.avals, flags, strict=True)
    ]
    out: list[bool] = []

    def run(arrays: Sequence[Array]) -> list[Array]:
        results = batch(graph, size, arrays, flags)
        out.extend(flag or force for (_, flag), force in zip(results, forced, strict=True))
        return [spread(x, size) if force and not flag else x for (x, flag), force in zip(results, forced, strict=True)]

    program, held = captured_program(run, avals)
    return program, tuple(out), held


def floating(avals: Sequence[Any]) -> Flags:
    """Return which avals are floating."""
    return tuple([a.floating for a in avals])
