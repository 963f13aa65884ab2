"""Turns gtrace's graphs into JAX's equations, and records functions as such programs: ``make_jaxpr``.

`RULES` has a function for each operation whose name or parameters differ from JAX's. It emits equations and returns
the result. `EXPANDED` has functions for operations that JAX lacks, made of operations that it has. An operation in
neither table keeps gtrace's name and parameters. Each equation can be bound, so that no operation is left out.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from gtrace.extend import (
    ArgumentError,
    Aval,
    Captured,
    DType,
    Leaf,
    ShapeDtypeStruct,
    Trace,
    aval,
    capture_like,
    captured_program,
    is_placeholder,
    message,
    new_tensor,
    thread,
    wrap,
)
from gtrace.ir import Bundle, Graph, Instr, Node, Scalar, Subgraph
from gtrace.jax.adapt import HINTS
from gtrace.jax.equation_rules import RULES, SAME
from gtrace.jax.expanded_operations import EXPANDED
from gtrace.jax.extend.core.primitives import named
from gtrace.jax.jaxprs import (
    Atom,
    ClosedJaxpr,
    DropVar,
    Jaxpr,
    JaxprEqn,
    Literal,
    RecordedJaxpr,
    ShapedArray,
    SourceInfo,
    Var,
)
from gtrace.jax.primitives import Primitive


def shaped(a: Aval) -> ShapedArray:
    """Return a type under JAX's class."""
    return ShapedArray(a.shape, a.dtype, a.weak)


