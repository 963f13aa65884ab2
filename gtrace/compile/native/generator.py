"""One C++ function for a loop. Inputs and outputs lie in memory, all between in variables, and buffers of the call."""

from __future__ import annotations

import json
from typing import Any

import gtrace.compile.native.places
import gtrace.compile.native.reductions  # noqa: F401 - they register what they can write
from gtrace.compile.native.block import Block, check
from gtrace.compile.native.loops import scan_loop
from gtrace.compile.native.values import Uniform, UnsupportedLoopError, Value, c_type, dense
from gtrace.compile.native.writer import Writer
from gtrace.ir.aval import SHORT, Aval, aval, bundle
from gtrace.ir.graph import Graph, Node
from gtrace.ir.op import REGISTRY

LOOPS = ("scan", "while_loop")
"""The operations that become a function."""

MAX_STEP = 200_000
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


def loop_graph(node: Node) -> Graph:
    """Return a loop as a program: it takes the operands and returns all results. The length of a scan is left open."""
    op, params, ins = REGISTRY[node.op.name], node.params, node.instr.ins
    if op.name == "scan":
        body, _, reverse, consts, carry = params
        params = (body, OPEN, reverse, consts, carry)
        ins = (*ins[: consts + carry], *[aval((OPEN, *a.shape[1:]), a.dtype, a.device) for a in ins[consts + carry :]])
    count = len(ins)
    nodes = [Node(op.instr(params, ins), tuple(range(count)), count)]
    results = nodes[0].instr.aval.avals
    whole: Any = bundle(results)
    for k in range(len(results)):
        nodes.append(Node(REGISTRY["project"].instr((k,), (whole,)), (count,), count + 1 + k))
    return Graph(tuple(range(count)), ins, tuple(nodes), tuple(range(count + 1, count + 1 + len(results))))


def generate(graph: Graph) -> str:
    """Return the C++ of the program that `loop_graph` makes.

    Raises:
        UnsupportedLoopError: it contains something that native loops do not have, or its steps are so long that calls
            of their compiled form are as good.
    """
    writer = Writer()
    node = graph.nodes[0]
    if node.op.name not in LOOPS:
        raise UnsupportedLoopError(f"{node.op.name} is no loop")
    values: dict[int, Value] = {}
    for k, (value, a) in enumerate(zip(graph.inputs, graph.avals, strict=True)):
        check(a)
        own = c_type(a.dtype)
        writer.constants.append(f"  const {own}* const a{k} = static_cast<const {own}*>(args[{k}]);")
        stacked = node.op.name == "scan" and k >= node.params[3] + node.params[4]
        if a.size == 1 and not stacked:
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
        stacks = {k: dense(f"o{k}", a) for k, a in enumerate(results) if k >= stacked_from}
        carries, cost = scan_loop(block, node, "length", stacks)
        final: list[Value] = [carry.value for carry in carries]
    else:
        block.run()
        cost = block.cost
        final = [block.values[value] for value in graph.outputs]
    if cost > MAX_STEP:
        raise UnsupportedLoopError(
            f"a step takes {cost} operations: calls of its compiled form cost little beside that"
        )
    for k, result in enumerate(final):
        writer.copy(result, results[k], dense(f"o{k}", results[k]))
    return _SOURCE.format(
        entry=ENTRY,
        description=DESCRIPTION,
        spec=json.dumps(_description(results, stacked_from, writer.scratch)),
        last=len(graph.inputs) + len(results),
        constants="\n".join(writer.constants),
        body="\n".join(writer.lines),
    )


def _description(results: tuple[Aval, ...], stacked_from: int, scratch: int) -> dict[str, Any]:
    """Return what a caller needs to know: the results without the axis of steps, whether they have it, the memory."""
    outputs = [
        [SHORT[a.dtype], list(a.shape[1:] if k >= stacked_from else a.shape), k >= stacked_from]
        for k, a in enumerate(results)
    ]
    return {"outputs": outputs, "scratch": scratch}
