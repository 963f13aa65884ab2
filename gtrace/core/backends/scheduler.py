"""Partitioning: a program is divided into parts that are compiled, parts that are interpreted, and loops.

A program without sub-graphs is one request, unless it is very long, or has operations that cannot be compiled, which
become interpreted parts. Equal parts share one request. An operation with sub-graphs (a loop or a branch) ends a part,
and its results are inputs of the next part. A loop with short steps is compiled as a whole
(`gtrace.core.backends.native`); another one, and a branch, runs from Python, with its bodies compiled. torch's own
control flow operators would keep everything in one compiled program. They were slower (docs/experiments.md). An
exported program is one piece: `gtrace.core.backends.fx` has what becomes of its loops.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import attrs

from gtrace.core.backends.cost_model import additions, node_additions, savable
from gtrace.core.backends.inductor.refused import refusal
from gtrace.core.backends.interpreter.matmul import LINEAR_ALGEBRA
from gtrace.core.backends.native.generator import generate, has_code, loop_graph, of_open_length, taken_whole
from gtrace.core.backends.native.values import UnsupportedLoopError
from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.schedule import Call, Loop, NativeLoop, Schedule
from gtrace.core.backends.straight_lines import split
from gtrace.core.backends.tuned import (
    LONG_NATIVE_PROGRAM,
    LONG_STEP,
    MAX_OPS,
    MAX_PROLOGUE,
    MAX_SHARE,
    MIN_NATIVE_OPS,
    MIN_OPS,
    MIN_SHARE,
)
from gtrace.core.base.mechanisms import DRAWS_APART, INDUCTOR, NATIVE_LOOPS, NATIVE_PROGRAMS
from gtrace.core.ir.aliasing import given_away, written_over
from gtrace.core.ir.aval import contiguous_strides
from gtrace.core.ir.graph import Graph, Node, Subgraph, print_graph, subgraphs
from gtrace.core.passes.canonical import canonicalize
from gtrace.core.passes.draws import draws_apart, has_draws
from gtrace.core.passes.split import slices
from gtrace.core.passes.subgraph_calls import has_calls

Strides = Sequence[tuple[int, ...]]

_native_requests: weakref.WeakValueDictionary[Any, CompileRequest] = weakref.WeakValueDictionary()
"""Of loops that are compiled as a whole, by (instruction, mode, threads), as long as a schedule has them."""


@attrs.frozen(eq=False)
class _Whole:
    """What decides how the straight lines of a program run.

    Attributes:
        loops: those that are compiled as a whole, by the value that each assigns.
        beside: additions that these take.
        least: additions that compiling a straight line has to save.
        little: whether there are none, and the program is so short that the C++ compiler alone may compile its lines.
    """

    loops: Mapping[int, NativeLoop]
    beside: int
    least: float
    little: bool


@attrs.frozen
class _Line:
    """A straight line; equal ones share one request.

    Attributes:
        graph: in canonical form.
        strides: of its inputs.
        donated: the inputs that it may write over.
        text: of the graph.
    """

    graph: Graph = attrs.field(eq=False)
    strides: tuple[tuple[int, ...], ...]
    donated: tuple[int, ...]
    text: str

    @classmethod
    def of(cls, graph: Graph, ins: Sequence[int], known: Mapping[int, tuple[int, ...]], away: Set[int]) -> _Line:
        """Return the line that takes these values, given the known strides of values, and which are given away."""
        strides = (known.get(v, contiguous_strides(a.shape)) for v, a in zip(ins, graph.avals, strict=True))
        return cls(graph, tuple(strides), tuple(k for k, v in enumerate(ins) if v in away), print_graph(graph))


@attrs.frozen(eq=False)
class Scheduler:
    """Makes schedules.

    Attributes:
        backend, mode, threads: of every `CompileRequest` that it makes.
        left_out: operators of torch, by overload, that the backend cannot compile.
        alone: whether short programs are compiled by the C++ compiler alone.
    """

    backend: str
    mode: str
    threads: int
    left_out: frozenset[str] = frozenset()
    alone: bool = True

    def schedule(self, graph: Graph, strides: Strides, donated: Collection[int] = ()) -> Schedule:
        """Return the schedule of a canonical graph for inputs of these strides; `donated` may be overwritten."""
        apart = self._apart(graph)
        if not has_calls(graph) and not apart and len(graph.nodes) <= MAX_OPS:
            request = self.request(graph, strides, donated)
            libraries = None if request.donated else self._short(graph)  # native code writes over no inputs
            if not libraries:
                return self.single(request if libraries is None else self.native_request(graph))
            calls = tuple(call for call, _ in self._calls(graph, strides, donated, libraries))
            if not any(call.requests for call in calls):  # too little between the calls of libraries
                return self.single(request)
        else:
            calls = tuple(call for call, _ in self._calls(graph, strides, donated, apart))
        return Schedule(graph.inputs, graph.outputs, calls)

    def cut(self, graph: Graph) -> list[Graph]:
        """Cut a program with native loops from what Inductor compiles much later; return the programs in order."""
        if not has_calls(graph):
            return [graph]
        runs: list[tuple[bool, list[Node]]] = []
        loops = False
        strides = [contiguous_strides(a.shape) for a in graph.avals]
        for call, nodes in self._calls(graph, strides, (), self._apart(graph)):
            fast = all(request.native for request in call.requests)
            loops = loops or isinstance(call.what, NativeLoop)
            if not runs or runs[-1][0] != fast:
                runs.append((fast, []))
            runs[-1][1].extend(nodes)
        if not loops or len(runs) == 1:
            return [graph]
        order: dict[int, Node] = {}
        places = []
        for _, own in runs:
            places.append(len(order))
            order.update((node.out, node) for node in own if node.out not in order)
        parts = slices(Graph(graph.inputs, graph.avals, tuple(order.values()), graph.outputs), places[1:])
        # what is worth Inductor depends on the loops beside it, of which a part may have fewer
        return [one for part in parts for one in self.cut(part)] if len(parts) > 1 else parts

    def parts_of_open_sizes(self, graph: Graph) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Say where a program is cut so that parts of it can be compiled for open sizes.

        Returns:
            The places of its operations, in order, and where in this order parts begin, but for the first: loops and
            branches, what is interpreted, and straight lines between them. None: it is one part, or nothing but loops
            is compiled.
        """
        strides = [contiguous_strides(a.shape) for a in graph.avals]
        where = {node.out: place for place, node in enumerate(graph.nodes)}
        order: dict[int, None] = {}
        places: list[int] = []
        before, straight = None, False
        for call, nodes in self._calls(graph, strides, (), self._apart(graph)):
            kind = type(call.what)
            if kind is not Graph or kind is not before:  # neighbours that are interpreted stay together
                places.append(len(order))
            before, straight = kind, straight or kind is CompileRequest
            order.update(dict.fromkeys(where[node.out] for node in nodes))
        starts = tuple(place for place in dict.fromkeys(places) if 0 < place < len(order))
        return (tuple(order), starts) if starts and straight else None

    def draws_apart(self, graph: Graph) -> list[Graph]:
        """Take draws, which g++ compiles earlier, out of a program for Inductor; return programs in order."""
        if not DRAWS_APART.on or not self._compiles_short or not has_draws(graph) or self._is_small(graph):
            return [graph]
        parts = draws_apart(graph, has_code)
        if len(parts) > 1:
            DRAWS_APART.used()
        return parts

    def _apart(self, graph: Graph) -> set[int]:
        """Return the values of the straight-line operations that cannot be compiled."""
        return {node.out for node in graph.nodes if node.op.rules.body is None and self._is_interpreted(node)}

    def _calls(
        self, graph: Graph, strides: Strides, donated: Collection[int], apart: Set[int]
    ) -> Iterator[tuple[Call, tuple[Node, ...]]]:
        """Yield the calls of a program, each with its operations."""
        whole = self._whole(graph, apart)
        taken = {value: loop.ins for value, loop in whole.loops.items()}
        parts = split(_without_prologues(graph, whole.loops.values()), taken, apart, MAX_OPS)
        reads = [p.inputs if isinstance(p, Graph) else taken.get(p[0].out, tuple(p[0].values())) for p in parts]
        away = given_away(graph, reads, {graph.inputs[k] for k in donated})
        known = dict(zip(graph.inputs, strides, strict=True))
        equal: dict[_Line, CompileRequest | Graph] = {}
        for part, takes, own_away in zip(parts, reads, away, strict=True):
            if isinstance(part, Graph):
                form = canonicalize(part)
                assert all(place >= 0 for place in form.outputs)  # the program is canonical: no output is an input
                ins = tuple(takes[k] for k in form.inputs)
                line = _Line.of(form.graph, ins, known, own_away)
                if line not in equal:
                    equal[line] = line.graph if part.nodes[0].out in apart else self._straight(line, whole)
                yield Call(equal[line], ins, tuple(zip(part.outputs, form.outputs, strict=True))), part.nodes
            else:
                node, results = part
                native = whole.loops.get(node.out)
                before = () if native is None else tuple(one for one in graph.nodes if one.out in native.prologue)
                after = tuple(one for one in graph.nodes if one.op.projection and one.ins[0] == node.out)
                outs = tuple((value, k) for k, value in enumerate(results))
                yield Call(native or self._loop(node), takes, outs), (*before, node, *after)

    def _whole(self, graph: Graph, apart: Set[int]) -> _Whole:
        """Return what is known of a program before it is divided."""
        made = {node.out: self._native(node, graph, apart) for node in graph.nodes if node.op.loop}
        loops = {value: loop for value, loop in made.items() if loop is not None}
        beside = sum(loop.cost * max(loop.length, 1) for loop in loops.values())
        work = beside + sum(node_additions(node) for node in graph.nodes if node.out not in loops)
        little = not loops and additions(graph) <= LONG_NATIVE_PROGRAM
        return _Whole(loops, beside, MIN_SHARE * work if made else 0.0, little)

    def _straight(self, line: _Line, whole: _Whole) -> CompileRequest | Graph:
        """Return the request for a straight line; or its graph, to be interpreted, if compiling saves too little."""
        graph = line.graph
        small = whole.little and not line.donated and self._is_small(graph)
        if len(graph.nodes) < (MIN_NATIVE_OPS if small else MIN_OPS) or savable(graph.nodes) < whole.least:
            return graph
        if small or (whole.beside and _is_cheap(graph, whole.beside)):
            return self._compiled(self.native_request(graph))  # it writes over no inputs
        return self._compiled(self.request(graph, line.strides, line.donated))

    def request(self, graph: Graph, strides: Strides, donated: Collection[int] = ()) -> CompileRequest:
        """Return the request for a straight-line program, which may write over the inputs at `donated`."""
        on_cpu = all(a.device.type == "cpu" for a in graph.avals)
        pairs = written_over(graph, donated) if on_cpu and self.backend == "inductor" else ()
        return CompileRequest(graph, tuple(strides), self.backend, self.mode, threads=self.threads, donated=pairs)

    def native_request(self, graph: Graph) -> CompileRequest:
        """Return the request for what is compiled without Inductor."""
        strides = tuple(contiguous_strides(a.shape) for a in graph.avals)
        return CompileRequest(graph, strides, self.backend, self.mode, threads=self.threads, native=True)

    def _is_small(self, graph: Graph) -> bool:
        """Whether a straight-line program is short, and all of it has C++ of ours."""
        return self._short(graph) == set()

    def _short(self, graph: Graph) -> set[int] | None:
        """Return what the C++ compiler alone does not compile of a straight-line program, if it is short but for that.

        The compiler alone takes about a second, and Inductor six. The code is as fast: such programs spend most of
        their time in calls and in passes over memory, and both compilers leave few of these. Only the operations are
        looked at here. Writing the code, which takes 50 us an operation, tells whether all of it can be compiled.

        Returns:
            The values of LAPACK's operations and of Fourier transforms. Inductor would call the same functions, and
            take its seconds for each part between them. None: the program is not short, or has other operations
            without C++ of ours, or inputs without elements.
        """
        if not self._compiles_short or len(graph.nodes) > MAX_OPS or not all(a.size for a in graph.avals):
            return None
        libraries = set()
        for node in graph.nodes:
            if not has_code(node):
                if not (node.op.projection or str(node.attributes.get("overload")).startswith(LINEAR_ALGEBRA)):
                    return None
                libraries.add(node.out)
        return libraries if additions(graph) <= LONG_NATIVE_PROGRAM else None

    @property
    def _compiles_short(self) -> bool:
        """Whether short programs are compiled by the C++ compiler alone at all."""
        return NATIVE_PROGRAMS.on and self.alone and self.backend == "inductor" and self.mode == "default"

    def single(self, request: CompileRequest) -> Schedule:
        """Return the schedule with this request as its only call."""
        graph = request.graph
        outs = tuple((v, k) for k, v in enumerate(graph.outputs))
        return Schedule(graph.inputs, graph.outputs, (Call(self._compiled(request), graph.inputs, outs),))

    def _compiled(self, request: CompileRequest) -> CompileRequest | Graph:
        """Return a request; or its graph, to be interpreted, where the mechanism that compiles it is off."""
        if request.backend != "inductor":
            return request
        if not (NATIVE_PROGRAMS.on if request.native else INDUCTOR.on):
            return request.graph
        if request.native:
            NATIVE_PROGRAMS.used()
        else:
            INDUCTOR.used()
        return request

    def _is_interpreted(self, node: Node) -> bool:
        if node.op.effect or node.op.interpreted or node.attributes.get("overload") in self.left_out:
            return True
        return self.backend == "inductor" and bool(refusal(node))

    def _loop(self, node: Node) -> Loop:
        return Loop(node, tuple(self._body(sub) for sub in subgraphs(node.params)))

    def _native(self, node: Node, whole: Graph, apart: Set[int]) -> NativeLoop | None:
        """Return a loop that can be compiled as a whole. Loops of one body have one request, of any length."""
        if self.backend != "inductor" or not NATIVE_LOOPS.on:
            return None
        constants = tuple(one for one in whole.nodes if one.op.constant and one.out in taken_whole(node))
        for prologue in dict.fromkeys((_prologue(node, whole, apart), constants)):
            graph, ins = loop_graph(node, prologue)
            opened = of_open_length(graph)
            key = print_graph(opened), self.mode, self.threads
            cost = native_cost(node, opened, key[0])
            if cost is not None:
                request = _native_requests.get(key)
                if request is None:
                    request = self.native_request(opened)
                    _native_requests[key] = request
                NATIVE_LOOPS.used()
                made = frozenset(one.out for one in prologue)
                return NativeLoop(graph, request, ins, made, node.attributes.get("length", 0), cost)
        return None

    def _body(self, sub: Subgraph) -> Schedule:
        """Return the schedule of a body. It is made once, even if several operations have the same body."""

        def make() -> Schedule:
            graph = sub.graph
            strides = [contiguous_strides(a.shape) for a in graph.avals]
            if len(graph.nodes) < MIN_OPS:
                outs = tuple((v, k) for k, v in enumerate(graph.outputs))
                return Schedule(graph.inputs, graph.outputs, (Call(graph, graph.inputs, outs),))
            return attrs.evolve(self.schedule(graph, strides), dense=True)

        return sub.memo(("schedule", self), make)


