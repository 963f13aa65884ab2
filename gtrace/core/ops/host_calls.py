"""Calls of Python functions as operations of a program; the interpreter makes them between compiled parts.

A call made only for its effect returns a token, an empty array. `after` makes other values depend on tokens, so the
call belongs to the program wherever these values do. Each process names its calls by its own number, so its programs
differ from those of other processes.
"""

from __future__ import annotations

import itertools
import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import attrs
import numpy
import torch

from gtrace.core.base.dtypes import DTYPES, INEXACT, SHORT
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ir.aval import Aval, Bundle, aval, bundle
from gtrace.core.ir.graph import Graph, subgraphs
from gtrace.core.ops.batching import spread
from gtrace.core.ops.declare import Sample, define, lift
from gtrace.core.trace.array import Array, wrap
from gtrace.core.trace.bind import bind, bind_all
from gtrace.core.trace.record import Trace, thread
from gtrace.core.trace.segmentation import LoopSegmentation

PROCESS = uuid.uuid4().hex[:12]
METHODS = ("sequential", "expand_dims", "broadcast_all")
"""How to compute a batch: one call per example, or one call with all batch axes. In unbatched arrays these have size 1
("expand_dims") or the size of the batch."""

TOKEN = numpy.zeros(0, numpy.uint8)
"""The result of a call made only for its effect."""

Function = Callable[[list[Any]], Sequence[Any]]


@attrs.frozen(eq=False)
class HostCall:
    """A Python function that programs call.

    Attributes:
        name: its name in errors.
        function: takes a list of NumPy arrays and returns a sequence of arrays.
    """

    name: str
    function: Function


class CallName(str):
    """The name by which programs call a function. The function is kept as long as one of its names."""

    __slots__ = ("host",)

    host: HostCall


_numbers = itertools.count()
_calls: weakref.WeakValueDictionary[str, HostCall] = weakref.WeakValueDictionary()


def register(name: str, function: Function) -> CallName:
    """Return the name by which programs call a function."""
    text = f"{PROCESS}.{next(_numbers)}"
    number = CallName(text)
    number.host = _calls[text] = HostCall(name, function)
    return number


def function_of(call: str) -> Function:
    """Return the function that an operation calls, by its attribute."""
    return _calls[call.partition(":")[0]].function


def _type(avals: tuple[Aval, ...], call: str, results: Any, levels: Any, order: int) -> Bundle:
    device = next((a.device for a in avals if a.shape), avals[0].device if avals else torch.device("cpu"))
    sizes = tuple([size for size, _, _ in levels])
    return bundle(tuple([aval((*sizes, *shape), DTYPES[dtype], device) for shape, dtype in results]))


def _run(*tensors: torch.Tensor, call: str, results: Any, levels: Any, order: int) -> tuple[torch.Tensor, ...]:
    host = _calls[call.partition(":")[0]]
    arrays = [wrap(x.detach().clone()).numpy() for x in tensors]
    # the function may record operations, but not into the running program
    before = thread.trace, thread.segmentation, thread.layout, thread.in_rule, thread.axes
    thread.trace, thread.segmentation, thread.layout = Trace(), LoopSegmentation(), None
    thread.in_rule, thread.axes = False, ()
    try:
        found = _mapped(host, levels, arrays, len(results), 0)
    finally:
        thread.trace, thread.segmentation, thread.layout, thread.in_rule, thread.axes = before
    device = next((x.device for x in tensors if x.dim()), tensors[0].device if tensors else torch.device("cpu"))
    sizes = tuple([size for size, _, _ in levels])
    return tuple([
        _fitted(host.name, value, (*sizes, *shape), dtype).to(device)
        for value, (shape, dtype) in zip(found, results, strict=True)
    ])  # fmt: skip


def _mapped(host: HostCall, levels: Any, arrays: list[Any], count: int, depth: int) -> Sequence[Any]:
    """Call a function for each example of the outermost batch or once for all, by its method.

    Args:
        depth: the number of batch axes that the arrays already have.
    """
    if not levels:
        return host.function(arrays)
    (size, flags, method), rest = levels[0], levels[1:]
    if method == "sequential":
        rows = [
            _mapped(host, rest, [x[k, ...] if flag else x for x, flag in zip(arrays, flags, strict=True)], count, depth)
            for k in range(size)
        ]
        return [numpy.stack([numpy.asarray(row[j]) for row in rows]) for j in range(count)]
    arrays = [x if flag else numpy.expand_dims(x, depth) for x, flag in zip(arrays, flags, strict=True)]
    if method == "broadcast_all":
        arrays = [numpy.broadcast_to(x, (*x.shape[:depth], size, *x.shape[depth + 1 :])) for x in arrays]
    return _mapped(host, rest, arrays, count, depth + 1)


