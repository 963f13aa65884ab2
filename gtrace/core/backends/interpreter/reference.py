"""The reference of a program: torch's function of each operation, one after the other. Every form must agree with it.

`reference` computes in the dtypes of the program. `in_float64` computes with floats of 64 bits instead, to tell how
exact the reference is; `gtrace.core.backends.interpreter.noise` tells what rounding can change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from gtrace.core.backends.interpreter.interpreter import Around, Owned, TensorFunction, bound_body, refuse_at
from gtrace.core.backends.interpreter.run_errors import is_out_of_memory
from gtrace.core.backends.runs import watched
from gtrace.core.base.devices import CPU, number_tensor
from gtrace.core.base.dtypes import FLOAT8, FLOATS
from gtrace.core.base.rounding import is_inexact, rounded
from gtrace.core.base.spill import Kept, Spill
from gtrace.core.ir.aval import Aval, Bundle
from gtrace.core.ir.graph import Graph, Node, Subgraph, subgraphs
from gtrace.core.ir.op import Instr
from gtrace.core.ir.simplify import dce

WIDE = dict.fromkeys((FLOATS | FLOAT8) - {torch.float64}, torch.float64) | {torch.complex64: torch.complex128}
"""The dtypes of which there is a wider one."""

_NAMES = {str(kind).removeprefix("torch."): str(wide).removeprefix("torch.") for kind, wide in WIDE.items()}


def reference(graph: Graph, around: Around | None = None) -> TensorFunction:
    """Return a function that runs a graph as it stands.

    Nothing is fused, reordered, specialized or written over. A value is freed after its last use, and so
    are inputs that are given away (`Owned`).

    Args:
        around: takes a node and the function that computes it, and returns the function to call instead. It sees the
            operations in loops and branches too.

    Raises (when run):
        ExecutionError: torch refused an operation because of the values.
    """
    graph = dce(graph)
    steps = _steps(graph, around, set(graph.outputs))

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        env: dict[int, Any] = dict(zip(graph.inputs, tensors, strict=True))
        if isinstance(tensors, Owned):
            tensors.clear()
        for node, function, operands, dead in watched(steps):
            try:
                env[node.out] = function(*[env[x] if x.__class__ is int else x for x in operands])
            except (RuntimeError, IndexError) as error:
                env.clear()  # the error refers to this frame, and would keep its values
                refuse_at(node, error)
            for value in dead:
                del env[value]
        return [env[value] for value in graph.outputs]

    return run


def visit(
    graph: Graph,
    inputs: Sequence[Kept],
    arrived: Callable[[int, torch.Tensor], None],
    spill: Spill,
    around: Around | None = None,
) -> None:
    """Run a graph as it stands, and hand over each result when it is there. Nothing is kept after its last use.

    Args:
        inputs: they are still there afterwards.
        arrived: takes the place of a result, and the result.
        spill: keeps the values between their operations.
        around: see `reference`.

    Raises:
        ExecutionError: torch refused an operation because of the values.
    """
    graph = dce(graph)
    places: dict[int, list[int]] = {}
    for k, value in enumerate(graph.outputs):
        places.setdefault(value, []).append(k)
    env: dict[int, Any] = dict(zip(graph.inputs, inputs, strict=True))
    given = set(graph.inputs)
    for value in given & places.keys():
        for k in places[value]:
            arrived(k, env[value].get())
    last = {value for node in graph.nodes for value in node.values()}
    for node, function, operands, dead in watched(_steps(graph, around, set())):
        try:
            made = function(*[_value(env[x]) if x.__class__ is int else x for x in operands])
        except (RuntimeError, IndexError) as error:
            env.clear()
            refuse_at(node, error)
        for k in places.get(node.out, ()):
            arrived(k, made)
        if node.out in last:
            env[node.out] = spill.keep(made) if isinstance(made, torch.Tensor) else made
        del made
        for value in dead:
            kept = env.pop(value)
            if kept.__class__ is Kept and value not in given:
                spill.drop(kept)


def _value(x: Any) -> Any:
    return x.get() if x.__class__ is Kept else x


def _steps(
    graph: Graph, around: Around | None, kept: Collection[int]
) -> list[tuple[Node, Callable[..., Any], list[Any], list[int]]]:
    """Return the steps of a run: the operation, its function, its operands, and what is not used any more.

    Args:
        kept: the values that are still there after the last step.
    """
    last = {value: k for k, node in enumerate(graph.nodes) for value in node.values() if value not in kept}
    steps = []
    for k, node in enumerate(graph.nodes):
        operands = [x if isinstance(x, int) else _number(node, x) for x in node.ins]
        dead = [value for value in dict.fromkeys(node.values()) if last.get(value) == k]
        function = _function(node, around)
        steps.append((node, function if around is None else around(node, function), operands, dead))
    return steps


def _kept_reference(sub: Subgraph) -> TensorFunction:
    made: TensorFunction = sub.memo("reference", lambda: reference(sub.graph))
    return made


def _number(node: Node, x: Any) -> torch.Tensor:
    return number_tensor(x.value, x.aval.dtype, CPU if node.op.host_numbers else x.aval.device)


def instruction_call(instr: Instr) -> Callable[..., Any]:
    """Return torch's function of an instruction with its attributes, as `reference` calls it. The instruction keeps it.

    A named call runs by its kernel, as in torch, if there is one. A thread that makes it too makes an equal one.
    """
    found = instr.call
    if found is None:
        node = Node(instr, (), 0)
        kernel = None
        if instr.op.lowered and instr.op.rules.direct is not None:
            kernel = instr.op.rules.direct(instr.ins, **node.attributes)
        found = kernel or _function(node, None)
        object.__setattr__(instr, "call", found)
    return found


def _function(node: Node, around: Around | None, **changed: Any) -> Callable[..., Any]:
    """Return torch's function of an operation, with its attributes, of which some may be others."""
    if node.op.rules.body is not None:
        if around is None:
            return bound_body(node, list(map(_kept_reference, subgraphs(node.params))))
        return bound_body(node, [reference(sub.graph, around) for sub in subgraphs(node.params)])
    function, attributes = node.instr.kernel(), node.attributes | changed
    return functools.partial(function, **attributes) if attributes else function


