"""Schedules: the ordered calls that run a program, some of which are compiled.

A program is partitioned once (`gtrace.core.backends.scheduler`) and keeps its schedule. The cache lookup, the compiler
and the executable all use the requests of that one schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import attrs
import torch

from gtrace.core.backends.executable import INTERPRETED, Compiled, Executable
from gtrace.core.backends.interpreter.interpreter import Owned, TensorFunction, bound_body, interpreter
from gtrace.core.backends.interpreter.result_strides import in_order, in_rows
from gtrace.core.backends.native.library import RefusedError
from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.runs import watched
from gtrace.core.ir.graph import Graph, Node

Results = Mapping[CompileRequest, Compiled]
"""The compiled code of each request."""


@attrs.frozen(eq=False)
class Step:
    """One call in a sequence of calls.

    Attributes:
        run: takes and returns tensors.
        ins: the values it takes.
        outs: the values it assigns: (value, index of the result).
        name: what it is, in words.
        location: the user's line of its first operation, if that is known.
    """

    run: TensorFunction
    ins: tuple[int, ...]
    outs: tuple[tuple[int, int], ...]
    name: str = ""
    location: str | None = None


@attrs.frozen(eq=False)
class CallSequence:
    """Calls that run one after the other.

    Attributes:
        steps: the calls.
        inputs, outputs: the values that the whole takes and returns.
        orders: the axes, outermost first, of values that later calls take otherwise than row by row.
        dead: for each call, the values that it takes and nothing needs after it.
    """

    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    orders: Mapping[int, tuple[int, ...]] = attrs.field(factory=dict)
    dead: tuple[tuple[int, ...], ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        needed = set(self.outputs)
        dead = []
        for step in reversed(self.steps):
            dead.append(tuple(value for value in dict.fromkeys(step.ins) if value not in needed))
            needed.update(step.ins)
        object.__setattr__(self, "dead", tuple(reversed(dead)))

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Make the calls; returns the values that are outputs.

        Results of earlier calls get the order of axes that later calls expect. Inputs are passed on as they are.
        """
        env: dict[int, torch.Tensor] = dict(zip(self.inputs, tensors, strict=True))
        ready = set(self.inputs)
        if isinstance(tensors, Owned):
            tensors.clear()
        for step, dead in watched(zip(self.steps, self.dead, strict=True)):
            for value in step.ins:
                if value not in ready:
                    env[value] = self._laid_out(value, env[value])
                    ready.add(value)
            taken = Owned([env[value] for value in step.ins])
            for value in dead:
                env.pop(value, None)
            results = step.run(taken)
            for value, place in step.outs:
                env[value] = results[place]
            del results, taken
        return [env[v] for v in self.outputs]

    def _laid_out(self, value: int, x: torch.Tensor) -> torch.Tensor:
        order = self.orders.get(value)
        return in_rows(x) if order is None else in_order(x, order)

    def timed(self, report: Callable[[str, str | None, float], None]) -> TensorFunction:
        """Return `run`, but that each call is reported: its name, its line and its seconds. A GPU is waited for."""

        def timed(step: Step) -> Step:
            def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
                start = perf_counter()
                results = step.run(tensors)
                if any(x.is_cuda for x in results):
                    torch.cuda.synchronize()
                report(step.name, step.location, perf_counter() - start)
                return results

            return attrs.evolve(step, run=run)

        return attrs.evolve(self, steps=tuple(map(timed, self.steps))).run


@attrs.frozen(eq=False)
class Loop:
    """A loop or a branch that is not compiled as a whole. It runs from Python; each of its bodies has a schedule."""

    node: Node
    bodies: tuple[Schedule, ...]

    def build(self, results: Results) -> TensorFunction:
        """Return the function of the operation, which calls the compiled bodies."""
        function = bound_body(self.node, [body.build(results) for body in self.bodies])
        return lambda values: function(*values)


@attrs.frozen(eq=False)
class NativeLoop:
    """A loop that is compiled as a whole.

    Attributes:
        graph: the loop as a program, with the constants that it alone uses.
        request: for any number of steps.
        ins: the values it takes.
        prologue: the values of straight-line operations before it that are part of its function.
        length: how many steps it has; 0 if a condition ends it.
        cost: additions that a step takes, about.
    """

    graph: Graph
    request: CompileRequest
    ins: tuple[int, ...]
    prologue: frozenset[int]
    length: int
    cost: int

    def build(self, results: Results) -> TensorFunction:
        """Return the function of the operation."""
        compiled = results.get(self.request)
        if compiled is None:
            return interpreter(self.graph)
        run = compiled.executable.run
        length = torch.tensor(self.length)
        return _refusable(lambda values: run([*values, length]), self.graph)

    @property
    def name(self) -> str:
        """The name of the operation."""
        return next(node.op.name for node in self.graph.nodes if node.op.rules.body is not None)