def _fitted(name: str, value: Any, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    out = value.to_torch() if isinstance(value, Array) else torch.from_numpy(numpy.asarray(value).copy())
    if tuple(out.shape) != tuple(shape):
        raise ShapeError(message(name, f"a result of shape {tuple(shape)}", str(tuple(out.shape)), "Reshape it."))
    return out.to(DTYPES[dtype])


def _batch(
    op: Any, size: int, batched: Sequence[bool], operands: Sequence[Any], call: str, results: Any, levels: Any,
    order: int,
) -> list[tuple[Array, bool]]:  # fmt: skip
    # axes of further batches come first: the outermost level is the newest
    level = size, tuple(batched), call.partition(":")[2]
    outs = bind_all(host_call_op, operands, (call, results, (level, *levels), order))
    return [(x, True) for x in outs]


def _name(call: str) -> str:
    return _calls[call.partition(":")[0]].name


def names_called(graph: Graph) -> set[str]:
    """Return the names of the functions that a program calls, also in programs within it."""
    own = {_name(node.attributes["call"]) for node in graph.nodes if node.op is host_call_op}
    return own.union(*[names_called(sub.graph) for node in graph.nodes for sub in subgraphs(node.params)])


def _refuse(name: str) -> NoReturn:
    fix = "State one by gt.custom_vjp or gt.custom_jvp, or pass gt.stop_gradient(x)."
    raise ArgumentError(message(name, "no derivative of a Python function", "one", fix))


def _jvp(tangents: Any, *rest: Any, call: str, results: Any, levels: Any, order: int) -> list[Array | None]:
    if any(DTYPES[dtype] in INEXACT for _, dtype in results):
        _refuse(_name(call))
    return [None for _ in results]


_SAMPLE = register("sample", lambda arrays: [numpy.cumsum(arrays[0], -1)])


def _sample(x: Array) -> Array:
    return host_call(_SAMPLE, [x], [(x.shape, x.aval.dtype)])[0]


host_call_op = define(
    "host_call", _run, params=("call", "results", "levels", "order"), arity=None, effect=True, result=_type,
    vjp=lambda ct, needed, *rest, call, **_: _refuse(_name(call)), jvp=_jvp, batch=_batch,
    samples=lambda: [Sample((numpy.arange(6).reshape(2, 3),))], reference=lambda x: numpy.cumsum(x, -1),
    user=lambda x: _sample(lift("host_call", x)),
)  # fmt: skip


def host_call(
    call: CallName,
    operands: Sequence[Array],
    results: Sequence[tuple[tuple[int, ...], torch.dtype]],
    method: str = "sequential",
    order: int = -1,
) -> list[Array]:
    """Record a call of a registered function; return its results.

    Args:
        results: the shapes and dtypes of the results.
        method: one of `METHODS`.
        order: separates calls with equal operands that must both happen.
    """
    kinds = tuple([(tuple(shape), SHORT[dtype]) for shape, dtype in results])
    name = CallName(f"{call}:{method}")
    name.host = call.host
    return bind_all(host_call_op, operands, (name, kinds, (), order))


def note_effect(
    call: CallName,
    operands: Sequence[Array],
    ordered: bool,
    results: Sequence[tuple[tuple[int, ...], torch.dtype]] = (),
) -> list[Array]:
    """Record a call made for its effect in the traced function; return its results.

    Args:
        call: a registered function that returns a token after its results.
        ordered: it runs after all earlier ordered calls.
    """
    effects = thread.trace.effects
    before = [token for token, chained in effects if chained][-1:] if ordered else []
    *values, token = host_call(call, [*operands, *before], [*results, ((0,), torch.uint8)], order=len(effects))
    effects.append((token, ordered))
    return values


def _first_batched(op: Any, size: int, batched: Sequence[bool], operands: Sequence[Any], **params: Any) -> Array:
    """Batch an operation that returns its first operand; the others only come before it."""
    x, *rest = operands
    return bind(op, (x if batched[0] else spread(x, size), *rest), tuple(params.values()))


after_op = define(
    "after", lambda x, *tokens: x.clone(), arity=None, fresh=True, linear=(0,), effect=True,
    result=lambda avals: avals[0], vjp=lambda ct, needed, x, *rest: (ct, *[None] * (len(rest) - 1)),
    batch=_first_batched, samples=lambda: [Sample((numpy.arange(3.0), numpy.zeros(0)))], reference=lambda x, token: x,
    user=lambda x, token: bind(after_op, (lift("after", x), lift("after", token))),
)  # fmt: skip


def _called_jvp(tangents: Any, x: Array, *rest: Any, name: str) -> Array | None:
    if x.aval.floating:
        _refuse(name)
    return None


called_op = define(
    "called", lambda x, *inputs, name: x.clone(), params=("name",), arity=None, fresh=True,
    result=lambda avals, name: avals[0], vjp=lambda ct, needed, *rest, name: _refuse(name),
    jvp=_called_jvp, batch=_first_batched,
    samples=lambda: [Sample((numpy.arange(3), numpy.zeros(0)))], reference=lambda x, given: x,
    user=lambda x, given: bind(called_op, (lift("called", x), lift("called", given)), ("called",)),
)  # fmt: skip
"""The result of a Python function on the values of the other operands. A gradient that follows these raises."""
