"""Operations with sub-graphs as C++: loops with their carried values in variables or two buffers, and branches."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from gtrace.core.backends.native.block import Block, check, emitter
from gtrace.core.backends.native.values import Uniform, UnsupportedLoopError, Value, View, c_type, dense, memory_type
from gtrace.core.backends.native.writer import Writer
from gtrace.core.backends.runs import SHORT_LOOP
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Node, Subgraph


@attrs.define(eq=False)
class Carry:
    """A carried value: a variable if it has one element, otherwise two buffers that change places.

    Attributes:
        value: what a step reads.
        following: where a step writes the next value, if that is in memory; None if it overwrites the one before it.
        unchanged: whether every step returns it as it is.
    """

    a: Aval
    value: Value
    following: View | None = None
    unchanged: bool = False

    @classmethod
    def begin(cls, writer: Writer, a: Aval, start: Value, unchanged: bool, in_place: bool) -> Carry:
        """Write the first value; `in_place`: steps may overwrite it."""
        check(a)
        if unchanged:
            return cls(a, start, unchanged=True)
        own, name = memory_type(a.dtype), writer.name("c")
        if a.size == 1:
            writer.line(f"{c_type(a.dtype)} {name} = {writer.read(start, '')};")
            writer.types[name] = f"const {c_type(a.dtype)}"
            return cls(a, Uniform(name))
        if in_place:
            own_memory = writer.buffer(a)
            writer.copy(start, a, own_memory)
            return cls(a, own_memory)
        other = writer.name("n")
        for pointer in (name, other):
            writer.line(f"{own}* {pointer} = {writer.buffer(a).base};")
            writer.types[pointer] = f"{own}* const"
        value, following = dense(name, a), dense(other, a)
        writer.copy(start, a, value)
        return cls(a, value, following)


def begin_carries(writer: Writer, body: Graph, names: Sequence[int], starts: Sequence[Value]) -> list[Carry]:
    """Write the first values of the carries of a body."""
    table = dict(zip(body.inputs, body.avals, strict=True))
    return [
        Carry.begin(writer, table[value], start, out == value, is_updated_in_place(body, value, out))
        for value, start, out in zip(names, starts, body.outputs, strict=False)
    ]


UPDATES = ("index_put", "scatter_add", "slice_update")
"""Operations that return their first operand with some elements replaced."""


def is_updated_in_place(body: Graph, value: int, out: int) -> bool:
    """Whether a step may overwrite the carry `value`, whose next value is `out`.

    It may if `out` is `value` with some elements replaced. Everything else that depends on `value` must be needed for
    the replacements, so that it is done before. The replacements must have memory of their own.
    """
    made = {node.out: node for node in body.nodes}
    update = made.get(out)
    if update is None or update.op.name not in UPDATES or update.ins[0] != value or value in body.outputs:
        return False
    before: set[int] = set()
    waiting = [x for x in update.ins[1:] if isinstance(x, int)]
    while waiting:
        x = waiting.pop()
        if x not in before:
            before.add(x)
            waiting += made[x].values() if x in made else ()
    dependent, views = {value}, {value}
    for node in body.nodes:
        if node is not update and dependent.intersection(node.values()):
            if node.out not in before or node.out in body.outputs:
                return False
            dependent.add(node.out)
            if not node.op.rules.cpp and views.intersection(node.values()):
                views.add(node.out)
    return not views.intersection(x for x in update.ins[1:] if isinstance(x, int))


def run_step(
    writer: Writer, body: Graph, inputs: dict[int, Value], carries: Sequence[Carry], stacks: Sequence[View]
) -> int:
    """Write one step of a loop; returns what it costs.

    Args:
        inputs: constants and inputs of the step.
        carries: of the first outputs of the body.
        stacks: where the other outputs are written.
    """
    targets: dict[int, list[View]] = {}
    for value, carry in zip(body.outputs, carries, strict=False):
        if carry.following is not None:
            targets.setdefault(value, []).append(carry.following)
        elif isinstance(carry.value, View) and not carry.unchanged:
            targets.setdefault(value, []).append(carry.value)
    for value, stack in zip(body.outputs[len(carries) :], stacks, strict=True):
        targets.setdefault(value, []).append(stack)
    block = Block(writer, body, inputs, targets)
    block.run()
    straight = block.cost - block.looped
    if straight > writer.most:
        raise UnsupportedLoopError(
            f"a step takes {straight} operations: calls of its compiled form cost little beside that"
        )
    moved = []
    for value, carry in zip(body.outputs, carries, strict=False):
        if isinstance(carry.value, View) and carry.following is not None:
            moved.append(("", carry.value.base, carry.following.base))
        elif isinstance(carry.value, Uniform) and not carry.unchanged:
            moved.append((c_type(carry.a.dtype), carry.value.text, block.scalar(value)))
    names = [writer.name("m") for own, _, _ in moved if own]
    fresh = iter(names)
    for own, _, new in moved:
        if own:
            writer.line(f"const {own} {next(fresh)} = {new};")
    fresh = iter(names)
    for own, old, new in moved:
        writer.line(f"{old} = {next(fresh)};" if own else f"exchange({old}, {new});")
    return block.cost


def scan_loop(block: Block, node: Node, length: str, stacks: dict[int, View]) -> tuple[list[Carry], int]:
    """Write a scan; returns its carries and the cost of a step."""
    writer = block.writer
    given = node.attributes
    body, reverse, consts, carry = given["body"], given["reverse"], given["consts"], given["carry"]
    graph: Graph = body.graph
    operands = [block.of(x) for x in node.ins]
    carries = begin_carries(writer, graph, graph.inputs[consts : consts + carry], operands[consts : consts + carry])
    t = writer.name("t")
    count, steps = f"{t}c", length
    if not length.isdigit() or int(length) > SHORT_LOOP:
        steps = f"{t}n"
        writer.line(f"const int64_t {steps} = scan_steps({length}, {SHORT_LOOP}, most);")
    with writer.braces(f"for (int64_t {count} = 0; {count} < {steps}; ++{count})"):
        writer.line(f"const int64_t {t} = {f'{length} - 1 - {count}' if reverse else count};")
        writer.types[t] = "const int64_t"
        inputs: dict[int, Value] = dict(zip(graph.inputs, operands[:consts], strict=False))
        inputs.update(zip(graph.inputs[consts : consts + carry], [c.value for c in carries], strict=True))
        for value, a, xs in zip(
            graph.inputs[consts + carry :], graph.avals[consts + carry :], operands[consts + carry :], strict=True
        ):
            check(a)
            if isinstance(xs, View):
                row = View(xs.base, xs.strides[1:], xs.moved(f"{t} * {xs.strides[0]}"))
                inputs[value] = writer.local(a, row.at("")) if a.size == 1 else row
            else:
                inputs[value] = xs
        rows = []
        for k, a in enumerate(graph.out_avals[carry:]):
            stack = stacks[carry + k]
            rows.append(dense(stack.base, a, stack.moved(f"{t} * {a.size}")))
        cost = run_step(writer, graph, inputs, carries, rows) + 2
        writer.poll(cost)
    if steps != length:
        for k, a in enumerate(graph.out_avals[carry:], carry):
            line = f"repeat_last({stacks[k].pointer()}, {a.size}, {steps}, {length}, {str(reverse).lower()});"
            writer.line(line)
    return carries, cost


@emitter("scan")
def _scan(block: Block, node: Node) -> None:
    """A scan of fixed length within another loop."""
    length = node.attributes["length"]
    carry = node.attributes["carry"]
    taken = {user.instr.index: user.out for user in block.users.get(node.out, ())}
    stacks = {}
    for k, a in enumerate(node.instr.aval.avals[carry:], carry):
        check(a)
        stacks[k] = block.place(taken[k], a) if k in taken else block.writer.buffer(a)
    carries, cost = scan_loop(block, node, str(length), stacks)
    block.cost += cost * length
    block.looped += cost * length
    finish(block, node, [*[c.value for c in carries], *stacks.values()])


def finish(block: Block, node: Node, results: Sequence[Value]) -> None:
    """Give the results of an operation with several to the nodes that take them."""
    for user in block.users.get(node.out, ()):
        block.values[user.out] = results[user.instr.index]
    block.values[node.out] = Uniform("bundle")


@emitter("project")
def _project(block: Block, node: Node) -> None:
    """Its value is known already: the operation with several results has set it."""
    a = node.instr.aval
    value = block.values[node.out]
    if a.size == 1 and isinstance(value, View):
        block.values[node.out] = block.writer.local(a, value.at(""))


@emitter("while_loop")
def _while(block: Block, node: Node) -> None:
    writer = block.writer
    cond, body, first, second = node.attributes.values()
    operands = [block.of(x) for x in node.ins]
    test, step = cond.graph, body.graph
    carries = begin_carries(writer, step, step.inputs[second:], operands[first + second :])
    state = [c.value for c in carries]
    count = writer.name("t")
    with writer.braces(f"for (int64_t {count} = 0; {count} < most; ++{count})"):
        check_block = Block(writer, test, dict(zip(test.inputs, [*operands[:first], *state], strict=True)))
        check_block.run()
        writer.line(f"if (!{check_block.scalar(test.outputs[0])}) break;")
        inputs = dict(zip(step.inputs, [*operands[first : first + second], *state], strict=True))
        cost = run_step(writer, step, inputs, carries, ()) + check_block.cost + 2
        writer.poll(cost)
    block.cost += cost
    block.looped += cost
    finish(block, node, state)


@emitter("switch")
def _switch(block: Block, node: Node) -> None:
    writer = block.writer
    branches = node.attributes["branches"]
    index, operands = block.scalar(node.ins[0]), [block.of(x) for x in node.ins[1:]]
    results: list[Value] = []
    for a in node.instr.aval.avals:
        check(a)
        if a.size == 1:
            name = writer.name("s")
            writer.line(f"{c_type(a.dtype)} {name};")
            writer.types[name] = f"const {c_type(a.dtype)}"
            results.append(Uniform(name))
        else:
            results.append(writer.buffer(a))
    costs = []
    last = len(branches) - 1
    for k, branch in enumerate(branches):
        head = f"if ({index} <= {k})" if k == 0 else f"else if ({index} == {k})" if k < last else "else"
        with writer.braces(head if last else ""):
            costs.append(_branch(writer, branch, operands, results))
    cost, looped = max(costs)
    block.cost += cost
    block.looped += looped
    finish(block, node, results)


def _branch(writer: Writer, branch: Subgraph, operands: Sequence[Value], results: Sequence[Value]) -> tuple[int, int]:
    """Write a branch; returns what it costs, and how much of that is in loops."""
    graph = branch.graph
    targets: dict[int, list[View]] = {}
    for value, result in zip(graph.outputs, results, strict=True):
        if isinstance(result, View):
            targets.setdefault(value, []).append(result)
    inner = Block(writer, graph, dict(zip(graph.inputs, operands, strict=True)), targets)
    inner.run()
    for value, result in zip(graph.outputs, results, strict=True):
        if isinstance(result, Uniform):
            writer.line(f"{result.text} = {inner.scalar(value)};")
    return inner.cost, inner.looped


@emitter("checkpoint", "rematerialize", "custom_call")
def _inline(block: Block, node: Node) -> None:
    """Operations that do nothing but run their body."""
    graph = node.attributes["body"].graph
    values = dict(zip(graph.inputs, [block.of(x) for x in node.ins], strict=True))
    inner = Block(block.writer, graph, values, kept=frozenset(graph.outputs))
    inner.run()
    block.cost += inner.cost
    block.looped += inner.looped
    finish(block, node, [inner.values[value] for value in graph.outputs])