class Writer:
    """Writes the equations of one program.

    Attributes:
        eqns: the equations so far.
        types: the types of the variables that they assign.
        atoms: what stands for each value of the graph: a variable or a number, or a list of them.
        location: the user's line of the operation that is being written.
        uses: how often each value of the graph is used.
    """

    def __init__(self) -> None:
        self.eqns: list[JaxprEqn] = []
        self.types: dict[Any, Aval] = {}
        self.atoms: dict[int, Any] = {}
        self.location: str | None = None
        self.uses: Counter[int] = Counter()

    def variable(self, a: Aval) -> Var:
        """Return a new variable."""
        v = Var(shaped(a))
        self.types[v] = a
        return v

    def number(self, value: Any, a: Aval) -> Literal:
        """Return a number of this type: a Python number if it is weak, else an Array."""
        if not a.weak and type(value) in (bool, int, float, complex):
            value = wrap(new_tensor(value, a.dtype, a.device))
        x = Literal(value, shaped(a))
        self.types[x] = a
        return x

    def type_of(self, atom: Any) -> Aval:
        """Return the type of a variable or number."""
        return self.types[atom]

    def several(
        self, primitive: str | Primitive, operands: Sequence[Atom], types: Sequence[Aval], /, **params: Any
    ) -> list[Any]:
        """Write an equation with several results; return their variables.

        Args:
            primitive: it, or JAX's name of one.
        """
        one = named(primitive, True) if isinstance(primitive, str) else primitive
        out = [self.variable(a) for a in types]
        info = SourceInfo(traceback=self.location)
        self.eqns.append(JaxprEqn(list(operands), list(out), one, params, source_info=info))
        return list(out)

    def __call__(
        self, name: str, operands: Sequence[Atom], shape: Sequence[int], like: Any, dtype: Any = None, /, **params: Any
    ) -> Any:
        """Write an equation with one result, of this shape, and the dtype of `like` unless another is given."""
        kind = like if isinstance(like, Aval) else self.type_of(like)
        weak = kind.weak and dtype is None
        out = self.variable(aval(tuple(shape), dtype or kind.dtype, kind.device, weak))
        info = SourceInfo(traceback=self.location)
        one = named(name)
        self.eqns.append(JaxprEqn(list(operands), [out], one, params, source_info=info))
        return out

    # -- graphs

    def operand(self, x: Any) -> Any:
        """Return what stands for an operand of a node."""
        if isinstance(x, Scalar):
            return self.number(x.value, x.aval)
        return self.atoms[x]

    def write(self, nodes: Sequence[Node]) -> None:
        """Write equations for operations."""
        for node in nodes:
            self.location = node.location
            self.atoms[node.out] = self.result(node)

    def result(self, node: Node) -> Any:
        """Write equations for one operation; return what stands for its result."""
        name = node.op.name
        if node.op.projection:
            return self.atoms[node.ins[0]][node.instr.index]  # type: ignore[index]
        operands = [self.operand(x) for x in node.ins]
        if name in SAME:
            return self.elementwise(SAME[name], operands, node.instr.aval)
        rule = RULES.get(name)
        if rule is not None:
            found = rule(self, node, *operands)
            if found is not NotImplemented:
                return found
        if name in EXPANDED:
            found = self.expanded(node, operands)
            if found is not None:
                return found
        body = node.attributes.get("body")
        if isinstance(body, Subgraph):  # an operation that is the name of a program
            params = {"name": node.attributes.get("name", name), "jaxpr": self.closed(body.graph), **_JIT}
            return self.several("jit", operands, body.graph.out_avals, **params)
        if name == "aten":
            name = node.attributes["overload"]
        operands = [self.strong(x) for x in operands]
        if isinstance(node.instr.aval, Bundle):
            return self.several(name, operands, node.instr.aval.avals, **node.attributes)
        return self(name, operands, node.instr.aval.shape, node.instr.aval, **node.attributes)

    def elementwise(self, name: str, operands: Sequence[Any], out: Aval, /, **params: Any) -> Any:
        """Write an elementwise equation. Its operands get as many axes as the result, unless they are numbers."""
        wide = [self.rank(x, len(out.shape)) for x in operands]
        extra = {"accuracy": None} if name in _WITH_ACCURACY else {}
        return self(name, wide, out.shape, out, **params, **extra)

    def strong(self, x: Any) -> Any:
        """Return an operand, a number as an Array, where nothing else says its dtype."""
        if not isinstance(x, Literal):
            return x
        a = self.type_of(x)
        return self.number(x.val, aval(a.shape, a.dtype, a.device))

    def rank(self, x: Any, ndim: int) -> Any:
        """Return an operand with leading axes of size 1; one without axes stays."""
        shape = self.type_of(x).shape
        if not shape or len(shape) == ndim:
            return x
        lead = ndim - len(shape)
        return self.broadcast(x, ((1,) * lead + shape), range(lead, ndim))

    def broadcast(self, x: Any, shape: Sequence[int], dims: Sequence[int]) -> Any:
        """Write ``broadcast_in_dim``."""
        x = self.strong(x)
        return self(
            "broadcast_in_dim", [x], shape, x, shape=tuple(shape), broadcast_dimensions=tuple(dims), sharding=None
        )

    def expanded(self, node: Node, operands: Sequence[Any]) -> Any:
        """Write the operations that compute another one; None if they do not apply."""
        types = [self.type_of(x) for x in operands]
        function = EXPANDED[node.op.name]
        try:
            graph, held = captured_program(lambda xs: [function(*xs, **node.attributes)], types)
        except NotImplementedError:
            return None
        if (
            held
            or graph.out_avals[0].shape != node.instr.aval.shape
            or graph.out_avals[0].dtype != node.instr.aval.dtype
        ):
            return None
        outer, uses = self.atoms, self.uses
        self.atoms, self.uses = dict(zip(graph.inputs, operands, strict=True)), Counter()
        for inner in graph.nodes:
            self.atoms[inner.out] = self.result(inner)
        out, self.atoms, self.uses = self.atoms[graph.outputs[0]], outer, uses
        return out

    def narrowed(self, value: Any, x: Any) -> Any:
        """Return an index as int32, as JAX has it, if only the next equation uses it and the last one converted it."""
        last = self.eqns[-1] if self.eqns else None
        if last is None or self.uses[value] != 1 or last.outvars != [x] or last.primitive.name not in _INDICES:
            return x
        a, kind = self.type_of(x), DType(torch.int32)
        key = "index_dtype" if "index_dtype" in last.params else "new_dtype"
        out = self.variable(aval(a.shape, torch.int32, a.device))
        self.eqns[-1] = last.replace(outvars=[out], params={**last.params, key: kind})
        return out

    # -- programs

    def program(self, graph: Graph) -> Jaxpr:
        """Return the body of a loop or a branch as a program."""
        return RecordedJaxpr(graph, len(graph.inputs), {}, lambda: parts(graph, len(graph.inputs), {}, ()))

    def closed(self, graph: Graph) -> ClosedJaxpr:
        """Return such a body as a program without constants."""
        return ClosedJaxpr(self.program(graph), ())


_INDICES = ("convert_element_type", "argmax", "argmin")

