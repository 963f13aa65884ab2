"""Loops and branches of a program that is divided: their bodies are divided too.

A value that is carried from step to step has one layout in all of them. It begins with that of the initial value. If
this is whole, and a step returns the value in parts, the value is carried in parts; so a fixed point is found after as
many rounds as there are carried values, at most. Whatever a step returns is brought into the layout that is carried.

Steps are not divided among processes: the axis of the steps is whole. Processes agree on what decides which way a
program goes, because each holds all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from gtrace.core.ir.graph import Graph, Node, Operand, Scalar, Subgraph
from gtrace.core.ir.op import Op
from gtrace.core.ir.sharding import Dims
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.partitioner.layouts import ShardingLayout, replicated
from gtrace.core.partitioner.local_program import LocalProgram
from gtrace.core.partitioner.partitioned import Transfer

BodyRule = Callable[[Any, Node], tuple[int, Sequence[ShardingLayout]]]


class Divider(Protocol):
    """What divides a graph: `gtrace.core.partitioner.partition`."""

    program: LocalProgram
    computed: set[int]

    def body(
        self, sub: Subgraph, layouts: Sequence[ShardingLayout], computed: Sequence[bool], wanted: Mapping[int, Dims]
    ) -> Divider: ...

    def divide(self) -> None: ...

    def layouts(self) -> list[ShardingLayout]: ...

    def finish(self, layouts: Sequence[ShardingLayout]) -> Graph: ...

    def settled(self, value: int) -> ShardingLayout: ...

    def demand(self, value: int, layout: ShardingLayout) -> int: ...


@attrs.frozen
class _Body:
    """A sub-graph, and how it is divided.

    Attributes:
        inputs: the layouts of its inputs.
        computed: which inputs are more than rearranged inputs of the program.
        outputs: the layouts of its outputs.
        chain: the place of a further input, which names the last collective before it.
    """

    sub: Subgraph
    inputs: Sequence[ShardingLayout]
    computed: Sequence[bool]
    outputs: Sequence[ShardingLayout]
    chain: int

    def local(self, divider: Divider, latest: int | None) -> tuple[Subgraph, LocalProgram]:
        """Return the body of one process, and its program.

        Args:
            latest: the collective that it follows; None: it has no input for that.
        """
        made = divider.body(self.sub, self.inputs, self.computed, _wishes(self.outputs))
        if latest is not None:
            made.program.latest = made.program.input(divider.program.types[latest])
        made.divide()
        graph = made.finish(self.outputs)
        if latest is not None:
            order = list(range(len(graph.inputs) - 1))
            order.insert(self.chain, len(order))
            inputs, avals = tuple(graph.inputs[k] for k in order), tuple(graph.avals[k] for k in order)
            graph = Graph(inputs, avals, graph.nodes, graph.outputs)
        return subgraph(graph), made.program


def _wishes(outputs: Sequence[ShardingLayout]) -> dict[int, Dims]:
    return {k: layout.dims for k, layout in enumerate(outputs)}


def _emit(
    divider: Divider,
    node: Node,
    operands: Sequence[Operand],
    bodies: Sequence[_Body],
    chains: Sequence[int],
    params: Callable[[Sequence[Subgraph], int], tuple[Any, ...]],
    sent: Callable[[Sequence[Sequence[Transfer]]], Sequence[Transfer]],
) -> int:
    """Add an operation with divided bodies; returns its bundle.

    Args:
        chains: the places among the operands before which that of the last collective comes.
        params: (bodies, number of further inputs of each) -> the attributes of the operation.
        sent: (transfers of each body) -> those of the operation.
    """
    outer = divider.program
    made = [body.local(divider, None) for body in bodies]
    communicates = any(program.transfers for _, program in made)
    ins, more = list(operands), 0
    if communicates:
        outer.flush()
    if communicates and outer.latest is not None:
        made, more = [body.local(divider, outer.latest) for body in bodies], 1
        for place in sorted(chains, reverse=True):
            ins.insert(place, outer.latest)
    for _, program in made:
        outer.gathered += program.gathered
    attributes = params([sub for sub, _ in made], more)
    if not communicates:
        return outer.emit(node.op, ins, attributes)
    return outer.calls(node.op, ins, attributes, sent([program.transfers for _, program in made]))


def _layout(divider: Divider, x: Operand) -> ShardingLayout:
    return replicated(0) if isinstance(x, Scalar) else divider.settled(x)


def _demanded(divider: Divider, operands: Sequence[Operand], layouts: Sequence[ShardingLayout]) -> list[Operand]:
    return [
        x if isinstance(x, Scalar) else divider.demand(x, layout) for x, layout in zip(operands, layouts, strict=True)
    ]


def _computed(divider: Divider, operands: Sequence[Operand]) -> list[bool]:
    return [isinstance(x, int) and x in divider.computed for x in operands]


def _carried(
    divider: Divider,
    sub: Subgraph,
    fixed: Sequence[ShardingLayout],
    state: Sequence[ShardingLayout],
    steps: Sequence[ShardingLayout],
    computed: Sequence[bool],
) -> tuple[list[ShardingLayout], list[ShardingLayout]]:
    """Return the layouts that a loop carries, and those of the further outputs of a step.

    Args:
        fixed, state, steps: the layouts of the constants, of the initial values, and of what each step is given.
    """
    carried = list(state)
    while True:
        probe = divider.body(sub, [*fixed, *carried, *steps], computed, _wishes(carried))
        probe.divide()
        found = probe.layouts()
        better = [new if old.whole else old for old, new in zip(carried, found, strict=False)]
        if better == carried:
            return carried, found[len(carried) :]
        carried = better


def _scan(divider: Divider, node: Node) -> tuple[int, Sequence[ShardingLayout]]:
    a = node.attributes
    consts, carry, length = a["consts"], a["carry"], a["length"]
    given = [_layout(divider, x) for x in node.ins]
    fixed, state = given[:consts], given[consts : consts + carry]
    steps = [ShardingLayout(layout.dims[1:]) for layout in given[consts + carry :]]
    computed = _computed(divider, node.ins)
    carried, others = _carried(divider, a["body"], fixed, state, steps, computed)
    stacked = [ShardingLayout(((), *layout.dims)) for layout in (*steps, *others)]
    operands = _demanded(divider, node.ins, [*fixed, *carried, *stacked[: len(steps)]])
    body = _Body(a["body"], [*fixed, *carried, *steps], computed, [*carried, *others], consts)
    out = _emit(
        divider, node, operands, [body], [consts],
        lambda subs, more: (subs[0], length, a["reverse"], consts + more, carry),
        lambda sent: [attrs.evolve(one, times=one.times * length) for one in sent[0]],
    )  # fmt: skip
    return out, [*carried, *stacked[len(steps) :]]


def _while_loop(divider: Divider, node: Node) -> tuple[int, Sequence[ShardingLayout]]:
    a = node.attributes
    first, second = a["cond_consts"], a["body_consts"]
    start = first + second
    given = [_layout(divider, x) for x in node.ins]
    computed = _computed(divider, node.ins)
    carried, _ = _carried(divider, a["body"], given[first:start], given[start:], [], computed[first:])
    operands = _demanded(divider, node.ins, [*given[:start], *carried])
    moving = computed[start:]
    bodies = [
        _Body(a["cond"], [*given[:first], *carried], [*computed[:first], *moving], [replicated(0)], first),
        _Body(a["body"], [*given[first:start], *carried], computed[first:], carried, second),
    ]
    out = _emit(
        divider, node, operands, bodies, [first, start],
        lambda subs, more: (*subs, first + more, second + more),
        lambda sent: [one for body in sent for one in body],
    )  # fmt: skip
    return out, carried


def _switch(divider: Divider, node: Node) -> tuple[int, Sequence[ShardingLayout]]:
    branches: Sequence[Subgraph] = node.attributes["branches"]
    given = [replicated(0), *[_layout(divider, x) for x in node.ins[1:]]]
    computed = _computed(divider, node.ins)[1:]
    returned = []
    for branch in branches:
        probe = divider.body(branch, given[1:], computed, {})
        probe.divide()
        returned.append(probe.layouts())
    # what is whole is divided for nothing
    outputs = [
        next((layout for layout in found if not layout.whole), found[0]) for found in zip(*returned, strict=True)
    ]
    operands = _demanded(divider, node.ins, given)
    bodies = [_Body(branch, given[1:], computed, outputs, len(node.ins) - 1) for branch in branches]
    out = _emit(
        divider, node, operands, bodies, [len(node.ins)],
        lambda subs, more: (tuple(subs),),
        lambda sent: max(sent, key=lambda body: sum(one.moved for one in body)),
    )  # fmt: skip
    return out, outputs


_RULES: dict[str, BodyRule] = {"scan": _scan, "while_loop": _while_loop, "switch": _switch}


def rule_of(op: Op) -> BodyRule | None:
    """Return what divides an operation with sub-graphs: it returns the local bundle and the layouts of its results."""
    return _RULES.get(op.name)
