"""One C++ function for a loop. Inputs and outputs lie in memory, all between in variables, and buffers of the call."""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs

import gtrace.compile.native.places
import gtrace.compile.native.reductions  # noqa: F401 - they register what they can write
from gtrace.compile.native.block import Block, check
from gtrace.compile.native.loops import scan_loop
from gtrace.compile.native.values import Uniform, UnsupportedLoopError, Value, c_type, dense
from gtrace.compile.native.writer import Writer
from gtrace.ir.aval import SHORT, aval
from gtrace.ir.graph import Graph, Node
from gtrace.ir.op import REGISTRY

LOOPS = ("scan", "while_loop")
"""The operations that become a function."""

MAX_STEP = 1_000_000
"""Additions in a step above which calls of the compiled body cost little beside it."""

OPEN = 2
"""The length that stands for any in the graph of a loop."""

ENTRY = "gtrace_loop"
DESCRIPTION = "gtrace_loop_description"
"""The names in the shared library."""

_SOURCE = """#include "loop.h"

extern "C" const char* const {description} = R"({spec})";

extern "C" int64_t {entry}(void** args, int64_t length, void** python) {{
  Signals signals(python);
  bool refused = false;
  int64_t ticks = 0;
  char* const scratch = static_cast<char*>(args[{last}]);
{constants}
{body}
  return refused ? REFUSED : DONE;
}}
"""


def loop_graph(node: Node, constants: Mapping[int, Node]) -> Graph:
    """Return a loop as a program that takes the operands and returns all results.

    Args:
        constants: nodes that make operands without operands of their own, by the place of the operand; these become
            part of the program.
    """
    op, ins = REGISTRY[node.op.name], node.instr.ins
    taken = [k for k in range(len(ins)) if k not in constants]
    names = {k: value for value, k in enumerate((*taken, *constants))}
    nodes = [Node(one.instr, one.ins, names[k]) for k, one in constants.items()]
    out = len(ins)
    nodes.append(Node(op.instr(node.params, ins), tuple(names[k] for k in range(len(ins))), out))
    whole = node.instr.aval
    results = tuple(range(out + 1, out + 1 + len(whole.avals)))
    for k, value in enumerate(results):
        nodes.append(Node(REGISTRY["project"].instr((k,), (whole,)), (out,), value))
    return Graph(tuple(range(len(taken))), tuple(ins[k] for k in taken), tuple(nodes), results)


def of_open_length(graph: Graph) -> Graph:
    """Return the program that `loop_graph` made, for any number of steps."""
    (loop,) = (node for node in graph.nodes if node.op.name in LOOPS)
    if loop.op.name != "scan":
        return graph
    body, _, reverse, consts, carry = loop.params
    ins = loop.instr.ins[: consts + carry] + tuple(
        aval((OPEN, *a.shape[1:]), a.dtype, a.device) for a in loop.instr.ins[consts + carry :]
    )
    opened = Node(loop.op.instr((body, OPEN, reverse, consts, carry), ins), loop.ins, loop.out)
    constants = tuple(node for node in graph.nodes if not node.op.projection and node is not loop)
    whole = opened.instr.aval
    projections = tuple(
        Node(node.op.instr(node.params, (whole,)), node.ins, node.out) for node in graph.nodes if node.op.projection
    )
    table = dict(zip(loop.ins, ins, strict=True))
    avals = tuple(table[value] for value in graph.inputs)
    return Graph(graph.inputs, avals, (*constants, opened, *projections), graph.outputs)


@attrs.frozen
class LoopCode:
    """The C++ of a loop.

    Attributes:
        text: includes `loop.h`.
        outputs: of each result the dtype in short, the shape without the axis of steps, and whether it has that axis.
        scratch: bytes of memory that a call needs.
        cost: additions that a step takes, about.
    """

    text: str
    outputs: tuple[tuple[str, tuple[int, ...], bool], ...]
    scratch: int
    cost: int


def generate(graph: Graph, most: float = MAX_STEP) -> LoopCode:
    """Return the C++ of a program that `of_open_length` returned.

    Args:
        most: additions that a step may take.

    Raises:
        UnsupportedLoopError: it contains something that native loops do not have, or its steps are so long that calls
            of their compiled form are as good.
    """
    writer = Writer()
    (node,) = (node for node in graph.nodes if node.op.name in LOOPS)
    columns = node.ins[node.params[3] + node.params[4] :] if node.op.name == "scan" else ()
    values: dict[int, Value] = {}
    for k, (value, a) in enumerate(zip(graph.inputs, graph.avals, strict=True)):
        check(a)
        own = c_type(a.dtype)
        writer.constants.append(f"  const {own}* const a{k} = static_cast<const {own}*>(args[{k}]);")
        if a.size == 1 and value not in columns:
            writer.constants.append(f"  const {own} a{k}v = *a{k};")
            values[value] = Uniform(f"a{k}v")
        else:
            values[value] = dense(f"a{k}", a)
    results = node.instr.aval.avals
    for k, a in enumerate(results):
        check(a)
        own = c_type(a.dtype)
        writer.constants.append(f"  {own}* const o{k} = static_cast<{own}*>(args[{len(graph.inputs) + k}]);")
    stacked_from = node.params[4] if node.op.name == "scan" else len(results)
    block = Block(writer, graph, values)
    if node.op.name == "scan":
        constants = Graph(graph.inputs, graph.avals, tuple(n for n in graph.nodes if n.op.constant), ())
        Block(writer, constants, values).run()
        stacks = {k: dense(f"o{k}", a) for k, a in enumerate(results) if k >= stacked_from}
        carries, cost = scan_loop(block, node, "length", stacks)
        final: list[Value] = [carry.value for carry in carries]
    else:
        block.run()
        cost = block.cost
        final = [block.values[value] for value in graph.outputs]
    if cost > most:
        raise UnsupportedLoopError(
            f"a step takes {cost} operations: calls of its compiled form cost little beside that"
        )
    for k, result in enumerate(final):
        writer.copy(result, results[k], dense(f"o{k}", results[k]))
    outputs = tuple(
        (SHORT[a.dtype], a.shape[1:] if k >= stacked_from else a.shape, k >= stacked_from)
        for k, a in enumerate(results)
    )
    text = _SOURCE.format(
        entry=ENTRY,
        description=DESCRIPTION,
        spec=json.dumps({"outputs": outputs, "scratch": writer.scratch}),
        last=len(graph.inputs) + len(results),
        constants="\n".join(writer.constants),
        body="\n".join(writer.lines),
    )
    return LoopCode(text, outputs, writer.scratch, cost)