_WITH_ACCURACY = frozenset("exp exp2 log log1p expm1 sin cos tan tanh logistic sqrt rsqrt cbrt".split())


# -- programs within a program


@attrs.frozen
class Called:
    """A call of a jitted function within a recorded program.

    Attributes:
        name: of the function.
        start, stop: the positions of its operations in the list of the trace.
        inputs, outputs: the numbers of its arguments and results in the trace.
    """

    name: str
    start: int
    stop: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@attrs.frozen
class Nested:
    """A call of a jitted function: a range of nodes, its arguments and results, and the calls inside of it."""

    name: str
    start: int
    stop: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    calls: tuple[Nested, ...]


def nested(trace: Trace, calls: Sequence[Called]) -> tuple[Nested, ...]:
    """Return calls in terms of the nodes and values of the graph of a trace."""
    places = [k for k, x in enumerate(trace.flat) if type(x) is Instr]
    leaves = [k for k, x in enumerate(trace.flat) if type(x) is Leaf]
    value = {number: k for k, number in enumerate([*leaves, *places])}

    def values(numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys([value[n] for n in numbers if n in value]))

    def within(start: int, stop: int, rest: Sequence[Called]) -> tuple[Nested, ...]:
        inside = [c for c in rest if start <= c.start and c.stop <= stop]
        outermost = [c for c in inside if not any(_around(o, c) for o in inside)]
        return tuple(
            Nested(
                c.name, bisect.bisect_left(places, c.start), bisect.bisect_left(places, c.stop),
                values(c.inputs), values(c.outputs), within(c.start, c.stop, [o for o in inside if _around(c, o)]),
            )
            for c in outermost
        )  # fmt: skip

    def _around(outer: Called, inner: Called) -> bool:
        return outer is not inner and outer.start <= inner.start and inner.stop <= outer.stop and (
            (outer.start, outer.stop) != (inner.start, inner.stop) or calls.index(outer) > calls.index(inner)
        )  # fmt: skip

    return within(0, len(trace.flat), calls)


def _write_calls(writer: Writer, graph: Graph, start: int, stop: int, calls: Sequence[Nested]) -> None:
    """Write the equations of a range of nodes, the calls in it as ``jit``."""
    used_by: dict[int, int] = {}
    if calls:
        for k, node in enumerate(graph.nodes):
            for x in node.values():
                used_by[x] = k
        used_by.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
    at = start
    for call in sorted(calls, key=lambda c: c.start):
        if call.start < at:
            continue
        writer.write(graph.nodes[at : call.start])
        _write_call(writer, graph, call, used_by)
        at = call.stop
    writer.write(graph.nodes[at:stop])


def _write_call(writer: Writer, graph: Graph, call: Nested, used_by: dict[int, int]) -> None:
    nodes = graph.nodes[call.start : call.stop]
    made = {node.out for node in nodes}
    whole = {node.out for node in nodes if isinstance(node.instr.aval, Bundle)}
    needed = [x for node in nodes for x in node.values() if x not in made]
    inputs = [x for x in dict.fromkeys([*call.inputs, *needed]) if isinstance(writer.atoms[x], (Var, Literal))]
    inputs = [x for x in inputs if x in call.inputs or isinstance(writer.atoms[x], Var)]
    later = [v for v in made if v not in whole and used_by.get(v, -1) >= call.stop]
    outputs = list(dict.fromkeys([*[v for v in call.outputs if v in made], *sorted(later)]))
    inner = Writer()
    inner.atoms.update({x: atom for x, atom in writer.atoms.items() if x in needed})
    inner.types.update(writer.types)
    inner.uses = writer.uses
    invars = [inner.variable(writer.type_of(writer.atoms[x])) for x in inputs]
    inner.atoms.update(zip(inputs, invars, strict=True))
    _write_calls(inner, graph, call.start, call.stop, call.calls)
    results = [inner.atoms[v] for v in outputs]
    body = Jaxpr([], invars, results, _dropped(inner.eqns, results))
    params = {"name": call.name, "jaxpr": ClosedJaxpr(body, ()), **_JIT}
    given = [writer.atoms[x] for x in inputs]
    out = writer.several("jit", given, [inner.type_of(x) for x in results], **params)
    writer.atoms.update(zip(outputs, out, strict=True))


