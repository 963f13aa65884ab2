"""Compiling a program in pieces.

A program without sub-graphs is one piece, unless it is very long; equal pieces are compiled once. An operation with
sub-graphs, a loop or a branch, ends a piece: it runs from Python, with its bodies compiled, and the next piece begins
with its results. torch's own control flow operators would keep it all in one compiled program; docs/performance.md has
the measurements that speak against them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from gtrace.ir.aval import contiguous_strides
from gtrace.ir.calls import has_calls
from gtrace.ir.graph import Graph, Node, Subgraph, print_graph, subgraphs
from gtrace.ir.op import REGISTRY
from gtrace.runtime.canonical import canonicalize
from gtrace.runtime.interpret import Program, bound_body, interpreter
from gtrace.runtime.unit import Made, Maker, Unit

MIN_OPS = 3
"""Pieces of fewer operations are interpreted: there is nothing to fuse."""

MAX_OPS = 1000
"""Pieces of more operations are cut where the fewest bytes cross: compilers take more than linear time for them."""


@attrs.frozen(eq=False)
class Compiler:
    """How units become programs.

    Attributes:
        make: compiles a unit, or finds it compiled, or notes it.
        kept: under which name the programs of loops' bodies are kept for other loops with them; None: they are not.
        threads: see `Unit`.
    """

    make: Maker
    backend: str = "inductor"
    mode: str = "default"
    kept: str | None = None
    threads: int = attrs.field(factory=torch.get_num_threads)

    def __call__(self, graph: Graph, strides: Sequence[tuple[int, ...]]) -> Program:
        return self.make(Unit(graph, tuple(strides), self.backend, self.mode, threads=self.threads)).program


def units(graph: Graph, strides: Sequence[tuple[int, ...]], mode: str, threads: int) -> list[Unit]:
    """Return what `compile_program` would compile, each once."""
    found: dict[str, Unit] = {}

    def note(unit: Unit) -> Made:
        found.setdefault(unit.name, unit)
        return Made(interpreter(unit.graph))

    compile_program(graph, strides, Compiler(note, mode=mode, threads=threads))
    return list(found.values())


def compile_program(graph: Graph, strides: Sequence[tuple[int, ...]], compiler: Compiler) -> Program:
    """Compile a canonical graph for inputs of exactly these strides.

    Raises:
        CompileError: the compiler failed; the cause is chained.
    """
    if not has_calls(graph) and len(graph.nodes) <= MAX_OPS:
        return compiler(graph, strides)
    known = dict(zip(graph.inputs, strides, strict=True))
    steps: list[tuple[Callable[[list[torch.Tensor]], Any], tuple[int, ...], tuple[tuple[int, int], ...]]] = []
    compiled: dict[tuple[str, tuple[tuple[int, ...], ...]], Program] = {}  # equal pieces are compiled once
    for piece in _pieces(graph):
        if isinstance(piece, Graph):
            form = canonicalize(piece)
            ins = tuple(piece.inputs[k] for k in form.inputs)
            own_strides = tuple(
                known.get(value, contiguous_strides(a.shape)) for value, a in zip(ins, form.graph.avals, strict=True)
            )
            key = print_graph(form.graph), own_strides
            if key not in compiled:
                compiled[key] = _compile(form.graph, own_strides, compiler)
            assert all(place >= 0 for place in form.outputs)  # the whole was canonical: no output is an input
            steps.append((compiled[key], ins, tuple(zip(piece.outputs, form.outputs, strict=True))))
        else:
            node, results = piece
            outs = tuple((value, k) for k, value in enumerate(results))
            steps.append((_spread(_bound(node, compiler)), tuple(node.values()), outs))
    given = set(graph.inputs)
    inputs, outputs = graph.inputs, graph.outputs

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        env: dict[int, torch.Tensor] = dict(zip(inputs, tensors, strict=True))
        for function, ins, outs in steps:
            # a piece is compiled for dense operands, whatever made them
            values = [env[v] if v in given else env[v].contiguous() for v in ins]
            results = function(values)
            for v, place in outs:
                env[v] = results[place]
        return [env[v] for v in outputs]

    return run


def _bound(node: Node, compiler: Compiler) -> Callable[..., Any]:
    if node.op.compiled is not None:
        return node.op.compiled(lambda sub: _body(sub, compiler), **node.attributes)
    return bound_body(node, [_body(sub, compiler) for sub in subgraphs(node.params)])


def _spread(function: Callable[..., Any]) -> Callable[[list[torch.Tensor]], Any]:
    return lambda values: function(*values)


def _compile(graph: Graph, strides: Sequence[tuple[int, ...]], compiler: Compiler) -> Program:
    return interpreter(graph) if len(graph.nodes) < MIN_OPS else compiler(graph, strides)


def _body(sub: Subgraph, compiler: Compiler) -> Program:
    """Return a compiled body, which takes dense inputs; compiled once, however many operations have it."""

    def make() -> Program:
        strides = [contiguous_strides(a.shape) for a in sub.graph.avals]
        if len(sub.graph.nodes) < MIN_OPS:
            return interpreter(sub.graph)
        program = compile_program(sub.graph, strides, compiler)
        return lambda tensors: program([t.contiguous() for t in tensors])

    if compiler.kept is None:
        return make()
    return sub.derive(("compiled", compiler.kept, compiler.backend, compiler.mode), make)


def cut(graph: Graph, most: int) -> list[Graph]:
    """Return a program as a sequence of programs of at most `most` nodes, cut where the fewest bytes cross.

    A cut falls into the second half of what a piece may have.
    """
    nodes = graph.nodes
    if len(nodes) <= most:
        return [graph]
    table = graph.value_avals()
    made = {node.out: k for k, node in enumerate(nodes)}
    last = dict(made)
    for k, node in enumerate(nodes):
        for value in node.values():
            last[value] = k
    for value in graph.outputs:
        last[value] = len(nodes)
    change = [0] * (len(nodes) + 2)
    for value, k in made.items():
        # crosses the places after its own node up to its last use
        change[k + 1] += table[value].nbytes
        change[last[value] + 1] -= table[value].nbytes
    crossing = list(itertools.accumulate(change))
    places = [0]
    while len(nodes) - places[-1] > most:
        start = places[-1]
        places.append(min(range(start + most // 2 + 1, start + most + 1), key=crossing.__getitem__))
    places.append(len(nodes))
    pieces = []
    ends = set(graph.outputs)
    for start, stop in itertools.pairwise(places):
        own = nodes[start:stop]
        inside = {node.out for node in own}
        ins = tuple(dict.fromkeys(v for node in own for v in node.values() if v not in inside))
        outs = tuple(node.out for node in own if last[node.out] >= stop or node.out in ends)
        pieces.append(Graph(ins, tuple(table[v] for v in ins), own, outs))
    return pieces


def _pieces(graph: Graph) -> list[Graph | tuple[Node, tuple[int, ...]]]:
    """Return the straight-line pieces, and between them the operations with sub-graphs and the values they assign.

    An operation's level is the number of operations with sub-graphs before it on the longest path; a piece is all of
    one level. What gives more than it takes, as views and constants do, is computed where it is first needed.
    """
    level: dict[int, int] = dict.fromkeys(graph.inputs, 0)
    straight: dict[int, list[Node]] = {}
    calls: dict[int, list[Node]] = {}
    results: dict[int, dict[int, int]] = {}
    project = REGISTRY["project"]
    for node in graph.nodes:
        here = max((level[value] for value in node.values()), default=0)
        if node.op is project:
            results[node.ins[0]][node.params[0]] = node.out  # type: ignore[index]
        elif node.op.body is not None:
            calls.setdefault(here, []).append(node)
            results[node.out] = {}
            here += 1
        level[node.out] = here
    table = graph.value_avals()
    needed: dict[int, int] = dict.fromkeys(graph.outputs, 0)
    for node in reversed(graph.nodes):
        if node.op is not project and node.op.body is None:
            given = sum(table[value].nbytes for value in set(node.values()))
            if needed.get(node.out, 0) > level[node.out] and node.instr.aval.nbytes >= given:
                level[node.out] = needed[node.out]
        here = level[node.out] - (node.op.body is not None)
        for value in node.values():
            needed[value] = min(needed.get(value, here), here)
    for node in graph.nodes:
        if node.op is not project and node.op.body is None:
            straight.setdefault(level[node.out], []).append(node)
    fresh = 1 + max(table, default=0)
    pieces: list[Graph | tuple[Node, tuple[int, ...]]] = []
    users: dict[int, set[int]] = {}  # by the piece that uses it; -1: the operations with sub-graphs, and the outputs
    for here, nodes in straight.items():
        for node in nodes:
            for value in node.values():
                users.setdefault(value, set()).add(here)
    for nodes in calls.values():
        for node in nodes:
            for value in node.values():
                users.setdefault(value, set()).add(-1)
    for value in graph.outputs:
        users.setdefault(value, set()).add(-1)
    for here in range(1 + max([*straight, *calls])):
        nodes = straight.get(here, [])
        if nodes:
            made = {node.out for node in nodes}
            ins = tuple(dict.fromkeys(v for node in nodes for v in node.values() if v not in made))
            outs = tuple(node.out for node in nodes if users.get(node.out, set()) - {here})
            pieces += cut(Graph(ins, tuple(table[v] for v in ins), tuple(nodes), outs), MAX_OPS)
        for node in calls.get(here, []):
            names = []
            for k in range(len(node.instr.aval.avals)):
                names.append(results[node.out].get(k, fresh))
                fresh += names[-1] == fresh
            pieces.append((node, tuple(names)))
    return pieces