def _refusable(run: TensorFunction, graph: Graph) -> TensorFunction:
    """Return native code that leaves values that torch refuses to the interpreter: its error names the user's line."""
    interpret = interpreter(graph)

    def call(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        try:
            return run(values)
        except RefusedError:
            return interpret(values)

    return call


@attrs.frozen(eq=False)
class Call:
    """One call of a schedule.

    Attributes:
        what: a request, which is compiled; a graph, which is interpreted because it is too short; or a loop.
        ins, outs: see `Step`.
    """

    what: CompileRequest | Graph | Loop | NativeLoop
    ins: tuple[int, ...]
    outs: tuple[tuple[int, int], ...]

    def build(self, results: Results) -> Step:
        what = self.what
        compiled = results.get(what) if isinstance(what, CompileRequest) else None
        if isinstance(what, CompileRequest) and compiled is not None:
            run = _completed(compiled.executable.owning().run, what)
            if what.native:
                run = _refusable(run, what.graph)
        else:
            graph = what.graph if isinstance(what, CompileRequest) else what
            run = interpreter(graph) if isinstance(graph, Graph) else graph.build(results)
        return Step(run, self.ins, self.outs, self.name, self.location)

    @property
    def requests(self) -> tuple[CompileRequest, ...]:
        """What is compiled for it."""
        match self.what:
            case CompileRequest() as request:
                return (request,)
            case NativeLoop(request=request):
                return (request,)
            case Loop(bodies=bodies):
                return tuple(request for body in bodies for request in body.requests)
            case Graph():
                return ()

    @property
    def name(self) -> str:
        """What it is, in words."""
        match self.what:
            case CompileRequest(graph=graph):
                return f"compiled, {len(graph.nodes)} operations"
            case Graph(nodes=nodes):
                return f"interpreted {' '.join(node.op.name for node in nodes)}"
            case Loop(node=node):
                return f"{node.op.name} from Python"
            case NativeLoop(name=name):
                return f"native {name}"

    @property
    def location(self) -> str | None:
        """The user's line of its first operation, if that is known."""
        match self.what:
            case Graph(nodes=nodes) | CompileRequest(graph=Graph(nodes=nodes)) | NativeLoop(graph=Graph(nodes=nodes)):
                return next((node.location for node in nodes if node.location), None)
            case Loop(node=node):
                return node.location


def _completed(run: TensorFunction, request: CompileRequest) -> TensorFunction:
    """Return `run` with all results of the program: also those that are written over inputs."""
    if not request.donated:
        return run
    written = {j: k for k, j in request.donated}
    order = [written.get(j) for j in range(len(request.graph.outputs))]

    def completed(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = [None if k is None else tensors[k] for k in order]
        rest = iter(run(tensors))
        return [next(rest) if x is None else x for x in given]

    return completed


@attrs.frozen(eq=False)
class Schedule:
    """The calls that run a program.

    Attributes:
        inputs, outputs: the values that the program takes and returns.
        calls: in order.
        dense: whether inputs are made dense first, as for the body of a loop.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    calls: tuple[Call, ...]
    dense: bool = False

    @property
    def requests(self) -> tuple[CompileRequest, ...]:
        """The distinct requests, those in the bodies of loops included."""
        return tuple(dict.fromkeys(request for call in self.calls for request in call.requests))

    def build(self, results: Results) -> TensorFunction:
        """Return the function that makes the calls."""
        return self._build(results)[0]

    def _build(self, results: Results) -> tuple[TensorFunction, CallSequence | None]:
        """Return the function that makes the calls; and these, if there are several."""
        steps = tuple(call.build(results) for call in self.calls)
        inputs, outputs = self.inputs, self.outputs
        single = (
            len(steps) == 1 and steps[0].ins == inputs and steps[0].outs == tuple((v, k) for k, v in enumerate(outputs))
        )
        sequence = None if single else CallSequence(steps, inputs, outputs)
        run = steps[0].run if sequence is None else sequence.run
        if not self.dense:
            return run, sequence
        return lambda tensors: run([in_rows(t) for t in tensors]), None

    def executable(self, results: Results) -> Executable:
        """Return the executable of the program. Requests without compiled code are interpreted."""
        requests = self.requests
        if len(requests) == 1 and len(self.calls) == 1 and self.calls[0].what is requests[0] and not self.dense:
            return attrs.evolve(results[requests[0]].executable.owning(), run=self.build(results))
        # equal requests have one result
        parts = list(dict.fromkeys(results[request].executable for request in requests if request in results))
        device = next((part.device for part in parts if part.device.type != "cpu"), torch.device("cpu"))
        origin = parts[0].origin if parts else "process"
        run, calls = self._build(results)
        memory = sum(part.memory for part in parts)
        return Executable(run, origin, device, memory, calls=calls, identity=self._identity(results))

    def _identity(self, results: Results) -> str:
        names = [results[r].executable.identity if r in results else INTERPRETED for r in self.requests]
        return " ".join(names) if all(names) else ""