def working_bytes(graph: Graph) -> tuple[int, int]:
    """Return how many bytes a run takes, about, with its inputs and results; and how many its largest operation."""
    kinds = graph.value_avals()
    last = {value: k for k, node in enumerate(graph.nodes) for value in node.values()}
    last |= dict.fromkeys(graph.outputs, len(graph.nodes))
    live = peak = sum(a.nbytes for a in graph.avals)
    largest = 0
    for k, node in enumerate(graph.nodes):
        used = {*node.values(), node.out}
        largest = max(largest, sum(kinds[value].nbytes for value in used))
        live += kinds[node.out].nbytes
        peak = max(peak, live)
        live -= sum(kinds[value].nbytes for value in used if last.get(value, k) == k)
    return peak, largest


def in_float64(graph: Graph) -> TensorFunction:
    """Return a function that runs a graph with each float in float64, and each complex number in complex128."""
    run = reference(graph, wide)
    return lambda tensors: [widened(x) for x in run(tensors)]


def narrows(node: Node) -> bool:
    """Whether an operation rounds floats to a shorter dtype. The program says so: every form rounds there."""
    kinds = [*avals_of(node.instr.ins[0]), *avals_of(node.instr.aval)] if node.op.moves else []
    if len(kinds) != 2 or not all(is_inexact(a.dtype) for a in kinds):
        return False
    before, after = (torch.finfo(a.dtype).eps for a in kinds)
    return before < after


def is_elementwise(node: Node) -> bool:
    """Whether elements of the result follow from one element of each operand."""
    overload = node.attributes.get("overload")  # of torch's operators
    if overload is None:
        return node.op.elementwise
    found: Any = functools.reduce(getattr, overload.split("."), torch.ops)
    return torch.Tag.pointwise in found.tags


def _rounded_to(dtype: torch.dtype, x: Any) -> Any:
    """Return an attribute with the numbers in it rounded to a dtype."""
    if isinstance(x, tuple):
        return tuple([_rounded_to(dtype, y) for y in x])
    return rounded(x, dtype) if isinstance(x, float) else x


def wide(node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a node in float64, or complex128; see `Around`.

    An operation that cannot do that runs in its own dtype, and its results are converted. What the program rounds to a
    shorter dtype is rounded. Some of torch's operators round their numbers to the dtype of the elements, and others do
    not. The results tell.
    """
    if narrows(node):
        return lambda x: widened(function(x))
    made = _widely(node, function)
    attributes = node.attributes if node.op.rules.body is None and is_elementwise(node) else {}
    kind = node.instr.ins[0].dtype if attributes and node.instr.ins else torch.bool
    changed = {k: _rounded_to(kind, v) for k, v in attributes.items()} if is_inexact(kind) else attributes
    if changed == attributes:
        return made
    other = _widely(node, _function(node, None, **changed))

    def nearest(*operands: Any) -> Any:
        found, nearer = made(*operands), other(*operands)
        own = function(*[_as(x, a) for x, a in zip(operands, node.instr.ins, strict=True)])
        told = not torch.equal(found.to(own.dtype), own) and torch.equal(nearer.to(own.dtype), own)
        return nearer if told else found

    return nearest


def _widely(node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a node in float64, if it can do that, with the numbers that it has."""
    plain = function if node.op.rules.body is None else _function(node, None)
    wanted = {k: _NAMES[v] for k, v in node.attributes.items() if isinstance(v, str) and v in _NAMES}
    if node.op.rules.body is None and wanted:
        function = _function(node, None, **wanted)
    dtypes = [WIDE.get(a.dtype, a.dtype) for a in avals_of(node.instr.aval)]

    def call(*operands: Any) -> Any:
        operands = tuple([_each(widened, x) for x in operands])
        try:
            out = function(*operands)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if is_out_of_memory(error):
                raise
        else:
            if [x.dtype for x in listed(out)] == dtypes:
                return out
        own = [_as(x, a) for x, a in zip(operands, node.instr.ins, strict=True)]
        return _each(widened, plain(*own))

    return call


def avals_of(kind: Any) -> Sequence[Aval]:
    """Return the types of all tensors of an operand or a result."""
    return kind.avals if isinstance(kind, Bundle) else (kind,)


def widened(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the wider dtype, if there is one."""
    return x.to(WIDE.get(x.dtype, x.dtype))


def _as(x: Any, kind: Any) -> Any:
    """Return an operand in its own dtype."""
    if isinstance(kind, Bundle):
        return [y.to(a.dtype) for y, a in zip(x, kind.avals, strict=True)]
    return x.to(kind.dtype)


def _each(function: Callable[[torch.Tensor], torch.Tensor], x: Any) -> Any:
    return function(x) if isinstance(x, torch.Tensor) else [function(y) for y in x]


def listed(out: Any) -> list[torch.Tensor]:
    """Return all tensors of a result."""
    return [out] if isinstance(out, torch.Tensor) else list(out)
