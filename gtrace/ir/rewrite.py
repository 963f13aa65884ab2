"""Graph rewrites: each takes a graph and returns a graph. None of them recurses."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from gtrace.errors import GraphError
from gtrace.ir.aval import aval
from gtrace.ir.graph import Graph, Marks, Node, Operand, Region, Scalar, Subgraph, print_graph, subgraphs
from gtrace.ir.op import CODES, REGISTRY, Instr
from gtrace.ir.sizes import kind


def substitute(node: Node, replacement: Mapping[int, Operand]) -> Node:
    """Return `node` with each operand value replaced as `replacement` says."""
    if not any(value in replacement for value in node.values()):
        return node
    ins = tuple(replacement.get(x, x) if isinstance(x, int) else x for x in node.ins)
    return Node(node.instr, ins, node.out, node.location)


def remove_identities(graph: Graph, keep_stops: bool = False) -> Graph:
    """Drop nodes that return their operand (``stop_gradient``, gradient markers) and use the operand instead.

    With `keep_stops`, what a later derivative must see stays.
    """
    if not any(node.op.identity for node in graph.nodes):
        return graph
    replacement: dict[int, Operand] = {}
    nodes = []
    for node in graph.nodes:
        gone = node.op.identity and not (keep_stops and node.op.nondiff is not None)
        operand = node.ins[0] if gone else None
        if isinstance(operand, int):
            replacement[node.out] = replacement.get(operand, operand)
        else:
            nodes.append(substitute(node, replacement))
    outputs = []
    for value in graph.outputs:
        target = replacement.get(value, value)
        assert isinstance(target, int)
        outputs.append(target)
    return Graph(graph.inputs, graph.avals, tuple(nodes), tuple(outputs))


def dce(graph: Graph) -> Graph:
    """Drop the nodes that no output depends on. The inputs stay."""
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if node.out in needed:
            kept.append(node)
            needed.update(node.values())
    if len(kept) == len(graph.nodes):
        return graph
    return Graph(graph.inputs, graph.avals, tuple(reversed(kept)), graph.outputs)


def fold(graph: Graph) -> Graph:
    """Compute what depends on Python scalars alone, and let elementwise operations take uniform arrays as scalars.

    A uniform array is ``full`` of a scalar, or what elementwise and `Op.uniform` operations make of uniform arrays.
    Folding runs the operation itself, on 0-d tensors of the same dtype, so the results are those of the program.
    """
    uniform: dict[int, Scalar] = {}
    nodes = []
    for node in graph.nodes:
        op = node.op
        known = [x if isinstance(x, Scalar) else uniform.get(x) for x in node.ins]
        if (op.uniform or op.elementwise) and known and all(known):
            value = _evaluate(node, known)  # type: ignore[arg-type]
            if value is not None:
                uniform[node.out] = value
        elif op.elementwise and any(known):
            node = _with_scalars(node, known)
        nodes.append(node)
    # a uniform array that is still needed is made at once; dead code elimination drops the others
    full = REGISTRY["full"]
    for k, node in enumerate(nodes):
        scalar = uniform.get(node.out)
        if scalar is not None and node.op is not full:
            params = (node.instr.aval.shape, str(node.instr.aval.device))
            instr = full.instr(params, (scalar.aval,))
            if instr.aval is node.instr.aval:
                nodes[k] = Node(instr, (scalar,), node.out, node.location)
    return Graph(graph.inputs, graph.avals, tuple(nodes), graph.outputs)


def _evaluate(node: Node, operands: list[Scalar]) -> Scalar | None:
    a = node.instr.aval
    kind = aval((), a.dtype, a.device, weak=True)
    if node.op.uniform:
        return Scalar(operands[0].value, kind)
    tensors = [torch.tensor(x.value, dtype=x.aval.dtype) for x in operands]
    try:
        return Scalar(node.op.impl(*tensors, **node.attributes).item(), kind)
    except (RuntimeError, ZeroDivisionError):
        return None  # integers divided by zero: the program raises when it runs, and not before


def _with_scalars(node: Node, known: list[Scalar | None]) -> Node:
    """Return `node` with uniform operands replaced by scalars, as far as its result stays what it is."""
    ins = tuple(x if scalar is None else scalar for x, scalar in zip(node.ins, known, strict=True))
    avals = [a if scalar is None else scalar.aval for a, scalar in zip(node.instr.ins, known, strict=True)]
    if tuple(avals) == node.instr.ins:
        return node
    instr = node.op.instr(node.params, tuple(avals))
    return Node(instr, ins, node.out, node.location) if instr.aval is node.instr.aval else node


def order_operands(graph: Graph) -> Graph:
    """Give commutative operations whose operands have different avals an order that depends on sizes last."""
    nodes = []
    for node in graph.nodes:
        if node.op.commutative and node.instr.ins[0] is not node.instr.ins[1]:
            first, second = node.instr.ins
            # scalars last, as people write them
            one, other = (
                (isinstance(x, Scalar), -len(a.shape), kind(a), a.shape)
                for x, a in zip(node.ins, (first, second), strict=True)
            )
            if one > other:
                instr = node.op.instr(node.params, (second, first))
                node = Node(instr, node.ins[::-1], node.out, node.location)
        nodes.append(node)
    return Graph(graph.inputs, graph.avals, tuple(nodes), graph.outputs)


def cse(graph: Graph) -> Graph:
    """Merge nodes with equal instruction and operands; operands of commutative operations compare in any order."""
    seen: dict[tuple[Instr, tuple[Operand, ...]], int] = {}
    replacement: dict[int, Operand] = {}
    nodes = []
    for node in graph.nodes:
        node = substitute(node, replacement)
        ins = tuple(sorted(node.ins, key=_operand_order)) if node.op.commutative else node.ins
        first = seen.setdefault((node.instr, ins), node.out)
        if first == node.out:
            nodes.append(node)
        else:
            replacement[node.out] = first
    if not replacement:
        return graph
    outputs = tuple(value if value not in replacement else replacement[value] for value in graph.outputs)
    return Graph(graph.inputs, graph.avals, tuple(nodes), outputs)  # type: ignore[arg-type]


def _operand_order(operand: Operand) -> tuple[int, int, str]:
    return (1, 0, str(operand.key)) if isinstance(operand, Scalar) else (0, operand, "")


def renumber(graph: Graph) -> Graph:
    """Return `graph` with its inputs numbered 0, 1, ... and its results after them, in order."""
    names: dict[int, Operand] = {value: k for k, value in enumerate(graph.inputs)}
    nodes = []
    for node in graph.nodes:
        names[node.out] = out = len(names)
        ins = tuple(names[x] if isinstance(x, int) else x for x in node.ins)
        nodes.append(Node(node.instr, ins, out, node.location))
    outputs = tuple(names[value] for value in graph.outputs)
    return Graph(tuple(range(len(graph.inputs))), graph.avals, tuple(nodes), outputs)  # type: ignore[arg-type]


_VIEWS = ("permute", "reshape", "broadcast_to", "full")
"""Operations that cost nothing to do again."""


def partition(graph: Graph, known: Sequence[int], again: bool = False) -> tuple[Graph, Graph]:
    """Split a program by what can be computed from some of its inputs.

    Args:
        again: let the second part do views of what the first computes again, so that they are no residuals.

    Returns:
        (first, second): `first` takes the `known` inputs and returns residuals, `second` takes the other inputs and
        then the residuals, and returns the outputs.
    """
    available = set(known)
    early, late = [], []
    for node in graph.nodes:
        if all(value in available for value in node.values()):
            available.add(node.out)
            early.append(node)
        else:
            late.append(node)
    if again:
        makers = {node.out: node for node in early if node.op.name in _VIEWS}
        repeated: dict[int, Node] = {}
        open_values = [value for node in late for value in node.values()]
        while open_values:
            view = makers.get(open_values.pop())
            if view is not None and view.out not in repeated:
                repeated[view.out] = view
                open_values += view.values()
        available -= set(repeated)
        late = [node for node in early if node.out in repeated] + late
    wanted = [value for node in late for value in node.values()] + list(graph.outputs)
    residuals = tuple(dict.fromkeys(value for value in wanted if value in available))
    table = graph.value_avals()
    others = tuple(value for value in graph.inputs if value not in set(known))
    first = dce(Graph(tuple(known), tuple(table[v] for v in known), tuple(early), residuals))
    ins = (*others, *residuals)
    return first, dce(Graph(ins, tuple(table[v] for v in ins), tuple(late), graph.outputs))


_interned: dict[Any, Subgraph] = {}


def subgraph(graph: Graph) -> Subgraph:
    """Return the one `Subgraph` of this program, without what it computes twice or for nothing."""
    graph = renumber(dce(cse(dce(fold(dce(remove_identities(graph, keep_stops=True)))))))
    text = print_graph(graph)
    # equal texts are equal programs, unless a derivative rule of the user's comes with them, here or further in
    own = [node.instr for node in graph.nodes if node.instr is not CODES[node.instr.code] or subgraphs(node.params)]
    key = text, tuple(own)
    found = _interned.get(key)
    return found if found is not None else _interned.setdefault(key, Subgraph(graph, text))


def select(sub: Subgraph, outputs: Iterable[int]) -> Subgraph:
    """Return `sub` with the outputs at these places alone."""
    places = tuple(outputs)

    def make() -> Subgraph:
        graph = sub.graph
        return subgraph(Graph(graph.inputs, graph.avals, graph.nodes, tuple(graph.outputs[k] for k in places)))

    return sub.derive(("select", places), make)


def stretches(graph: Graph, marks: Marks) -> list[tuple[Graph, Region | None]]:
    """Cut a program, whose values are numbered as they were recorded, where regions with a mode begin and end.

    Returns:
        Programs to run one after the other, each with the inputs it uses, from outside or from those before it, and the
        values that those after it, or the outputs, use.
    """
    graph = dce(graph)
    places = [number for number, _ in marks]
    groups: list[tuple[int, Region | None, list[Node]]] = []
    for node in graph.nodes:
        k = bisect.bisect_right(places, node.out) - 1
        region = marks[k][1] if k >= 0 and marks[k][1] is not None and marks[k][1].mode else None  # type: ignore[union-attr]
        key = k if region is not None else -1
        if not groups or groups[-1][0] != key:
            groups.append((key, region, []))
        groups[-1][2].append(node)
    table = graph.value_avals()
    wanted = set(graph.outputs)
    found: list[tuple[Graph, Region | None]] = []
    for _, region, nodes in reversed(groups):
        made = {node.out for node in nodes}
        ins = tuple(dict.fromkeys(v for node in nodes for v in node.values() if v not in made))
        outs = tuple(node.out for node in nodes if node.out in wanted)
        wanted.update(ins)
        found.append((Graph(ins, tuple(table[v] for v in ins), tuple(nodes), outs), region))
    found.reverse()
    return found


def components(graph: Graph, least: int) -> list[Graph]:
    """Return the parts of a program that share no computed value, each with the inputs it uses and its outputs.

    Inputs may be shared. Parts of fewer than `least` nodes are kept together as one. What is computed for nothing is
    dropped. An output that is an input belongs to the first part.
    """
    graph = dce(graph)
    group = {node.out: node.out for node in graph.nodes}

    def find(value: int) -> int:
        while group[value] != value:
            group[value] = value = group[group[value]]
        return value

    for node in graph.nodes:
        for value in node.values():
            if value in group:
                group[find(value)] = find(node.out)
    parts: dict[int, list[Node]] = {}
    for node in graph.nodes:
        parts.setdefault(find(node.out), []).append(node)
    small = [root for root, nodes in parts.items() if len(nodes) < least]
    if len(parts) - len(small) + bool(small) <= 1:
        return [graph]
    together = [node for node in graph.nodes if find(node.out) in set(small)]
    avals = dict(zip(graph.inputs, graph.avals, strict=True))
    rest = [value for value in graph.outputs if value in avals]
    found = []
    for nodes in [*[nodes for root, nodes in parts.items() if root not in small], *([together] if together else [])]:
        made = {node.out for node in nodes}
        outputs = (*rest, *[value for value in graph.outputs if value in made])
        used = {value for node in nodes for value in node.values()} | set(rest)
        inputs = tuple(value for value in graph.inputs if value in used)
        found.append(Graph(inputs, tuple(avals[value] for value in inputs), tuple(nodes), outputs))
        rest = []
    return found


def toposort(nodes: Iterable[Node], inputs: Iterable[int]) -> tuple[Node, ...]:
    """Return `nodes` ordered so that every operand is assigned before its use; otherwise keep the given order.

    Raises:
        GraphError: a cycle, or an operand that nothing assigns.
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
    """Return the callee's nodes on `operands`, with results numbered from `fresh`, and its outputs there."""
    names: dict[int, Operand] = dict(zip(callee.inputs, operands, strict=True))
    nodes = []
    for node in callee.nodes:
        names[node.out] = fresh
        ins = tuple(names[x] if isinstance(x, int) else x for x in node.ins)
        nodes.append(Node(node.instr, ins, fresh, node.location))
        fresh += 1
    return tuple(nodes), tuple(names[value] for value in callee.outputs)
