"""Moves work out of loops.

Operations that do not depend on the carry are hoisted: they run for all steps at once before the loop. A matmul with
each step's input then becomes one large matmul. Operations that the carry does not depend on are sunk: they run after
the loop, on stacked values. Both use the batching rules, with the steps as the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from gtrace.core import ops
from gtrace.core.base.mechanisms import CODE_MOTION
from gtrace.core.ir.aval import Aval, Bundle
from gtrace.core.ir.graph import Graph, Node, Subgraph
from gtrace.core.ir.simplify import dce
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.ops.linalg import matmul_op
from gtrace.core.ops.shape import broadcast_op, permute_op
from gtrace.core.passes.partial_eval import partial_eval
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import replay
from gtrace.core.transform.batch import batch
from gtrace.core.transform.control.tuned import MAX_HOISTED


@attrs.frozen
class MovedLoop:
    """A scan: its body, and the roles of the body's inputs and outputs.

    Attributes:
        body: takes constants, carry and one step of each input; returns the carry and one step of each output.
        consts, carry: the number of each.
        length: the number of steps.
    """

    body: Subgraph
    consts: int
    carry: int
    length: int

    @property
    def graph(self) -> Graph:
        return self.body.graph


def _bytes(nodes: Sequence[Node], length: int) -> int:
    return sum(node.instr.aval.nbytes for node in nodes) * length


def _movable(nodes: Sequence[Node], length: int) -> bool:
    """Whether nodes may run for all steps at once. Batched branches and inner loops would do more work."""
    if any(node.op.rules.body is not None or node.op.effect for node in nodes):
        return False
    return _bytes(nodes, length) <= MAX_HOISTED


def divided(loop: MovedLoop) -> tuple[Graph, Graph] | None:
    """Return the part of a step that needs no carry, and the rest, which takes its results; None if it is empty."""

    def make() -> tuple[Graph, Graph, list[Node]]:
        graph = loop.graph
        consts, xs = graph.inputs[: loop.consts], graph.inputs[loop.consts + loop.carry :]
        first, second = partial_eval(graph, (*consts, *xs))
        early, _ = partial_eval(first, consts)
        return first, second, [n for n in first.nodes if n not in early.nodes]

    first, second, moved = loop.body.memo(("divided", loop.consts, loop.carry), make)
    return (first, second) if first.nodes and _movable(moved, loop.length) else None


def hoist(loop: MovedLoop, operands: Sequence[Array]) -> tuple[MovedLoop, Sequence[Array]]:
    """Run work that does not depend on the carry before the loop; return the remaining loop and its operands."""
    parts = divided(loop) if CODE_MOTION.on else None
    if parts is None:
        return loop, operands
    CODE_MOTION.used()
    first, second = parts
    graph = loop.graph
    carries = graph.inputs[loop.consts : loop.consts + loop.carry]
    init = operands[loop.consts : loop.consts + loop.carry]
    given = [*operands[: loop.consts], *operands[loop.consts + loop.carry :]]
    flags = [False] * loop.consts + [True] * (len(given) - loop.consts)
    values = batch(first, loop.length, given, flags)
    residuals = second.inputs[len(carries) :]
    table = dict(zip(second.inputs, second.avals, strict=True))
    fixed = [(v, x) for v, (x, flag) in zip(residuals, values, strict=True) if not flag]
    stepped = [(v, x) for v, (x, flag) in zip(residuals, values, strict=True) if flag]
    inputs = (*[v for v, _ in fixed], *carries, *[v for v, _ in stepped])
    body = subgraph(Graph(inputs, tuple(table[v] for v in inputs), second.nodes, graph.outputs))
    rest = MovedLoop(body, len(fixed), loop.carry, loop.length)
    return rest, [*[x for _, x in fixed], *init, *[x for _, x in stepped]]


@attrs.frozen
class Sunk:
    """The work that `sink` moved after a loop.

    Attributes:
        late: the moved part of one step, from constants, inputs and kept values to outputs.
        consts, xs: the loop's constants and inputs that `late` takes before the kept values.
    """

    late: Graph
    consts: tuple[int, ...]
    xs: tuple[int, ...]


def sink(loop: MovedLoop) -> tuple[MovedLoop, Sunk | None]:
    """Move work that the carry does not depend on after the loop; return the remaining loop and the moved work.

    The remaining loop returns the carry, then one step of each value that the moved work needs.
    """
    found = loop.body.memo(("sunk", loop.consts, loop.carry), lambda: _sunk(loop)) if CODE_MOTION.on else None
    if found is None:
        return loop, None
    body, sunk, kept_bytes = found
    if not _movable(sunk.late.nodes, loop.length) or kept_bytes * loop.length > MAX_HOISTED:
        return loop, None
    CODE_MOTION.used()
    return MovedLoop(body, loop.consts, loop.carry, loop.length), sunk


def _sunk(loop: MovedLoop) -> tuple[Subgraph, Sunk, int] | None:
    """Return the remaining body, the moved work, and the bytes per step that it needs; None if nothing moves."""
    graph = loop.graph
    carried, stepped = graph.outputs[: loop.carry], graph.outputs[loop.carry :]
    core = dce(Graph(graph.inputs, graph.avals, graph.nodes, carried))
    staying = {node.out for node in core.nodes}
    late = [node for node in graph.nodes if node.out not in staying]
    if not late:
        return None
    table = graph.value_avals()
    outside = set(graph.inputs[: loop.consts]) | set(graph.inputs[loop.consts + loop.carry :])
    made = {node.out for node in late}
    wanted = dict.fromkeys(v for node in late for v in node.values() if v not in made)
    wanted.update(dict.fromkeys(v for v in stepped if v not in made))
    kept = tuple(v for v in wanted if v not in outside)
    if any(table[v].__class__ is Bundle for v in kept):
        return None
    consts = tuple(k for k, v in enumerate(graph.inputs[: loop.consts]) if v in wanted)
    xs = tuple(k for k, v in enumerate(graph.inputs[loop.consts + loop.carry :]) if v in wanted)
    inputs = (*[graph.inputs[k] for k in consts], *[graph.inputs[loop.consts + loop.carry + k] for k in xs], *kept)
    rest = Graph(inputs, tuple(table[v] for v in inputs), tuple(late), stepped)
    body = subgraph(Graph(graph.inputs, graph.avals, core.nodes, (*carried, *kept)))
    return body, Sunk(rest, consts, xs), sum(table[v].nbytes for v in kept)


def prune(loop: MovedLoop, operands: Sequence[Array]) -> tuple[MovedLoop, Sequence[Array]]:
    """Drop constants and inputs that the body does not use, and their operands."""

    def make() -> tuple[Subgraph, int, tuple[int, ...]] | None:
        graph = loop.graph
        used = {value for node in graph.nodes for value in node.values()} | set(graph.outputs)
        used |= set(graph.inputs[loop.consts : loop.consts + loop.carry])
        if used.issuperset(graph.inputs):
            return None
        chosen = tuple([k for k, value in enumerate(graph.inputs) if value in used])
        inputs = tuple(graph.inputs[k] for k in chosen)
        body = subgraph(Graph(inputs, tuple(graph.avals[k] for k in chosen), graph.nodes, graph.outputs))
        return body, sum(k < loop.consts for k in chosen), chosen

    found = loop.body.memo(("pruned", loop.consts, loop.carry), make)
    if found is None:
        return loop, operands
    body, consts, chosen = found
    return MovedLoop(body, consts, loop.carry, loop.length), [operands[k] for k in chosen]


def finish(
    loop: MovedLoop, sunk: Sunk, operands: Sequence[Array], kept: Sequence[Array], totals: frozenset[int]
) -> list[Array]:
    """Compute the outputs of the sunk work: stacked, or summed over the steps if listed in `totals`."""
    consts = [operands[k] for k in sunk.consts]
    xs = [operands[loop.consts + loop.carry + k] for k in sunk.xs]
    graph, length = sunk.late, loop.length
    flags = [False] * len(consts) + [True] * (len(xs) + len(kept))
    inputs = [*consts, *xs, *kept]
    makers = {node.out: node for node in graph.nodes}
    products = {k: factors for k in totals if (factors := _factors(graph.outputs[k], makers)) is not None}
    outputs = list(graph.outputs)
    for k, (left, _) in products.items():
        outputs[k] = left
    rights = [right for _, right in products.values()]
    wanted = dce(Graph(graph.inputs, graph.avals, graph.nodes, (*outputs, *rights)))
    values = batch(wanted, length, inputs, flags)
    second = dict(zip(products, values[len(outputs) :], strict=True))
    results = []
    for k, (x, flag) in enumerate(values[: len(outputs)]):
        if k in second:
            y, other = second[k]
            x, y = (z if has else _repeat(z, length) for z, has in ((x, flag), (y, other)))
            rows = length * x.shape[1]
            results.append(
                ops.matrix_transpose(ops.reshape(x, (rows, x.shape[2]))) @ ops.reshape(y, (rows, y.shape[2]))
            )
        elif k in totals:
            results.append(ops.sum(x, 0) if flag else x * float(length))
        else:
            results.append(x if flag else _repeat(x, length))
    return results


def _factors(value: int, makers: dict[int, Node]) -> tuple[int, int] | None:
    """Return x and y if a value is x' y for matrices x and y.

    The sum of these matmuls over the steps is one matmul of the stacked rows.
    """
    node = makers.get(value)
    if node is None or node.op is not matmul_op or any(len(a.shape) != 2 for a in node.instr.ins):
        return None
    left = makers.get(node.ins[0])  # type: ignore[arg-type]
    if left is None or left.op is not permute_op:
        return None
    return left.ins[0], node.ins[1]  # type: ignore[return-value]


def _repeat(x: Array, length: int) -> Array:
    (out,) = replay(_spread_graph(x.aval, length), (x,))
    return out


def _spread_graph(a: Aval, length: int) -> Graph:
    instr = broadcast_op.instr(((length, *a.shape),), (a,))
    return Graph((0,), (a,), (Node(instr, (0,), 1),), (1,))
