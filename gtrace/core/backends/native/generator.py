"""One C++ function for a loop, or for straight-line operations beside loops.

Inputs and outputs lie in memory, all between in variables, and buffers of the call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs

import gtrace.core.backends.native.gather_scatter
import gtrace.core.backends.native.layers
import gtrace.core.backends.native.reductions
import gtrace.core.backends.native.sorting  # noqa: F401 - they register what they can write
from gtrace.core.backends.native.block import EMITTERS, Block, check
from gtrace.core.backends.native.elementwise import lowering
from gtrace.core.backends.native.functions import separated
from gtrace.core.backends.native.layers import is_written
from gtrace.core.backends.native.loops import scan_loop
from gtrace.core.backends.native.tuned import LONG_PART, MANY_NESTS, SHORT_PART
from gtrace.core.backends.native.values import Uniform, UnsupportedLoopError, Value, View, c_type, dense, memory_type
from gtrace.core.backends.native.writer import Writer
from gtrace.core.backends.tuned import LONG_NATIVE_PROGRAM, LONG_NATIVE_STEP
from gtrace.core.base.dtypes import SHORT
from gtrace.core.ir.aval import Bundle, aval
from gtrace.core.ir.graph import Graph, Node
from gtrace.core.ir.op import REGISTRY

OPEN = 2
"""The length that stands for any in the graph of a loop."""

ENTRY = "gtrace_loop"
DESCRIPTION = "gtrace_loop_description"
"""The names in the shared library."""

_SOURCE = """#include "loop.h"

{functions}extern "C" const char* const {description} = R"({spec})";

