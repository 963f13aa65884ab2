"""Straight-line programs as C++: elementwise operations of one shape share loops, everything else has its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import attrs
import torch

from gtrace.core.backends.native.elementwise import expression, lowering
from gtrace.core.backends.native.values import (
    SHORT_FLOATS,
    Uniform,
    UnsupportedLoopError,
    Value,
    View,
    c_type,
    is_dense,
    literal,
    spread,
    widened,
)
from gtrace.core.backends.native.writer import Writer, crossed
from gtrace.core.base.devices import CPU
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.cpp import Cpp
from gtrace.core.ir.graph import Graph, Node, Operand

Emitter = Callable[["Block", Node], None]
"""Writes the C++ of a node that is not elementwise, and sets its value in `Block.values`."""

EMITTERS: dict[str, Emitter] = {}
"""By the name of the operation."""


WIDENED: set[str] = set()
"""Operations that convert operands of float16 and bfloat16, compute with float32 and round their results."""


def emitter(*names: str, widens: bool = False) -> Callable[[Emitter], Emitter]:
    """Register a function as the emitter of operations.

    Args:
        widens: see `WIDENED`. The others move elements, or compute with each by itself.
    """

    def register(function: Emitter) -> Emitter:
        EMITTERS.update(dict.fromkeys(names, function))
        if widens:
            WIDENED.update(names)
        return function

    return register


@attrs.define(eq=False)
class Block:
    """One run of a graph, while its C++ is written.

    Attributes:
        writer: takes the lines.
        graph: the program.
        values: what is known of each value so far.
        targets: where values are to be written; those written there already are taken out.
        joined: where concatenations are written, and their operands that are written there when they are computed.
        pieces: where these operands belong; those written there are taken out.
        kept: what is read once all is written, and so is put into memory.
        frees: whether memory of values that are read for the last time is used again. The lines are not in a loop.
        cost: additions that the lines so far take.
        looped: those of them that loops within take.
    """

    writer: Writer
    graph: Graph
    values: dict[int, Value]
    targets: dict[int, list[View]] = attrs.field(factory=dict)
    cost: int = 0
    looped: int = 0
    joined: dict[int, tuple[View, frozenset[int]]] = attrs.field(factory=dict)
    pieces: dict[int, list[View]] = attrs.field(factory=dict)
    kept: frozenset[int] = frozenset()
    frees: bool = False
    avals: dict[int, Aval] = attrs.field(init=False)
    users: dict[int, list[Node]] = attrs.field(init=False)
    _unread: dict[int, set[int]] = attrs.field(init=False)
    _memory: dict[str, set[int]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.avals = self.graph.value_avals()
        self.users = {}
        for node in self.graph.nodes:
            for value in set(node.values()):
                self.users.setdefault(value, []).append(node)
        # the results of nodes that have yet to read it; an output is read at the end
        self._unread = {value: {user.out for user in users} for value, users in self.users.items()}
        for value in self.graph.outputs:
            self._unread.setdefault(value, set()).add(-1)

    def wrote(self, nodes: Iterable[Node]) -> None:
        """Free the memory of what nothing but these nodes, which are written now, had yet to read."""
        if not self.frees:
            return
        for node in nodes:
            made = self.values.get(node.out)
            if isinstance(made, View):  # perhaps a view of an operand: their memory is freed with the last of them
                self._memory.setdefault(made.base, set()).add(node.out)
        for node in nodes:
            for value in (*node.values(), node.out):
                unread = self._unread.get(value, set())
                unread.discard(node.out)
                known = self.values.get(value)
                if not unread and isinstance(known, View) and value in self._memory.get(known.base, ()):
                    self._memory[known.base].discard(value)
                    if not self._memory[known.base]:
                        self.writer.free(known.base)

    def join(self, nodes: Sequence[Node]) -> None:
        """Let elementwise operations among `nodes` write their results to where concatenations of these belong."""
        elementwise = frozenset(node.out for node in nodes if lowering(node) is not None and node.instr.aval.size > 1)
        for node in nodes:
            if node.op.name != "concat" or not elementwise.intersection(node.values()):
                continue
            wanted = self.targets.get(node.out)
            whole = wanted.pop(0) if wanted else self.writer.buffer(node.instr.aval)
            self.joined[node.out] = whole, elementwise.intersection(node.values())
            start, step = 0, whole.strides[node.attributes["axis"]]
            for x, a in zip(node.ins, node.instr.ins, strict=True):
                if isinstance(x, int) and x in elementwise:
                    self.pieces.setdefault(x, []).append(View(whole.base, whole.strides, whole.moved(start * step)))
                start += a.shape[node.attributes["axis"]]

    # -- for emitters

    def operand(self, node: Node, k: int) -> Value:
        """Return the k-th operand of a node."""
        return self.of(node.ins[k])

    def of(self, operand: Operand) -> Value:
        """Return an operand."""
        return self.values[operand] if isinstance(operand, int) else Uniform(literal(operand))

    def scalar(self, operand: Operand) -> str:
        """Return the C++ of an operand of one element."""
        value = self.of(operand)
        if isinstance(value, Uniform):
            return value.text
        a = self.avals[operand] if isinstance(operand, int) else operand.aval
        return f"float({value.at('')})" if a.dtype in SHORT_FLOATS else value.at("")

    def result(self, node: Node) -> View:
        """Return memory for the result of a node: where it is wanted, if it is wanted in memory."""
        return self.place(node.out, node.instr.aval)

    def place(self, value: int, a: Aval) -> View:
        """Return memory for a value, and make it that value."""
        wanted = self.targets.get(value)
        view = wanted.pop(0) if wanted else self.writer.buffer(a)
        self.values[value] = view
        return view

    def settle(self, node: Node) -> None:
        """Read a result of one element from memory, where an emitter put it, into a variable."""
        value = self.values[node.out]
        if isinstance(value, View) and node.instr.aval.size == 1:
            self.values[node.out] = self.writer.local(node.instr.aval, value.at(""))

    # -- the walk

    def run(self) -> None:
        """Write all nodes, and the targets."""
        self.write(self.graph.nodes)
        for value, wanted in self.targets.items():
            for target in wanted:
                self.writer.copy(self.values[value], self.avals[value], target)
                self.cost += self.avals[value].size

    def write(self, nodes: Sequence[Node]) -> None:
        """Write some of the nodes."""
        left = list(nodes)
        self.join(left)
        group = Group(self)
        while left:
            waiting = []
            for node in left:
                rule = lowering(node)
                if rule is not None and group.takes(node):
                    group.add(node, rule)
                elif not self.known(node):
                    waiting.append(node)
                elif rule is None:
                    self._emit(node)
                    self.wrote((node,))
                elif self.is_uniform(node):
                    self._emit_uniform(node, rule)
                    self.wrote((node,))
                elif group.nodes:
                    waiting.append(node)
                else:
                    group.open(node, rule)
            if len(waiting) == len(left):
                group.close()
            left = waiting
        group.close()

    def known(self, node: Node) -> bool:
        """Whether all operands of a node are."""
        return all(value in self.values for value in node.values())

    def is_uniform(self, node: Node) -> bool:
        """Whether all elements of an elementwise node are one number."""
        return node.instr.aval.size == 1 or all(isinstance(self.of(x), Uniform) for x in node.ins)

    def _emit(self, node: Node) -> None:
        emit = EMITTERS.get(node.op.name)
        whole = node.op.name in WIDENED and any(a.dtype is torch.uint32 for a in (*node.instr.ins, node.instr.aval))
        if emit is None or whole:
            kinds = ", ".join(map(repr, node.instr.ins))
            raise UnsupportedLoopError(f"native loops have no {node.op.name} of {kinds}")
        if node.op.name in WIDENED and any(a.dtype in SHORT_FLOATS for a in (*node.instr.ins, node.instr.aval)):
            self.emit_widened(node)
        else:
            emit(self, node)

    def emit_widened(self, node: Node) -> None:
        """Write a node of float16 or bfloat16 as one of float32."""
        avals = tuple(widened(a) for a in node.instr.ins)
        out = len(avals)
        inner_node = Node(node.op.instr(node.params, avals), tuple(range(out)), out)
        values = {k: self._converted(self.of(x), a, wide)
                  for k, (x, a, wide) in enumerate(zip(node.ins, node.instr.ins, avals, strict=True))}  # fmt: skip
        inner = Block(self.writer, Graph(tuple(range(out)), avals, (inner_node,), (out,)), values)
        inner.run()
        result = inner.values[out]
        self.values[node.out] = self._converted(result, inner_node.instr.aval, node.instr.aval)
        self.cost += inner.cost + sum(a.size for a in avals)

    def _converted(self, value: Value, a: Aval, to: Aval) -> Value:
        """Return a value of type `a` as one of another dtype."""
        short = SHORT_FLOATS.get(to.dtype)
        if a.dtype is to.dtype:
            return value
        if isinstance(value, Uniform):
            return self.writer.local(to, f"rounded<{short}>({value.text})") if short else value
        target = self.writer.buffer(to)
        self.writer.nest(
            a.shape, [spread(a, value.strides, a.shape), target.strides],
            lambda at: self.writer.line(f"{target.at(at[1])} = {value.at(at[0])};"), cost=a.size,
        )  # fmt: skip
        return target

    def _emit_uniform(self, node: Node, rule: Cpp) -> None:
        check(node.instr.aval)
        text = expression(node, rule, [self.scalar(x) for x in node.ins])
        self.values[node.out] = self.writer.local(node.instr.aval, text)
        self.cost += rule.cost


_Lowered = dict[int, tuple[Node, Cpp]]
"""Elementwise nodes by their results, and how they are computed."""


@attrs.define(eq=False)
class Group:
    """Elementwise nodes of one shape that share their loops."""

    block: Block
    nodes: _Lowered = attrs.field(factory=dict)
    shape: tuple[int, ...] = ()

    def takes(self, node: Node) -> bool:
        """Whether a node can be computed in these loops."""
        if not self.nodes or node.instr.aval.shape != self.shape:
            return False
        return all(value in self.nodes or value in self.block.values for value in node.values())

    def open(self, node: Node, rule: Cpp) -> None:
        """Begin with a node."""
        self.shape = node.instr.aval.shape
        self.add(node, rule)

    def add(self, node: Node, rule: Cpp) -> None:
        """Add a node."""
        check(node.instr.aval)
        self.nodes[node.out] = node, rule

    def close(self) -> None:
        """Write the loops: one for operations that share operands or results, so that equal ones look alike."""
        nodes, self.nodes = self.nodes, {}
        for part in self._apart(nodes):
            self._write(part)

    def _apart(self, nodes: _Lowered) -> Iterator[_Lowered]:
        """Yield nodes that share no memory, nor need one another, apart."""
        sets: dict[int, set[int]] = {}
        for out, (node, _) in nodes.items():
            shared = {out, *(x for x in node.values() if x in nodes or isinstance(self.block.values[x], View))}
            joined = shared.union(*(sets[x] for x in shared if x in sets))
            sets.update(dict.fromkeys(joined, joined))
        done: set[int] = set()
        for out in nodes:
            if out not in done:
                done |= sets[out]
                yield {value: lowered for value, lowered in nodes.items() if value in sets[out]}

    def _write(self, nodes: _Lowered) -> None:
        block, writer = self.block, self.block.writer
        stores: list[tuple[int, View]] = []
        for value, (node, _) in nodes.items():
            places = block.pieces.pop(value, [])
            if places:
                block.values[value] = places[0]
            elif (
                value in block.kept
                or block.targets.get(value)
                or any(user.out not in nodes for user in block.users.get(value, ()))
            ):
                places.append(block.result(node))
            stores += [(value, place) for place in (*places, *block.targets.pop(value, ()))]
        order = self._order(nodes, stores)
        loaded: dict[int, tuple[View, tuple[int, ...]]] = {}
        for value in order:
            known = block.values.get(value)
            if value not in nodes and isinstance(known, View):
                a = block.avals[value]
                if crossed(a.shape, known.strides) is not None:
                    # loops over columns make no vectors, and read each line of the cache many times
                    known = writer.dense(known, a)
                loaded[value] = known, spread(a, known.strides, self.shape)
        written = [spread(block.avals[value], place.strides, self.shape) for value, place in stores]

        def body(at: list[str]) -> None:
            names: dict[int, str] = {}
            for (value, (view, _)), place in zip(loaded.items(), at, strict=False):
                name = writer.name("x")
                writer.line(f"const {c_type(block.avals[value].dtype)} {name} = {view.at(place)};")
                names[value] = name
            for value, operands in order.items():
                if value not in nodes:
                    continue
                node, rule = nodes[value]
                texts = [names.get(x) or block.scalar(x) if isinstance(x, int) else literal(x) for x in operands]
                name = writer.name("x")
                writer.line(f"const {c_type(node.instr.aval.dtype)} {name} = {expression(node, rule, texts)};")
                names[value] = name
            for (value, target), place in zip(stores, at[len(loaded) :], strict=True):
                writer.line(f"{target.at(place)} = {names[value]};")

        size = next(iter(nodes.values()))[0].instr.aval.size
        cost = size * sum(rule.cost for _, rule in nodes.values())
        moved = size * (len(loaded) + len(stores))
        writer.nest(self.shape, [*(strides for _, strides in loaded.values()), *written], body, cost=cost + moved)
        block.cost += cost
        block.wrote([node for node, _ in nodes.values()])

    def _order(self, nodes: _Lowered, stores: list[tuple[int, View]]) -> dict[int, tuple[Operand, ...]]:
        """Return values and their operands in an order that follows from what is computed; sort the stores by it."""
        block, known = self.block, self.block.writer.computed
        ranks: dict[Operand, int] = {}

        def rank(x: Operand) -> int:
            if x not in ranks:
                kind: Hashable
                if not isinstance(x, int):
                    kind = literal(x)
                elif x in nodes:
                    node = nodes[x][0]
                    kind = node.op.name, node.params, node.instr.aval.dtype, tuple(map(rank, operands(node)))
                else:
                    value, a = block.values[x], block.avals[x]
                    kind = a.dtype, value
                    if isinstance(value, View):
                        strides = spread(a, value.strides, self.shape)
                        # of any shape: the loops are the same
                        kind = a.dtype, () if is_dense(self.shape, strides) else strides
                ranks[x] = known.setdefault(kind, len(known))
            return ranks[x]

        def operands(node: Node) -> tuple[Operand, ...]:
            return tuple(sorted(node.ins, key=rank)) if node.op.commutative else node.ins

        for value in nodes:
            rank(value)
        stores.sort(key=lambda store: ranks[store[0]])
        order: dict[int, tuple[Operand, ...]] = {}
        left: list[Operand] = [value for value, _ in reversed(stores)]
        while left:
            x = left[-1]
            if not isinstance(x, int) or x in order:
                left.pop()
                continue
            given = operands(nodes[x][0]) if x in nodes else ()
            waiting = [operand for operand in given if isinstance(operand, int) and operand not in order]
            if waiting:
                left += reversed(waiting)
            else:
                order[x] = given
        return order


def check(a: Aval) -> None:
    """Raise an UnsupportedLoopError for types that native loops lack: other devices and dtypes, and no elements."""
    if a.device != CPU:
        raise UnsupportedLoopError(f"native loops run on the CPU, not on {a.device}")
    c_type(a.dtype)
    if not a.size:
        raise UnsupportedLoopError("a size is 0")
