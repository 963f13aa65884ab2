"""Basic graph edits: replace operands, renumber values, sort nodes, inline one graph into another."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from gtrace.core.base.errors import GraphError
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar, Subgraph
from gtrace.core.ir.op import REGISTRY, Params


def substitute(node: Node, replacement: Mapping[int, Operand]) -> Node:
    """Return `node` with operands replaced by `replacement`, which must have the same types.

    >>> from gtrace import ir
    >>> graph = gt.make_graph(lambda x, y: x + y)(gt.ones(2), gt.ones(2))
    >>> ir.substitute(graph.nodes[0], {1: 0}).ins
    (0, 0)
    """
    if not any(value in replacement for value in node.values()):
        return node
    ins = tuple(replacement.get(x, x) if isinstance(x, int) else x for x in node.ins)
    return Node(node.instr, ins, node.out, node.location)


class Replacements:
    """Nodes that are added to a program, or replace others.

    Attributes:
        nodes: all nodes, by the values that they assign.
        made: the added or replaced nodes, in order.
        location: the user's line for the nodes that are made next.
    """

    def __init__(self, graph: Graph) -> None:
        self.nodes = {node.out: node for node in graph.nodes}
        self.made: list[Node] = []
        self.location: str | None = None
        self._avals: dict[int, Any] = graph.value_avals()
        self._fresh = graph.fresh
        self._known: dict[Any, int] = {}
        self._graph = graph

    @functools.cached_property
    def uses(self) -> Counter[int]:
        """How often each value of the program is an operand or an output."""
        return self._graph.uses()

    def __call__(self, name: str, params: Params, *ins: Operand, out: int | None = None) -> int:
        """Return the value of an operation. An equal operation that was added before is reused.

        Args:
            out: the value that it assigns, in place of that value's node; None: a new value.
        """
        avals = [self._avals[x] if isinstance(x, int) else x.aval for x in ins]
        instr = REGISTRY[name].instr(params, tuple(avals))
        if out is None:
            out = self._known.setdefault((instr, ins), self._fresh)
            if out != self._fresh:
                return out
            self._fresh += 1
        self.nodes[out] = Node(instr, ins, out, self.location)
        self.made.append(self.nodes[out])
        self._avals[out] = instr.aval
        return out

    def assign(self, value: int, out: int) -> Node:
        """Let an added operation assign `out` in place of `value`, which nothing takes, and return it."""
        node = self.nodes.pop(value)
        self.made.remove(node)
        self._fresh -= value == self._fresh - 1
        self.nodes[out] = Node(node.instr, node.ins, out, node.location)
        self._known[node.instr, node.ins] = out
        return self.nodes[out]

    def aval(self, value: int) -> Any:
        """Return the type of a value."""
        return self._avals[value]

    def of(self, value: Operand, name: str, once: bool = False) -> Node | None:
        """Return the operation that makes a value, if it has this name, and, if `once`, one use."""
        node = self.nodes.get(value)  # type: ignore[arg-type]  # numbers have no key
        if node is None or node.op is not REGISTRY[name]:
            return None
        return node if not once or self.uses[node.out] == 1 else None

    def arranged(self, value: int, axes: tuple[int, ...], out: int | None = None) -> int:
        """Return an array with its axes permuted, in place of value `out`."""
        if axes == tuple(range(len(axes))) and out is None:
            return value
        return self("permute", (axes,), value, out=out)

    def shaped(self, value: int, shape: tuple[int, ...]) -> int:
        """Return an array in another shape."""
        return value if self._avals[value].shape == shape else self("reshape", (shape,), value)


Rule = Callable[[Replacements, Node], "int | None"]
"""(build, operation) -> the value of what computes the same; None: the operation stays."""


def rewrite(graph: Graph, rules: Mapping[str, Rule]) -> Graph:
    """Return a graph in which rules have replaced operations, one after the other, where types stay.

    A rule finds the operations before as they were left. Equal operations that rules add are one.

    Args:
        rules: by the name of the operation that a rule may replace.
    """
    rule_of = {REGISTRY[name]: rule for name, rule in rules.items()}
    if not any(rule_of.get(node.op) for node in graph.nodes):
        return graph
    build = Replacements(graph)
    nodes: list[Node] = []
    gone: dict[int, Operand] = {}
    for node in graph.nodes:
        node = build.nodes[node.out] = substitute(node, gone)
        rule = rule_of.get(node.op)
        if rule is not None:
            start, build.location = len(build.made), node.location
            found = rule(build, node)
            if found is not None and build.aval(found) is node.instr.aval:
                if all(found != one.out for one in build.made[start:]):  # it was there
                    gone[node.out] = found
                    continue
                node = build.assign(found, node.out)
            nodes += build.made[start:]
        nodes.append(node)
    outputs = tuple(gone.get(value, value) for value in graph.outputs)
    return Graph(graph.inputs, graph.avals, tuple(nodes), outputs)  # type: ignore[arg-type]


def renumber(graph: Graph) -> Graph:
    """Return `graph` with inputs numbered 0, 1, ... and results after them, in order.

    >>> from gtrace import ir
    >>> print(ir.renumber(ir.dce(gt.make_graph(lambda x: (gt.sin(x), gt.cos(x))[1])(gt.ones(2)))))
    graph(%0: f32[2]) {
      %1: f32[2] = cos(%0)
      return %1
    }
    """
    names = {value: k for k, value in enumerate([*graph.inputs, *(node.out for node in graph.nodes)])}
    return renamed(graph, names)


def renamed(graph: Graph, names: Mapping[int, int]) -> Graph:
    """Return `graph` with its values renumbered by `names`."""

    def operand(x: Operand) -> Operand:
        return names[x] if isinstance(x, int) else x

    nodes = tuple(Node(n.instr, tuple(map(operand, n.ins)), names[n.out], n.location) for n in graph.nodes)
    inputs, outputs = ([names[value] for value in values] for values in (graph.inputs, graph.outputs))
    return Graph(tuple(inputs), graph.avals, nodes, tuple(outputs))


def toposort(nodes: Iterable[Node], inputs: Iterable[int]) -> tuple[Node, ...]:
    """Return `nodes` ordered so that every operand is assigned before its use; otherwise the order stays.

    Raises:
        GraphError: there is a cycle, or an operand that no node assigns.

    >>> from gtrace import ir
    >>> graph = gt.make_graph(lambda x: gt.sin(gt.cos(x)))(gt.ones(2))
    >>> [node.op.name for node in ir.toposort(graph.nodes[::-1], graph.inputs)]
    ['cos', 'sin']
    """
    pending = list(nodes)
    maker = {node.out: node for node in pending}
    state = dict.fromkeys(inputs, True)
    ordered: list[Node] = []
    for root in pending:
        stack = [root.out]
        while stack:
            value = stack[-1]
            if state.get(value):
                stack.pop()
                continue
            node = maker.get(value)
            if node is None:
                raise GraphError(
                    f"[toposort] expected every operand to be assigned, got %{value}, which nothing assigns."
                )
            missing = [x for x in node.values() if not state.get(x)]
            if not missing:
                state[value] = True
                ordered.append(node)
                stack.pop()
            elif value in state:
                raise GraphError(f"[toposort] expected no cycle, got one through %{value}.")
            else:
                state[value] = False
                stack.extend(reversed(missing))
    return tuple(ordered)


def inline(callee: Graph, operands: tuple[Operand, ...], fresh: int) -> tuple[tuple[Node, ...], tuple[Operand, ...]]:
    """Return the nodes and outputs of `callee` applied to `operands`, with results numbered from `fresh`.

    The operands must have the types of the callee's inputs.

    >>> from gtrace import ir
    >>> nodes, outputs = ir.inline(gt.make_graph(gt.sin)(gt.ones(2)), (7,), fresh=10)
    >>> nodes[0].ins, nodes[0].out, outputs
    ((7,), 10, (10,))
    """
    names: dict[int, Operand] = dict(zip(callee.inputs, operands, strict=True))
    nodes = []
    for node in callee.nodes:
        names[node.out] = fresh
        ins = tuple(names[x] if isinstance(x, int) else x for x in node.ins)
        nodes.append(Node(node.instr, ins, fresh, node.location))
        fresh += 1
    return tuple(nodes), tuple(names[value] for value in callee.outputs)


def inline_bodies(graph: Graph, calls: Collection[int]) -> Graph:
    """Return `graph` with bodies in place of operations that run them.

    Args:
        calls: the values that these operations assign.
    """
    fresh = graph.fresh
    nodes: list[Node] = []
    names: dict[int, Operand] = {}
    results: dict[int, tuple[Operand, ...]] = {}
    for node in graph.nodes:
        node = substitute(node, names)
        if node.out in calls:
            (body,) = (value for value in node.params if isinstance(value, Subgraph))
            added, results[node.out] = inline(body.graph, node.ins, fresh)
            fresh += len(added)
            for one in added:
                # equal bodies are one object, with the lines of whoever recorded it first
                line = node.location if node.op.lowered else one.location or node.location
                nodes.append(Node(one.instr, one.ins, one.out, line))
        elif node.op.projection and node.ins[0] in results:
            names[node.out] = results[node.ins[0]][node.instr.index]  # type: ignore[index]
        else:
            nodes.append(node)
    outputs = tuple(names.get(value, value) for value in graph.outputs)
    return Graph(graph.inputs, graph.avals, tuple(nodes), outputs)  # type: ignore[arg-type]


def lift_scalars(graph: Graph, places: Iterable[Collection[int]]) -> Graph:
    """Return `graph` with some scalars replaced by new inputs, after the others.

    Args:
        places: for each new input, the indices of the scalars that it replaces, in order of appearance. These
            scalars are equal and have one aval.

    >>> graph = gt.make_graph(lambda x: x * 2 + 3)(gt.ones(2))
    >>> print(lift_scalars(graph, [[1]]))
    graph(%0: f32[2], %3: f32[]~) {
      %1: f32[2] = mul(%0, 2.0:f32[]~)
      %2: f32[2] = add(%1, %3)
      return %2
    }
    """
    fresh = graph.fresh
    values = {place: fresh + k for k, group in enumerate(places) for place in group}
    avals: dict[int, Aval] = {}
    count = 0
    nodes = []
    for node in graph.nodes:
        ins = list(node.ins)
        for k, operand in enumerate(ins):
            if isinstance(operand, Scalar):
                value = values.get(count)
                if value is not None:
                    ins[k] = value
                    avals[value] = operand.aval
                count += 1
        nodes.append(Node(node.instr, tuple(ins), node.out, node.location))
    lifted = dict.fromkeys(values.values())
    inputs = (*graph.inputs, *lifted), (*graph.avals, *[avals[value] for value in lifted])
    return Graph(*inputs, tuple(nodes), graph.outputs)