extern "C" int64_t {entry}(void** args, int64_t length, void** python, int64_t threads) {{
  Signals signals(python);
  Team team(threads, python);
  bool refused = false;
  int64_t ticks = 0;
  const int64_t most = most_steps(python);
  char* const scratch = static_cast<char*>(args[{last}]);
{constants}
{body}
  return refused ? REFUSED : DONE;
}}
"""


def has_code(node: Node) -> bool:
    """Whether an operation without sub-graphs, on operands of these types, has C++ of ours."""
    if node.op.name == "aten" and not is_written(node):
        return False
    if node.op.rules.body is not None or (node.op.name not in EMITTERS and lowering(node) is None):
        return False
    try:
        for a in (*node.instr.ins, node.instr.aval):
            for one in a.avals if isinstance(a, Bundle) else (a,):
                check(one)
    except UnsupportedLoopError:
        return False
    return True


def taken_whole(loop: Node) -> set[int]:
    """Return the operands of a loop that it takes as a whole, not step by step."""
    count = loop.attributes["consts"] + loop.attributes["carry"] if loop.op.name == "scan" else len(loop.ins)
    stepped = set(loop.ins[count:])
    return {x for x in loop.ins[:count] if isinstance(x, int) and x not in stepped}


def loop_graph(node: Node, prologue: Sequence[Node] = ()) -> tuple[Graph, tuple[int, ...]]:
    """Return a loop as a program that returns all results, and the values that it takes.

    An operand is an input by itself, even where another one is the same value: in the program for any number of steps,
    their types differ.

    Args:
        prologue: straight-line operations that make operands and become part of the program, in order.
    """
    made = {one.out for one in prologue}
    operands = [x for x in node.values() if x not in made]
    taken = (*operands, *dict.fromkeys(x for one in prologue for x in one.values() if x not in made))
    names = {x: k for k, x in enumerate(taken)} | {one.out: len(taken) + k for k, one in enumerate(prologue)}
    nodes = [
        Node(one.instr, tuple(names[x] if isinstance(x, int) else x for x in one.ins), names[one.out], one.location)
        for one in prologue
    ]
    fresh = iter(range(len(operands)))
    ins = tuple(names[x] if x in made else next(fresh) for x in node.values())
    out = len(taken) + len(prologue)
    nodes.append(Node(REGISTRY[node.op.name].instr(node.params, node.instr.ins), ins, out, node.location))
    whole = node.instr.aval
    results = tuple(range(out + 1, out + 1 + len(whole.avals)))
    for k, value in enumerate(results):
        nodes.append(Node(REGISTRY["project"].instr((k,), (whole,)), (out,), value, node.location))
    avals = {x: a for one in (*prologue, node) for x, a in zip(one.ins, one.instr.ins, strict=True)}
    return Graph(tuple(range(len(taken))), tuple(avals[x] for x in taken), tuple(nodes), results), taken


def of_open_length(graph: Graph) -> Graph:
    """Return the program that `loop_graph` made, for any number of steps."""
    (loop,) = (node for node in graph.nodes if node.op.loop)
    if loop.op.name != "scan":
        return graph
    given = loop.attributes
    consts, carry = given["consts"], given["carry"]
    ins = loop.instr.ins[: consts + carry] + tuple(
        aval((OPEN, *a.shape[1:]), a.dtype, a.device) for a in loop.instr.ins[consts + carry :]
    )
    opened = Node(loop.op.instr(tuple({**given, "length": OPEN}.values()), ins), loop.ins, loop.out)
    prologue = tuple(node for node in graph.nodes if not node.op.projection and node is not loop)
    whole = opened.instr.aval
    projections = tuple(
        Node(node.op.instr(node.params, (whole,)), node.ins, node.out) for node in graph.nodes if node.op.projection
    )
    table = dict(zip(loop.ins, ins, strict=True))
    avals = tuple(table.get(value, a) for value, a in zip(graph.inputs, graph.avals, strict=True))
    return Graph(graph.inputs, avals, (*prologue, opened, *projections), graph.outputs)


@attrs.frozen
class LoopCode:
    """The C++ of a program.

    Attributes:
        text: includes `loop.h`.
        outputs: of each result the dtype in short, the shape without the axis of steps, and whether it has that axis.
        scratch: bytes of memory that a call needs.
        cost: additions that a step takes, or all of a program without a loop, about.
    """

    text: str
    outputs: tuple[tuple[str, tuple[int, ...], bool], ...]
    scratch: int
    cost: int


def generate(graph: Graph, most: float | None = None) -> LoopCode:
    """Return the C++ of a program that `of_open_length` returned, or of one without loops.

    Args:
        most: additions that the straight-line operations of a step may take, of this loop and of those within; None:
            as many as are worth this.

    Raises:
        UnsupportedLoopError: it contains something that native loops do not have, or its steps are so long that calls
            of their compiled form are as good.
    """
    node = next((node for node in graph.nodes if node.op.loop), None)
    if most is None:
        most = LONG_NATIVE_PROGRAM if node is None else LONG_NATIVE_STEP
    writer = Writer(most, SHORT_PART if node is not None else LONG_PART)
    scan = node if node is not None and node.op.name == "scan" else None
    columns = () if scan is None else scan.ins[scan.attributes["consts"] + scan.attributes["carry"] :]
    values: dict[int, Value] = {}
    for k, (value, a) in enumerate(zip(graph.inputs, graph.avals, strict=True)):
        check(a)
        own = memory_type(a.dtype)
        writer.constant(f"{own}* const", f"a{k}", f"static_cast<{own}*>(args[{k}])")
        if a.size == 1 and value not in columns:
            writer.constant(f"const {c_type(a.dtype)}", f"a{k}v", f"*a{k}")
            values[value] = Uniform(f"a{k}v")
        else:
            values[value] = dense(f"a{k}", a)
    results = graph.out_avals
    for k, a in enumerate(results):
        check(a)
        own = memory_type(a.dtype)
        writer.constant(f"{own}* const", f"o{k}", f"static_cast<{own}*>(args[{len(graph.inputs) + k}])")
    stacked_from = len(results) if scan is None else scan.attributes["carry"]
    outs = [dense(f"o{k}", a) for k, a in enumerate(results)]
    block = Block(writer, graph, values, frees=node is None)
    final: list[Value] = []
    if node is None:
        for value, out in zip(graph.outputs, outs, strict=True):
            block.targets.setdefault(value, []).append(out)
        block.run()
        cost = block.cost
    else:
        prologue = graph.nodes[: graph.nodes.index(node)]
        block.write(prologue)
        for one in prologue:
            made = values.get(one.out)
            if one.out in node.ins and isinstance(made, View):
                # read in every step: side by side, elements are read faster
                values[one.out] = writer.dense(made, one.instr.aval)
        if scan is not None:
            stacks = {k: out for k, out in enumerate(outs) if k >= stacked_from}
            carries, cost = scan_loop(block, scan, "length", stacks)
            final = [carry.value for carry in carries]
        else:
            block.cost = 0
            block.write(graph.nodes[len(prologue) :])
            cost, final = block.cost, [values[value] for value in graph.outputs]
    for result, a, out in zip(final, results, outs, strict=False):
        writer.copy(result, a, out)
    outputs = tuple(
        (SHORT[a.dtype], a.shape[1:] if k >= stacked_from else a.shape, k >= stacked_from)
        for k, a in enumerate(results)
    )
    whole = node is not None and len(writer.nests) < MANY_NESTS
    functions, lines = ([], writer.lines) if whole else separated(writer)
    text = _SOURCE.format(
        functions="".join(functions),
        entry=ENTRY,
        description=DESCRIPTION,
        spec=json.dumps({"outputs": outputs, "scratch": writer.scratch, "loop": node is not None}),
        last=len(graph.inputs) + len(results),
        constants="\n".join(writer.constants),
        body="\n".join(lines),
    )
    return LoopCode(text, outputs, writer.scratch, cost)