_JIT: dict[str, Any] = {
    "ctx_mesh": None, "donated_invars": (), "in_layouts": (), "in_shardings": (), "inline": False,
    "keep_unused": False, "out_layouts": (), "out_shardings": (), "compiler_options_kvs": (),
}  # fmt: skip


def _dropped(eqns: Sequence[JaxprEqn], results: Sequence[Any]) -> list[JaxprEqn]:
    """Return equations whose results that nothing uses are marked."""
    used = {v for eqn in eqns for v in eqn.invars} | set(results)
    return [
        eqn if all(v in used for v in eqn.outvars)
        else eqn.replace(outvars=[v if v in used else DropVar(v.aval) for v in eqn.outvars])
        for eqn in eqns
    ]  # fmt: skip


def parts(
    graph: Graph, count: int, held: dict[int, Any], calls: Sequence[Nested]
) -> tuple[list[Var], list[Var], list[Any], list[JaxprEqn]]:
    """Return the constants, arguments, results and equations of a graph.

    Args:
        count: the number of its inputs that are arguments; the others are constants.
        held: constants that are numbers in the equations, by the place of the input.
    """
    writer = Writer()
    writer.uses = graph.uses()
    for k, (value, a) in enumerate(zip(graph.inputs, graph.avals, strict=True)):
        writer.atoms[value] = writer.number(held[k], a) if k in held else writer.variable(a)
    _write_calls(writer, graph, 0, len(graph.nodes), calls)
    atoms = [writer.atoms[v] for v in graph.inputs]
    results = [writer.atoms[v] for v in graph.outputs]
    constants = [x for x in atoms[count:] if isinstance(x, Var)]
    return constants, atoms[:count], results, _dropped(writer.eqns, results)


def program_of(captured: Captured, trace: Trace | None = None, calls: Sequence[Called] = ()) -> ClosedJaxpr:
    """Return a captured function as JAX's program."""
    graph, count = captured.graph, len(captured.graph.inputs) - len(captured.constants)
    held = {
        count + k: x for k, x in enumerate(captured.constants) if not x.aval.shape and not is_placeholder(x)
    }  # fmt: skip
    consts = [x for k, x in enumerate(captured.constants) if count + k not in held]
    ranges = nested(trace, calls) if trace is not None and calls else ()
    return ClosedJaxpr(RecordedJaxpr(graph, count, held, lambda: parts(graph, count, held, ranges)), consts)


def make_jaxpr(
    fun: Callable[..., Any], static_argnums: int | tuple[int, ...] | None = (), *, return_shape: bool = False,
    **options: Any,
) -> Any:  # fmt: skip
    """Return a function that records `fun` for arguments like the given ones, and returns a `ClosedJaxpr`.

    The program can be run, read equation by equation, and rewritten.

    Args:
        return_shape: also return the result, with a `ShapeDtypeStruct` for each array.

    >>> import gtrace.jax as jax
    >>> closed = jax.make_jaxpr(lambda x: jax.numpy.sin(x) * 2)(1.0)
    >>> closed
    { lambda ; a:f32[]. let b:f32[] = sin a; c:f32[] = mul b 2.0:f32[] in (c,) }
    >>> jax.core.eval_jaxpr(closed.jaxpr, closed.consts, 0.0)
    [Array(0., dtype=float32)]
    """
    unknown = sorted(name for name in options if name not in HINTS and options[name])
    if unknown:
        fix = "Use gt.make_graph."
        raise ArgumentError(message("make_jaxpr", "static_argnums and return_shape", ", ".join(unknown), fix))
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums or ())

    def recorded(*args: Any, **kwargs: Any) -> Any:
        static = {k % len(args): args[k % len(args)] for k in numbers}
        traces: list[Trace] = []

        def dynamic(*rest: Any, **named: Any) -> Any:
            traces.append(thread.trace)
            thread.trace.calls = []
            given = iter(rest)
            return fun(*[static[k] if k in static else next(given) for k in range(len(args))], **named)

        rest = tuple([x for k, x in enumerate(args) if k not in static])
        captured = capture_like("make_jaxpr", dynamic, rest, kwargs)
        closed = program_of(captured, traces[0], [Called(*call) for call in traces[0].calls or ()])
        if not return_shape:
            return closed
        structs = [ShapeDtypeStruct(a.shape, a.dtype) for a in closed.out_avals]
        return closed, captured.result.unflatten(structs)

    return recorded
