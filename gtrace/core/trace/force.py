"""Forcing: runs pending operations because a value is read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gtrace.core.backends.interpreter.result_strides import in_one_form
from gtrace.core.base.config import config
from gtrace.core.base.errors import ArrayConcretizationError, message, user_location
from gtrace.core.base.events import Forced, bus
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, subgraphs
from gtrace.core.ir.op import Leaf, leaf
from gtrace.core.ir.simplify import dce
from gtrace.core.partitioner import processes
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.nan_runs import run_checked
from gtrace.core.runtime.sharded import Placed, placed
from gtrace.core.trace.array_base import ArrayBase
from gtrace.core.trace.no_value import concretization, leaked
from gtrace.core.trace.record import SETTLED, Trace, followed, followers, thread


def value_of(x: ArrayBase) -> torch.Tensor | None:
    """Return the computed value of `x`; None if it is pending or a placeholder."""
    return x._buf


def unfollowed_value(x: ArrayBase) -> torch.Tensor | None:
    """Return the computed value of `x`, unless a gradient follows it."""
    return x._buf if x._number == -1 else None


def number_of(x: ArrayBase) -> int:
    """Return the number of `x` in its trace."""
    return x._number


def is_followed(x: ArrayBase) -> bool:
    """Whether `x` is an input of a running gradient."""
    return x._number < -1


def refuse_followed(x: ArrayBase, op: str, fix: str) -> None:
    """Refuse an array that a gradient of this thread follows, for a function that has no derivative.

    Raises:
        ArrayConcretizationError: a gradient follows it.
    """
    if followers and x.aval.floating and followed(x):
        raise ArrayConcretizationError(message(op, "a value that is not being differentiated", repr(x.aval), fix))


def captured_by(x: ArrayBase) -> str | None:
    """Return the description of the function whose placeholder `x` is; None if `x` is not a placeholder."""
    return None if x._buf is not None else x._trace.capture


def is_placeholder(x: ArrayBase) -> bool:
    """Whether `x` is a value of a function that is, or was, captured."""
    return captured_by(x) is not None


def is_over(x: ArrayBase) -> bool:
    """Whether `x` is a value of a function whose capture is over."""
    return is_placeholder(x) and x._trace is not None and x._trace.closed


_in_one_form = without_modes(in_one_form)


def layout(x: ArrayBase) -> Leaf:
    """Return the aval of an Array with a value, with the strides of its buffer."""
    kind = x._leaf
    if kind is None:
        assert x._buf is not None
        if 1 in x._buf.shape:
            x._buf = _in_one_form(x._buf)
        x._leaf = kind = leaf(x.aval, x._buf.stride())
    return kind


def materialize(x: ArrayBase, cause: str) -> torch.Tensor:
    """Return the value of `x`. If it is pending, run all pending operations.

    Raises:
        ConcretizationError: `x` is a placeholder of a function being traced.
        LeakError: `x` is a placeholder whose trace has ended.
        DonatedError: `x` was donated.
        ExecutionError: torch rejected values.
    """
    # read these before the value: a thread that computes it sets the value first, then clears these
    trace, number = x._trace, x._number
    tensor = x._buf
    if tensor is not None:
        if thread.segmentation.stretch.noted:
            _reread(x, cause)
        return tensor
    if trace.capture is not None:
        return _known_value(x, cause)
    if trace is thread.trace:
        flush(cause)
        if x._buf is not None:
            return x._buf
    # pending in another thread, or part of a failed program: compute x alone
    program = trace.decode([number])
    tensors = _run(program.graph, program.strides, trace.inputs(program), cause)
    if x._buf is None:
        if isinstance(tensors, Placed):
            x.aval = tensors.avals[0]
        x._buf = tensors[0]
    return x._buf


def _run(graph: Graph, strides: Sequence[tuple[int, ...]], inputs: list[torch.Tensor], cause: str) -> Any:
    """Run a program that is not the pending one of this thread."""
    if Forced in bus.wanted:
        bus.emit(Forced(cause, user_location(), len(graph.nodes)))
    if config.current.debug_nans:
        return run_checked(graph, inputs)
    route = engine.cut(graph, strides)
    return placed(engine.call(route, inputs), route.avals)


def sources(x: ArrayBase) -> list[ArrayBase] | None:
    """Return the Arrays with values that a value of a function under `vmap` follows from; None: it has no value yet."""
    trace = x._trace
    if trace.closed or not (trace.knows or trace.given is not None):
        return None
    found: list[ArrayBase] = []
    flat, todo, seen = trace.flat, [x._number], set()
    while todo:
        at = todo.pop()
        if at < 0 or at in seen:  # a Python number, or met before
            continue
        seen.add(at)
        entry = flat[at]
        if entry.__class__ is Leaf:
            value = _argument(trace, flat[at + 1])
            above = [value] if not is_placeholder(value) else None if value._trace is trace else sources(value)
            if above is None:
                return None
            found += above
        elif entry.op.effect or entry.op.rules.named is not None or (thread.axes and subgraphs(entry.params)):
            return None
        else:
            todo += flat[at + 1 : at + 1 + len(entry.ins)]
    return found


def _argument(trace: Trace, slot: int) -> ArrayBase:
    """Return the input of a captured function in a slot: what a placeholder stands for, where that is known."""
    given = trace.given
    value: ArrayBase = trace.leaves[slot] if given is None or slot >= len(given) else given[slot]
    return value


def _known_value(x: ArrayBase, cause: str) -> torch.Tensor:
    """Return the value of a placeholder that follows from values alone. For the errors see `materialize`."""
    trace = x._trace
    given = sources(x)
    follows = bool(given and followers) and any(map(followed, given or ()))
    if given is None or (follows and cause == "thread"):
        raise leaked(x) if trace.closed else concretization(x, cause)
    program = trace.decode([x._number])
    graph = dce(program.graph)
    used = {*graph.outputs, *[value for node in graph.nodes for value in node.values()]}
    places = [k for k, value in enumerate(graph.inputs) if value in used]
    leaves = [_argument(trace, program.slots[k]) for k in places]
    inputs = [materialize(leaf, cause) for leaf in leaves]
    avals = tuple([leaf.aval for leaf in leaves])
    graph = Graph(tuple([graph.inputs[k] for k in places]), avals, graph.nodes, graph.outputs)
    tensor = _run(graph, [layout(leaf).strides for leaf in leaves], inputs, cause)[0]
    if not follows and trace.given is None:  # else its derivative goes by the program of the function
        x._buf = tensor
    return tensor


def settle(trace: Trace, outputs: Sequence[ArrayBase] = (), start: int = 0) -> None:
    """Compute Arrays that somebody kept of a function that is being traced, if they follow from values alone.

    Args:
        outputs: the results of the function, which are computed with its program.
        start: the number of results that were recorded before.
    """
    returned = {id(x) for x in outputs}
    for reference in trace.refs[start:]:
        kept = reference()
        if kept is None or id(kept) in returned or kept.aval.__class__ is not Aval:
            continue
        if kept._buf is None and sources(kept) is not None:
            materialize(kept, "vmap")
        if kept._buf is not None:
            kept._trace, kept._number = SETTLED, -1


@contextlib.contextmanager
def with_values() -> Iterator[None]:
    """Return a block in a function that is being traced: what follows from values there has a value, too.

    What follows from placeholders is recorded as usual.
    """
    trace = thread.trace
    knows, start = trace.knows, len(trace.refs)
    trace.knows = trace.capture is not None
    try:
        yield
        if trace.knows:
            settle(trace, start=start)
    finally:
        trace.knows = knows


def whole(x: ArrayBase, cause: str) -> torch.Tensor:
    """Return the whole value of `x`, gathered from processes if needed. For the errors see `materialize`."""
    tensor = materialize(x, cause)
    sharding = x.aval.sharding
    if sharding is None or (sharding.is_fully_replicated and sharding.mesh.size == processes.count()):
        return tensor
    return engine.gathers.whole(layout(x), tensor)


def flush(cause: str) -> None:
    """Run the pending program of this thread; assign results to the Arrays that are alive."""
    trace = thread.trace
    live: list[ArrayBase] = []  # Arrays that user code holds and that have no value yet
    numbers: list[int] = []
    for reference in trace.refs:
        held = reference()
        if held is not None and held._buf is None and held.aval.__class__ is Aval:
            live.append(held)
            numbers.append(held._number)
    held = None  # its value may be unnecessary from here on
    if not live:
        if trace.tape is None:
            thread.begin()
            _follow(cause, 0)
        return
    if thread.trace is not trace:
        return  # a signal handler has run it
    if Forced in bus.wanted:
        bus.emit(Forced(cause, user_location(), len(trace.refs)))
    thread.begin()
    trace.closed = True
    if thread.segmentation.stretch.noted:
        _follow(cause, len(trace.refs))
    if (config.process if config.blocks() is None else config.current).debug_nans:
        # already checked when recorded; a rewritten program would name other operations
        program = trace.decode(numbers)
        results = run_checked(program.graph, trace.inputs(program))
    else:
        results = engine.recorded(trace, numbers)
    if results.__class__ is Placed:
        for x, a in zip(live, results.avals, strict=True):
            x.aval = a
    mark = -1 if trace.tape is None else thread.mark  # tells gradients whether they follow these Arrays
    for x, tensor in zip(live, results, strict=True):
        x._buf = tensor
        x._trace = SETTLED
        x._number = mark


def _follow(cause: str, pending: int) -> None:
    """Tell the thread's loop segmentation that a trace ended because a value was read."""
    if thread.segmentation.stretch.noted and cause not in ("period", "budget"):
        thread.segmentation.looked(pending)
        thread.set_limit()


def _reread(x: ArrayBase, cause: str) -> None:
    """Tell the thread's loop segmentation that a known value was read, which an earlier cut may have computed.

    Processes that run one program together may read different values, but must cut it at the same places.
    """
    pending = len(thread.trace.refs)
    if thread.trace.capture is None and not processes.launched() and thread.segmentation.reread(x, pending):
        _follow(cause, pending)


def evaluate(arrays: Sequence[ArrayBase], cause: str) -> None:
    """Compute the values of `arrays`, and of everything that is pending with them."""
    for x in arrays:
        if x._buf is None:
            materialize(x, cause)
