"""LSTM layers: how calls of oneDNN's operators are recorded, and their rules.

A layer's first derivative is oneDNN's gradient. All other derivatives come from the loop.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core.backends.interpreter.lstm import BACKWARD, FORWARD, OPERATORS, bytes_kept, has_kernel
from gtrace.core.ir.aval import Aval, Bundle, aval, bundle
from gtrace.core.ir.edit import inline, substitute
from gtrace.core.ir.graph import Graph, Node, Operand, Subgraph
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.ops.shape import full_like_scalar
from gtrace.core.partitioner import processes
from gtrace.core.passes.subgraph_calls import called_operators, map_subgraphs
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import replay
from gtrace.core.transform.batch import batch
from gtrace.core.transform.subgraph_rules import Flags, captured_subgraph, pullback, pushforward
from gtrace.core.transform.vmap import without_batch
from gtrace.interop.aten.batched_windows import batch_size
from gtrace.interop.aten.overloads import OPERAND
from gtrace.interop.aten.recurrent import LSTM_LAYER
from gtrace.interop.aten.rule_tables import BATCHES, PULLBACKS, TANGENTS, TYPES
from gtrace.interop.aten.translate import RECORDED, call_aten
from gtrace.interop.recurrent import by_weight, record_layer


def _lstm(
    reverse: bool, x: Array, h: Array, c: Array, of_input: Array, of_state: Array, by_input: Array | None = None,
    by_state: Array | None = None,
) -> list[Array]:  # fmt: skip
    """Return the outputs and last states of a layer, which is recorded as a loop; see `FORWARD`."""
    gates = by_weight(x, of_input, by_input)
    return record_layer("lstm", gates, (h, c), of_state, by_state, None, None, reverse)


def lstm_layer(
    x: Array, h: Array, c: Array, of_input: Array, of_state: Array, by_input: Array | None, by_state: Array | None,
    reverse: bool,
) -> list[Array]:  # fmt: skip
    """Record an LSTM layer as a oneDNN call if possible, else as a loop.

    In programs of several processes it is always a loop, because these split loops but not calls.
    """
    biases = [one for one in (by_input, by_state) if one is not None]
    operands = [x, h, c, of_input, of_state, *biases]
    if processes.count() > 1 or not has_kernel(tuple([one.aval for one in operands])):
        return _lstm(reverse, *operands)
    entries = (*(OPERAND,) * 5, *(OPERAND if biases else None,) * 2)
    results: list[Array] = call_aten(FORWARD, (*entries, reverse), operands)
    return results[:3]


RECORDED[LSTM_LAYER] = lstm_layer


@functools.lru_cache(maxsize=256)
def _layer(avals: tuple[Aval, ...], reverse: bool) -> Subgraph:
    """Return the program of a layer as a loop."""
    return captured_subgraph(lambda operands: _lstm(reverse, *operands), avals)


@functools.lru_cache(maxsize=256)
def _gradient(avals: tuple[Aval, ...], given: Flags, reverse: bool) -> Subgraph:
    """Return the program from a layer's operands and its results' cotangents to the operands' cotangents.

    Args:
        avals: the avals of the operands.
        given: flags the results that have a cotangent.
    """
    pulled = pullback(_layer(avals, reverse), (True,) * len(avals), given)[0].graph
    return captured_subgraph(lambda arrays: replay(pulled, arrays)[3:9], pulled.avals)


def _type(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle:
    x, h, c = avals[:3]
    (length, batch, width), size = x.shape, h.shape[-1]
    kept = aval((bytes_kept(length, batch, width, size),), torch.uint8, x.device)
    return bundle((aval((length, *h.shape), x.dtype, x.device), h, c, kept))


def _pullback(
    cts: Sequence[Array | None], needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    *entries, reverse = args
    given = [one for one in cts[:3] if one is not None]
    flags = [None if one is None else OPERAND for one in cts[:3]]
    results = call_aten(FORWARD, args, operands)
    found = call_aten(BACKWARD, (*entries, *(OPERAND,) * 4, *flags, reverse), [*operands, *results, *given])
    return [one if need else None for one, need in zip((*found, found[-1]), needed, strict=False)]


def _tangent(
    tangents: Sequence[Array | None], operands: Sequence[Array], out: Array, overload: str, args: tuple[Any, ...]
) -> list[Array | None]:
    return [*_moved(_layer(_avals(operands), args[-1]), operands, tangents), None]


def _batch(overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]) -> Any:
    size = batch_size(batched, operands)
    examples = _examples(batched, operands)
    kept = _type(examples, args).avals[-1]
    found = batch(_layer(examples, args[-1]).graph, size, operands, batched)
    return [*found, (full_like_scalar(0, kept.dtype, kept.shape, kept.device), False)]


def _parts(args: tuple[Any, ...]) -> tuple[list[int], Flags]:
    """Return the indices of a gradient's layer operands and cotangents, and flags of the existing cotangents."""
    count = 7 if args[5] is not None else 5
    given = tuple([entry is not None for entry in args[-4:-1]])
    return [*range(count), *range(count + 4, count + 4 + sum(given))], given