def _is_cheap(graph: Graph, beside: int) -> bool:
    """Whether a straight line has C++ of ours, and takes little beside native loops of so many additions."""
    try:
        return generate(graph).cost <= max(LONG_STEP, MAX_SHARE * beside)
    except UnsupportedLoopError:
        return False


def native_cost(node: Node, opened: Graph, text: str) -> int | None:
    """Return what a step of a loop costs, or None if it cannot be native; `text`: of its program for any length."""

    def generated() -> int | None:
        try:
            return generate(opened).cost
        except UnsupportedLoopError:
            return None

    cost: int | None = subgraphs(node.params)[0].memo(("native", text), generated)
    return cost


def _prologue(loop: Node, graph: Graph, apart: Set[int]) -> tuple[Node, ...]:
    """Return the short operations before a loop that nothing else needs, and the constants it begins with, in order.

    The code of a loop is for any length, so no array with an axis of that length is among them.
    """
    length = loop.attributes.get("length")
    fixed = taken_whole(loop)
    used: dict[int, set[int]] = {value: {-1} for value in graph.outputs}
    for node in graph.nodes:
        for value in node.values():
            used.setdefault(value, set()).add(node.out)
    inside = {loop.out}
    found: list[Node] = []
    left = MAX_PROLOGUE
    for node in reversed(graph.nodes):
        users = used.get(node.out, set())
        if node is loop or not users & inside or (loop.out in users and node.out not in fixed):
            continue
        constant = node.op.constant and not tuple(node.values())
        takes_more = not constant and (
            not users <= inside
            or node.out in apart
            or node.op.projection
            or not has_code(node)
            or any(length in a.shape for a in (*node.instr.ins, node.instr.aval))
        )
        size = 0 if constant else node_additions(node)
        if takes_more or size > left:
            continue
        left -= size
        inside.add(node.out)
        found.append(node)
    return tuple(reversed(found))


def _without_prologues(graph: Graph, loops: Iterable[NativeLoop]) -> Graph:
    """Return a program without the operations that are part of native loops, unless something else needs them."""
    inside = {value for loop in loops for value in loop.prologue}
    kept = tuple(node for node in graph.nodes if node.out not in inside or not tuple(node.values()))
    return Graph(graph.inputs, graph.avals, kept, graph.outputs)
