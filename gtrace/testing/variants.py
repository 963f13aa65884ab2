"""Strategies for programs beside a given one: the same otherwise written, or another in one place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base.errors import GtraceError
from gtrace.core.ir.aval import Aval, Bundle, aval
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar, Subgraph, is_subgraphs, subgraphs
from gtrace.core.ir.op import REGISTRY, Instr, Op, Params
from gtrace.core.ir.simplify import dce, fold, remove_identities
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.passes.canonical import canonicalize
from gtrace.testing.require import assume, st

# -- the same program


@st.composite
def rearrangements(draw: st.DrawFn, graph: Graph) -> Graph:
    """Draw the same program otherwise written, which must not change its canonical form; shrinks to `graph`.

    Values are renamed, independent nodes interleaved anew; operands of commutative operations, inputs and outputs are
    in another order; there are dead code and duplicates.

    >>> from hypothesis import given, strategies as st
    >>> from gtrace.core.passes.canonical import canonicalize
    >>> from gtrace.testing import graphs
    >>> @given(graphs(max_nodes=4).flatmap(lambda graph: st.tuples(st.just(graph), rearrangements(graph))))
    ... def test(pair):
    ...     graph, other = pair
    ...     assert canonicalize(graph).graph == canonicalize(other).graph
    >>> test()
    """
    other = _rearranged(draw, graph)
    inputs = draw(st.permutations(list(zip(other.inputs, other.avals, strict=True))))
    outputs = draw(st.permutations(other.outputs))
    return Graph(tuple(v for v, _ in inputs), tuple(a for _, a in inputs), other.nodes, tuple(outputs))


def _rearranged(draw: st.DrawFn, graph: Graph) -> Graph:
    """Draw the program with its inputs and outputs in their places."""
    own = [*graph.inputs, *(node.out for node in graph.nodes)]
    names = dict(zip(own, draw(st.permutations(range(len(own)))), strict=True))
    fresh = itertools.count(len(own))
    waiting, done = list(graph.nodes), set(graph.inputs)
    nodes: list[Node] = []
    while waiting:
        node = draw(st.sampled_from([n for n in waiting if done.issuperset(n.values())]))
        waiting.remove(node)
        done.add(node.out)
        ins = tuple(names[x] if isinstance(x, int) else x for x in node.ins)
        instr = _with_bodies(draw, node)
        if node.op.commutative and draw(st.booleans()):
            ins, instr = ins[::-1], node.op.instr(node.params, node.instr.ins[::-1])
        nodes.append(Node(instr, ins, names[node.out]))
        change = draw(st.sampled_from([None, None, None, "unused", "again", "used"]))
        if change in ("again", "used"):
            twin = next(fresh)
            nodes.append(Node(instr, ins, twin))
            if change == "used":
                names[node.out] = twin
        elif change == "unused" and isinstance(instr.aval, Aval) and instr.aval.floating:
            nodes.append(Node(REGISTRY["neg"].instr((), (instr.aval,)), (names[node.out],), next(fresh)))
    inputs = tuple(names[value] for value in graph.inputs)
    return Graph(inputs, graph.avals, tuple(nodes), tuple(names[value] for value in graph.outputs))


def _with_bodies(draw: st.DrawFn, node: Node) -> Instr:
    if not subgraphs(node.params):
        return node.instr
    params = _map_bodies(node.params, lambda sub: subgraph(_rearranged(draw, sub.graph)))
    return node.op.instr(params, node.instr.ins)


def _map_bodies(params: Params, function: Any) -> Params:
    return tuple(
        value
        if not is_subgraphs(value)
        else tuple(function(sub) for sub in value)
        if isinstance(value, tuple)
        else function(value)
        for value in params
    )


# -- whether two graphs are one program, found out without canonical forms


def isomorphic(graph: Graph, other: Graph) -> bool:
    """Whether two graphs are one program up to names, order, duplicates and dead code, and the order of their inputs.

    Every assignment of inputs is tried: this is for small graphs. Canonical forms are tested against it. The two share
    only constant folding and the removal of identities.

    >>> def recorded(f):
    ...     return gt.make_graph(f)(gt.ones(2), gt.ones(2))
    >>> isomorphic(recorded(lambda x, y: x - y), recorded(lambda x, y: y - x))
    True
    >>> isomorphic(recorded(lambda x, y: x - y * y), recorded(lambda x, y: x * x - y))
    False
    """
    one, two = (fold(dce(remove_identities(g))) for g in (graph, other))
    ours, theirs = _used_inputs(one), _used_inputs(two)
    if sorted(map(repr, ours.values())) != sorted(map(repr, theirs.values())):
        return False
    terms: dict[Any, int] = {}
    wanted = _results(one, dict.fromkeys(ours), terms)
    for order in itertools.permutations(theirs):
        if all(theirs[value] is a for value, a in zip(order, ours.values(), strict=True)):
            if _results(two, dict.fromkeys(order), terms) == wanted:
                return True
    return False


def _used_inputs(graph: Graph) -> dict[int, Aval]:
    made = {node.out for node in graph.nodes}
    needed = [value for value in graph.outputs if value in made]
    nodes = {node.out: node for node in graph.nodes}
    used: dict[int, None] = {}
    while needed:
        value = needed.pop()
        if value in nodes:
            needed += nodes.pop(value).values()
        elif value not in made:
            used[value] = None
    return {value: a for value, a in zip(graph.inputs, graph.avals, strict=True) if value in used}


def _results(graph: Graph, inputs: dict[int, Any], terms: dict[Any, int]) -> frozenset[int]:
    """Return the numbers of the terms that the outputs are, but for outputs that are inputs."""
    env = {value: terms.setdefault(("input", k), len(terms)) for k, value in enumerate(inputs)}
    for value in graph.inputs:
        env.setdefault(value, terms.setdefault(("unused",), len(terms)))
    given = set(graph.inputs)
    found = _terms(graph, env, terms)
    return frozenset(found[value] for value in graph.outputs if value not in given)


def _terms(graph: Graph, env: dict[int, int], terms: dict[Any, int]) -> dict[int, int]:
    """Return the number of the term that each value is; equal terms have equal numbers."""
    several: dict[int, tuple[Node, tuple[Any, ...]]] = {}
    for node in graph.nodes:
        if node.op.projection:
            whole, ins = several[node.ins[0]]  # type: ignore[index]
            term = _taken(whole, ins, node.instr.index, terms)
        else:
            parts = [(env[x], "") if isinstance(x, int) else (-1, repr(x)) for x in node.ins]
            if isinstance(node.instr.aval, Bundle):
                several[node.out] = node, tuple(parts)
                continue
            kinds = list(map(repr, node.instr.ins))
            if node.op.commutative:
                parts, kinds = map(list, zip(*sorted(zip(parts, kinds, strict=True)), strict=True))
            term = node.op.name, node.params, tuple(kinds), tuple(parts)
        env[node.out] = terms.setdefault(term, len(terms))
    return env


def _taken(node: Node, ins: tuple[Any, ...], index: int, terms: dict[Any, int]) -> tuple[Any, ...]:
    """Return the term of one result of an operation with sub-graphs: what it depends on, and nothing else of it."""
    bodies: list[Any] = []
    for sub in subgraphs(node.params):
        given = {v: terms.setdefault(("slot", k), len(terms)) for k, v in enumerate(sub.graph.inputs)}
        found = _terms(sub.graph, given, terms)
        outputs = [found[value] for value in sub.graph.outputs]
        if node.op.name == "scan":
            kept = node.attributes["carry"]
            bodies.append((tuple(outputs[:kept]), index if index < kept else ("stacked", outputs[index])))
        elif node.op.name == "switch":
            bodies.append((outputs[index],))
        else:
            bodies.append((*outputs, index))
    plain = tuple(value for value in node.params if not is_subgraphs(value))
    return node.op.name, plain, tuple(map(repr, node.instr.ins)), ins, tuple(bodies)


# -- another program


@attrs.frozen
class Change:
    """A node in the place of another, or an input of another dtype; `kind` says what is changed of it."""

    kind: str
    place: int
    what: Node | torch.dtype


@st.composite
def near_twins(draw: st.DrawFn, graph: Graph) -> Graph:
    """Draw a graph that differs from `graph` in one place, and is another program: its signature must differ.

    Either two operands of a non-commutative operation are exchanged, or a value, attribute, number, operation or dtype
    is replaced. The change is in the graph or in a sub-graph. Graphs in which no change matters are rejected.

    >>> from hypothesis import given, strategies as st
    >>> from gtrace.core.passes.canonical import canonicalize
    >>> from gtrace.core.ir.signature import sign
    >>> from gtrace.testing import graphs
    >>> @given(graphs(max_nodes=4).flatmap(lambda graph: st.tuples(st.just(graph), near_twins(graph))))
    ... def test(pair):
    ...     one, other = (sign(canonicalize(graph).graph).exact for graph in pair)
    ...     assert one != other
    >>> test()
    """
    assume(canonicalize(graph).graph.nodes)  # the signature of a program that only passes inputs on says nothing
    kinds: dict[str, list[Change]] = {}
    for change in _changes(graph):
        kinds.setdefault(change.kind, []).append(change)
    assume(kinds)
    # one kind has many changes, another few: first the kind is drawn
    order = _from(sorted(kinds), draw(st.integers(0, len(kinds) - 1)))
    first = draw(st.integers(0, max(map(len, kinds.values())) - 1))
    for kind in order:
        for change in _from(kinds[kind], first % len(kinds[kind])):
            other = _changed(graph, change)
            if other is not None and not isomorphic(graph, other):
                return other
    assume(False)
    raise AssertionError


def _from(items: list[Any], place: int) -> list[Any]:
    return [*items[place:], *items[:place]]


def _changes(graph: Graph) -> Iterator[Change]:
    """Iterate over what may stand elsewhere; not every change makes a valid program, or another one."""
    live = set(graph.outputs)
    for node in reversed(graph.nodes):
        if node.out in live:
            live.update(node.values())
    reached = set(graph.inputs)
    table = graph.value_avals()
    for k, node in enumerate(graph.nodes):
        # what depends on numbers alone is folded: a change of it may not matter
        if not reached.isdisjoint(node.values()):
            if node.out in live:
                earlier = [value for value in reached if not isinstance(table[value], Bundle)]
                yield from (Change(kind, k, other) for kind, other in _other_nodes(node, table, sorted(earlier)))
            reached.add(node.out)
    if not any(subgraphs(node.params) for node in graph.nodes):
        for k, (value, a) in enumerate(zip(graph.inputs, graph.avals, strict=True)):
            if value in live:
                for dtype in (torch.float32, torch.float64, torch.int64):
                    if a.dtype is not dtype:
                        yield Change("dtype", k, dtype)


def _other_nodes(node: Node, table: dict[int, Any], earlier: Sequence[int]) -> Iterator[tuple[str, Node]]:
    kinds = node.instr.ins
    for i, j in itertools.combinations(range(len(node.ins)), 2):
        if not node.op.commutative and node.ins[i] != node.ins[j]:
            exchanged, moved = list(node.ins), list(kinds)
            exchanged[i], exchanged[j] = exchanged[j], exchanged[i]
            moved[i], moved[j] = moved[j], moved[i]
            yield from _valid("order", node, node.op.name, node.params, tuple(moved), exchanged)
    for params in _other_params(node.params, bool(subgraphs(node.params))):
        yield from _valid("attribute", node, node.op.name, params, kinds, node.ins)
    for slot, operand in enumerate(node.ins):
        if isinstance(operand, Scalar):
            others: list[Operand] = [Scalar(value, operand.aval) for value in _other_numbers(operand.value)]
        else:
            others = [value for value in earlier if value != operand and table[value] is table[operand]]
        for other in others:
            ins = (*node.ins[:slot], other, *node.ins[slot + 1 :])
            yield ("number" if isinstance(operand, Scalar) else "operand"), attrs.evolve(node, ins=ins)
    if not subgraphs(node.params) and not node.op.projection:
        for op in REGISTRY.values():
            same = (op.params, op.arity, op.elementwise) == (node.op.params, node.op.arity, node.op.elementwise)
            if same and op is not node.op and not op.identity and op.rules.result is None:
                yield from _valid("operation", node, op.name, node.params, kinds, node.ins)


def _valid(
    kind: str, node: Node, name: str, params: Params, avals: tuple[Aval, ...], ins: Sequence[Operand]
) -> Iterator[tuple[str, Node]]:
    """Yield the node with another instruction, if there is such a one."""
    instr = _instruction(REGISTRY[name], params, avals)
    if instr is not None:
        yield kind, Node(instr, tuple(ins), node.out)


def _instruction(op: Op, params: Params, kinds: tuple[Aval, ...]) -> Instr | None:
    """Return the instruction, if torch makes of such operands what inference says; None otherwise."""
    if op.projection:
        return op.instr(params, kinds) if params[0] < len(kinds[0].avals) else None  # type: ignore[attr-defined]
    if op.rules.result is not None:
        return op.instr(params, kinds)
    named = dict(zip(op.params, params, strict=True))
    for number in (1, 0):  # divisors that are not zero, or else indices that are in range
        try:
            instr = op.instr(params, kinds)
            out = op.impl(*[torch.full(a.shape, number, dtype=a.dtype) for a in kinds], **named)
        except (GtraceError, RuntimeError, IndexError, TypeError, ValueError):
            continue
        return instr if (tuple(out.shape), out.dtype) == (instr.aval.shape, instr.aval.dtype) else None
    return None


def _other_numbers(value: bool | int | float | complex) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    return [value + 1, -value] if value == 0 and isinstance(value, float) else [value + 1]


def _other_params(params: Any, with_bodies: bool) -> Iterator[Any]:
    """Iterate over attributes of which one boolean, integer or number is another; or one in a sub-graph.

    The integers beside sub-graphs say how their inputs are told apart: they stay.
    """
    for k, value in enumerate(params):
        others: Iterator[Any] = iter(())
        if isinstance(value, bool):
            others = iter([not value])
        elif isinstance(value, Subgraph):
            others = _other_bodies(value)
        elif isinstance(value, (int, float)) and not with_bodies:
            others = iter([n for n in (value + 1, value - 1) if n >= 0 or value < 0])
        elif isinstance(value, tuple):
            others = _other_params(value, with_bodies)
        for other in others:
            yield (*params[:k], other, *params[k + 1 :])


def _other_bodies(sub: Subgraph) -> Iterator[Subgraph]:
    graph = sub.graph
    for change in _changes(graph):
        if isinstance(change.what, Node) and change.what.instr.aval is graph.nodes[change.place].instr.aval:
            yield subgraph(_with_node(graph, change.place, change.what))


def _with_node(graph: Graph, place: int, node: Node) -> Graph:
    return attrs.evolve(graph, nodes=(*graph.nodes[:place], node, *graph.nodes[place + 1 :]))


def _changed(graph: Graph, change: Change) -> Graph | None:
    """Return the graph with a change, and the types after it inferred anew; None if an operation does not take them."""
    avals = list(graph.avals)
    if isinstance(change.what, Node):
        graph = _with_node(graph, change.place, change.what)
    else:
        avals[change.place] = aval(avals[change.place].shape, change.what)
    table: dict[int, Any] = dict(zip(graph.inputs, avals, strict=True))
    nodes = []
    for node in graph.nodes:
        kinds = tuple(table[x] if isinstance(x, int) else x.aval for x in node.ins)
        if kinds != node.instr.ins:
            if subgraphs(node.params) or any(isinstance(a, Bundle) for a in kinds):
                return None
            instr = _instruction(node.op, node.params, kinds)
            if instr is None:
                return None
            node = attrs.evolve(node, instr=instr)
        table[node.out] = node.instr.aval
        nodes.append(node)
    return Graph(graph.inputs, tuple(avals), tuple(nodes), graph.outputs)