def _program(args: tuple[Any, ...], avals: Sequence[Aval]) -> tuple[Subgraph, list[int]]:
    """Return the program of a gradient, and the indices of its operands among those of the operator."""
    places, given = _parts(args)
    count = len(places) - sum(given)
    return _gradient(tuple(avals[:count]), given, args[-1]), places


def _type_of_gradient(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle:
    bias = [avals[5]] if args[5] is not None else []
    return bundle((*avals[:5], *bias))


def _pullback_of_gradient(
    cts: Sequence[Array | None], needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    program, places = _program(args, _avals(operands))
    wanted = tuple([bool(needed[k]) for k in places])
    graph = pullback(program, wanted, tuple([one is not None for one in cts]))[0].graph
    given = [one for one in cts if one is not None]
    pulled = iter(replay(graph, [*[operands[k] for k in places], *given])[len(cts) :])
    found: list[Array | None] = [None] * len(operands)
    for k, want in zip(places, wanted, strict=True):
        found[k] = next(pulled) if want else None
    return found


def _tangent_of_gradient(
    tangents: Sequence[Array | None], operands: Sequence[Array], out: Array, overload: str, args: tuple[Any, ...]
) -> list[Array]:
    program, places = _program(args, _avals(operands))
    return _moved(program, [operands[k] for k in places], [tangents[k] for k in places])


def _batch_of_gradient(overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]) -> Any:
    program, places = _program(args, _examples(batched, operands))
    flags = [batched[k] for k in places]
    return batch(program.graph, batch_size(batched, operands), [operands[k] for k in places], flags)


def _moved(program: Subgraph, operands: Sequence[Array], tangents: Sequence[Array | None]) -> list[Array]:
    """Return the tangents of all results of a program."""
    moved = tuple([one is not None for one in tangents])
    count = len(program.graph.outputs)
    graph = pushforward(program, moved, (True,) * count)[0].graph
    return replay(graph, [*operands, *[one for one in tangents if one is not None]])[count:]


def _avals(operands: Sequence[Array]) -> tuple[Aval, ...]:
    return tuple([x.aval for x in operands])


def _examples(batched: Sequence[bool], operands: Sequence[Array]) -> tuple[Aval, ...]:
    return tuple([without_batch(x.aval) if flag else x.aval for x, flag in zip(operands, batched, strict=True)])


def layers_as_loops(graph: Graph) -> Graph:
    """Return a program with loops in place of oneDNN layers, for compilers that do not call oneDNN."""
    if not OPERATORS & called_operators(graph):
        return graph
    fresh = 1 + max([*graph.inputs, *(node.out for node in graph.nodes)])
    nodes: list[Node] = []
    names: dict[int, Operand] = {}
    results: dict[int, tuple[Operand, ...]] = {}
    for node in graph.nodes:
        node = substitute(map_subgraphs(node, lambda sub: subgraph(layers_as_loops(sub.graph))), names)
        overload = node.attributes.get("overload")
        if overload in OPERATORS:
            args, avals = node.attributes["args"], node.instr.ins
            if overload == BACKWARD:
                program, places = _program(args, avals)
            else:
                program, places = _layer(avals, args[-1]), list(range(len(avals)))
            added, results[node.out] = inline(program.graph, tuple([node.ins[k] for k in places]), fresh)
            nodes += added
            fresh += len(added)
        elif node.op.projection and node.ins[0] in results:
            found = results[node.ins[0]]  # type: ignore[index]
            if node.instr.index < len(found):  # the gradient of a loop does not take values saved for the gradient
                names[node.out] = found[node.instr.index]
        else:
            nodes.append(node)
    outputs = tuple([names.get(value, value) for value in graph.outputs])
    return Graph(graph.inputs, graph.avals, tuple(nodes), outputs)  # type: ignore[arg-type]


TYPES.update({FORWARD: _type, BACKWARD: _type_of_gradient})
PULLBACKS.update({FORWARD: _pullback, BACKWARD: _pullback_of_gradient})
TANGENTS.update({FORWARD: _tangent, BACKWARD: _tangent_of_gradient})
BATCHES.update({FORWARD: _batch, BACKWARD: _batch_of_gradient})
