"""``linear_transpose``: transposes a linear function, given only the shapes of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gtrace.core.base import tree
from gtrace.core.base.devices import as_device
from gtrace.core.base.errors import ArgumentError, DtypeError, message, user_location
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.simplify import dce
from gtrace.core.ops.shape import as_shape, constant
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import capture, replay
from gtrace.core.trace.convert import lift
from gtrace.core.trace.promotion import as_dtype
from gtrace.core.trace.record import thread_has
from gtrace.core.transform.arguments import is_array, lift_outputs, like, name_of
from gtrace.core.transform.tape import pull, record

__all__ = ["linear_transpose"]

_NAME = "linear_transpose"


def linear_transpose(f: Callable[..., Any], *primals: Any) -> Callable[[Any], Any]:
    """Return the transpose of a linear function: it maps a cotangent of the output to cotangents of the arguments.

    Args:
        f: a function that is linear in all its arguments together. It runs once, on placeholders.
        primals: pytrees of floating arrays or `ShapeDtypeStruct`; only shapes and dtypes are used.

    Returns:
        A function from a pytree like the output of `f` to a tuple with one cotangent per primal.

    Raises:
        ArgumentError: the derivative of `f` depends on its arguments, or an operation has no derivative. (The transpose
            raises it if a cotangent's structure, shape or dtype is not the output's.)
        DtypeError: an argument or an output is not floating.

    >>> transposed = gt.linear_transpose(lambda x: 3 * x[:2], gt.ShapeDtypeStruct(3, "float32"))
    >>> transposed(gt.array([1., 10.]))
    (Array([ 3., 30.,  0.], dtype=float32),)
    """
    if not callable(f):
        raise ArgumentError(message(_NAME, "a function", type(f).__name__, "Pass a callable."))
    leaves, structure = tree.flatten(primals)
    paths = tree.paths(primals)
    avals = [_aval(f"args{path}", leaf) for path, leaf in zip(paths, leaves, strict=True)]
    where = f"{_NAME}({name_of(f)}) called at {user_location()}"
    captured = capture(lambda inputs: lift_outputs(_NAME, f(*structure.unflatten(inputs))), avals, where)
    graph, outs, count = dce(captured.graph), captured.graph.out_avals, len(avals)
    for a in outs:
        if not a.floating:
            raise DtypeError(message(_NAME, "floating outputs", repr(a), "Cast it inside f."))
    _check_rules(graph, count)

    def backward(inputs: Sequence[Array]) -> tuple[list[Array], None]:
        xs, rest = inputs[:count], inputs[count:]
        results, tape = record(xs, lambda copies: replay(graph, [*copies, *rest[len(outs) :]]))
        with thread_has(linear=True):
            return pull(tape, results, rest[: len(outs)]), None

    constants = captured.constants
    pulled = capture(backward, [*avals, *outs, *[x.aval for x in constants]], where)
    program = dce(pulled.graph)
    ins = set(program.inputs[:count])
    if not ins.isdisjoint([*program.outputs, *[value for node in program.nodes for value in node.values()]]):
        got = "one whose derivative depends on its arguments"
        raise ArgumentError(message(_NAME, "a linear function", got, "Use gt.vjp, at a point."))
    program = Graph(program.inputs[count:], program.avals[count:], program.nodes, program.outputs)

    def transposed(cotangent: Any) -> Any:
        cts = like(_NAME, "cotangent", cotangent, captured.result, [constant(0.0, a) for a in outs])
        return structure.unflatten(replay(program, (*cts, *constants, *pulled.constants)))

    return transposed


def _aval(path: str, leaf: Any) -> Aval:
    if not is_array(leaf):
        got = f"{type(leaf).__name__} at {path}"
        raise ArgumentError(message(_NAME, "arrays or ShapeDtypeStructs", got, "Close over it instead."))
    if type(leaf) is not Array and hasattr(leaf, "shape"):
        device = as_device(getattr(leaf, "device", None))
        found = aval(as_shape(_NAME, tuple(leaf.shape)), as_dtype(leaf.dtype), device)
    else:
        found = lift(_NAME, leaf).aval
    if not found.floating:
        raise DtypeError(message(_NAME, "floating arguments", f"{found!r} at {path}", "Use x.astype(gt.float32)."))
    return found


def _check_rules(graph: Graph, count: int) -> None:
    """Raise an ArgumentError for an operation without a derivative between a program's inputs and outputs."""
    reached = set(graph.inputs[:count])
    for node in graph.nodes:
        if reached.isdisjoint(node.values()):
            continue
        reached.add(node.out)
        reason = node.op.rules.nondiff
        if reason is not None and not node.op.projection:
            raise ArgumentError(message(_NAME, "a linear function", f"{node.op.name}: {reason}", "Use gt.vjp."))
