"""Recording an operation: `bind`. Most operations take its fast paths, in `gtrace.core.trace.fast`."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core.base.config import config
from gtrace.core.base.dtypes import FLOAT8, SHORT
from gtrace.core.base.errors import ClosureError, DtypeError, LeakError, message, user_location, users_line
from gtrace.core.base.events import Recorded, bus
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.ir.aval import Aval, aval, contiguous_strides
from gtrace.core.ir.graph import Scalar, has_rules
from gtrace.core.ir.op import REGISTRY, Instr, Leaf, Op, Params, define, leaf
from gtrace.core.ir.subgraph import plain_instr
from gtrace.core.trace.array import Array, fresh
from gtrace.core.trace.force import flush, layout, materialize
from gtrace.core.trace.no_value import leaked
from gtrace.core.trace.record import RegionLayout, Trace, followed, followers, thread
from gtrace.core.trace.segmentation import BEGINNING, SHORTEST

_ref = weakref.ref
_new = object.__new__


@functools.lru_cache(maxsize=4096)
def _whole_leaf(a: Aval) -> Leaf:
    """Return the `Leaf` of an input of a captured trace. It stands for a contiguous input."""
    return leaf(a, contiguous_strides(a.shape))


def placeholder(trace: Trace, a: Aval) -> Array:
    """Return a new input of a captured trace."""
    out: Array = _new(Array)
    out.aval = a
    out._buf = None
    out._trace = trace
    out._leaf = None  # only Arrays with a value have one, and calls of jitted functions read it
    out._number = trace.leaf(out, _whole_leaf(a))
    return out


def as_input(trace: Trace, x: Array) -> int:
    """Return the number of `x`, computed elsewhere, as an input of `trace`; raise if its trace is over."""
    tensor = x._buf
    if tensor is None and id(x) in thread.stand_ins:
        return _stand_in(trace, x)
    if tensor is None or (x._number < -1 and x._number != thread.mark):
        check_thread(x)
    if trace.capture is not None:
        if tensor is None and x._trace.capture is not None and x._trace.closed:
            raise leaked(x)
        return trace.leaf(x, _whole_leaf(x.aval))
    if tensor is None:
        tensor = materialize(x, "thread")
    # `Trace.leaf`, inlined: every operand from outside passes here
    number = trace.numbers.get(id(tensor))
    if number is None:
        kind = x._leaf
        if kind is None:
            kind = layout(x)
            if x._buf is not None:
                tensor = x._buf  # perhaps another view, with the strides that follow from its shape
        leaves, flat = trace.leaves, trace.flat
        leaves += (tensor,)
        slot = len(leaves) - 1
        flat += (kind, slot)
        number = len(flat) - 2
        trace.numbers[id(tensor)] = number
        trace.held += tensor.nbytes
        if trace.held > trace.allowed:
            trace.check_held_bytes()
    return number


def _stand_in(trace: Trace, x: Array) -> int:
    """Return the number of what a rule uses in place of a placeholder of a trace that is over."""
    found: Any = thread.stand_ins[id(x)]
    if followed(found):
        got = "a derivative of a rule with respect to a value that it closes over"
        raise ClosureError(message("custom_jvp", "a rule of its arguments alone", got, "Pass it as an argument."))
    number: int = found._number if found._trace is trace else as_input(trace, found)
    return number


def check_thread(x: Array) -> None:
    """Raise for an Array that a gradient in another thread follows, because that gradient would miss this operation."""
    for mark, follows in list(followers.values()):
        if mark != thread.mark and follows(x):
            raise LeakError(
                f"[grad] expected {x.aval!r}, which a gradient follows, in the thread of that gradient, got it in"
                " another thread, where the gradient sees no operations. Compute with it in its own thread, or hand"
                f" gt.stop_gradient(x) to the other one, as a constant. (at {user_location()})"
            )


def bind(op: Op, operands: Sequence[Array | Scalar], params: Params = ()) -> Array:
    """Record ``op(*operands, **params)``; return its pending result. What does not fit raises now, not when it runs."""
    avals = tuple([x.aval for x in operands])
    instr = op.table.get((exact_key(params) if op.numbers else params, *avals) if params else avals)
    if instr is None:
        if len({a.device for a in avals}) > 1:
            operands = _joined(op, operands)
            avals = tuple([x.aval for x in operands])
        try:
            instr = op.instr(params, avals)
        except DtypeError:
            small = next((a.dtype for a in avals if a.dtype in FLOAT8), None)
            if small is None or not config.current.jax_results:
                raise
            return _through_float32(op, operands, params, small)
    return emit(instr, operands)


def _through_float32(op: Op, operands: Sequence[Array | Scalar], params: Params, small: torch.dtype) -> Array:
    """Record an operation that torch has not for float8: in float32, with a floating result rounded, as in JAX."""
    cast, single = REGISTRY["astype"], torch.float32
    wide: list[Array | Scalar] = []
    for x in operands:
        if x.aval.dtype not in FLOAT8:
            wide.append(x)
        elif x.__class__ is Scalar:
            wide.append(Scalar(x.value, aval(x.aval.shape, single, x.aval.device, x.aval.weak)))
        else:
            wide.append(bind(cast, (x,), (SHORT[single],)))
    out = bind(op, wide, params)
    return bind(cast, (out,), (SHORT[small],)) if out.aval.dtype is single else out


def _joined(op: Op, operands: Sequence[Array | Scalar]) -> list[Array | Scalar]:
    """Return operands after numbers and indices have moved to the device of the others."""
    device = joint_device([x.aval for x in operands])
    if device is None:
        return list(operands)
    joins = REGISTRY["on_device"]

    def moves(k: int, a: Aval) -> bool:
        index = a.device.type == "cpu" and k > 0 and op.indices and a.dtype is torch.int64
        return a.device != device and (index or follows(a))

    return [
        bind(joins, (x,), (str(device),)) if x.__class__ is Array and moves(k, x.aval) else x
        for k, x in enumerate(operands)
    ]


def follows(a: Aval) -> bool:
    """Whether a value moves to the device of others: a 0-d array on the CPU, as in torch, or a weak one on a GPU."""
    return not a.shape and (a.weak or a.device.type == "cpu")


def joint_device(avals: Sequence[Aval]) -> torch.device | None:
    """Return the device where operands on the CPU and on one GPU meet; None if there is no GPU, or several.

    It is the GPU, unless only numbers are on the GPU.
    """
    fixed = {a.device for a in avals if not follows(a)}
    others = {a.device for a in avals if a.device.type != "cpu"}
    if len(others) != 1:
        return None
    return fixed.pop() if len(fixed) == 1 else others.pop()


def emit(instr: Instr, operands: Sequence[Array | Scalar]) -> Array:
    """Record an instruction that is known to fit `operands`."""
    trace = thread.trace
    step: list[Any] = [instr]
    for x in operands:
        if x.__class__ is Scalar:
            step.append(trace.scalar(x))
        else:
            step.append(x._number if x._trace is trace else as_input(trace, x))  # type: ignore[union-attr, arg-type]
    size, flat = len(step), trace.flat
    flat += step
    number = len(flat) - size
    out = new_pending(trace, instr.aval, number)
    trace.refs.append(_ref(out))
    if trace.tape is not None:
        trace.tape.append((instr, tuple(operands), out))
    if out._number >= trace.limit:
        on_recorded(trace, instr, out)
    return out


def bind_all(op: Op, operands: Sequence[Array], params: Params = ()) -> list[Array]:
    """Record an operation with several results; return them.

    The list omits user-defined derivative rules in sub-graphs, so they do not change the program's key.
    """
    avals = tuple([x.aval for x in operands])
    if has_rules(params):
        plain = plain_instr(op, params, avals)
        instr = Instr(plain.op, params, plain.ins, plain.aval, plain)
    else:
        instr = op.instr(params, avals)
    return emit_all(instr, operands)


def emit_all(instr: Instr, operands: Sequence[Array]) -> list[Array]:
    """Record an instruction with several results, and a `project` operation for each result."""
    trace = thread.trace
    recorded = instr.plain or instr
    step = [recorded, *[x._number if x._trace is trace else as_input(trace, x) for x in operands]]
    size, flat = len(step), trace.flat
    flat += step
    number = len(flat) - size
    whole = new_pending(trace, instr.aval, number)
    if recorded is not instr:
        trace.special[number] = instr
    trace.refs.append(_ref(whole))
    if trace.tape is not None:
        trace.tape.append((instr, tuple(operands), whole))
    results = []
    for k, a in enumerate(instr.aval.avals):
        taking = project.instr((k,), (instr.aval,))
        flat += (taking, whole._number)
        number = len(flat) - 2
        out = new_pending(trace, a, number)
        trace.refs.append(_ref(out))
        if trace.tape is not None:
            trace.tape.append((taking, (whole,), out))
        results.append(out)
    if trace.locations is not None:
        here = thread.origin or user_location()
        for x in (whole, *results):
            trace.locations[x._number] = here
    if number >= trace.limit:
        on_recorded(trace, instr, whole)
    return results


def _project_result(avals: tuple[Any, ...], index: int) -> Aval:
    return avals[0].avals[index]


project = define(
    "project", lambda results, index: results[index], params=("index",), projection=True, result=_project_result,
    nondiff="derivatives treat it together with the operation whose result it takes out",
    elsewhere="test_control: operations with several results",
)  # fmt: skip


def new_pending(trace: Trace, a: Any, number: int) -> Array:
    """Return an Array for a result of `trace`."""
    out: Array = _new(Array)
    out.aval = a
    out._trace = trace
    out._number = number
    out._buf = None
    out._leaf = None
    return out


def another(x: Array) -> Array | None:
    """Return another Array of the same value; None if a gradient or capture must see the copy as an operation."""
    trace = x._trace
    if x._buf is not None:
        return fresh(x) if x._number == -1 else None
    if trace is not thread.trace or trace.tape is not None or trace.capture is not None:
        return None
    out = new_pending(trace, x.aval, x._number)
    trace.refs.append(_ref(out))
    return out


def distinct(x: Array) -> Array:
    """Return `x` as the result of a function that has nothing to change: another Array, so that donating `x` spares it.

    In gradients and captured functions it is `x` itself. Nothing is donated there.
    """
    found = another(x)
    return x if found is None else found


def on_recorded(trace: Trace, instr: Instr, out: Array) -> None:
    """Handle everything beyond recording: logs, locations, eager mode, budget."""
    if Recorded in bus.wanted:
        bus.emit(Recorded(instr.op.name, out._number, repr(instr.aval)))
    locations = trace.locations
    if locations is not None:
        # two frames up is the caller of the recording function
        locations[out._number] = thread.origin or users_line(sys._getframe(2))
    if thread.layout is not None:
        _lay_out(trace, thread.layout, instr, out)
    if trace.capture is None:
        if config.current.eager:
            flush("eager")
        else:
            overflow(trace, out._number)


def _lay_out(trace: Trace, layout: RegionLayout, instr: Instr, out: Array) -> None:
    """Record the layout of an operation's result; `out` then becomes the laid-out result."""
    op, a = instr.op, instr.aval
    computes = op.elementwise or op.contraction or op.constant or not instr.ins
    params = layout.specs(a.shape) if computes and a.__class__ is Aval else None
    if params is None:
        return
    placing = REGISTRY["with_sharding"].instr(params, (a,))
    computed = new_pending(trace, a, out._number)
    flat = trace.flat
    flat += (placing, out._number)
    out._number = len(flat) - 2
    if trace.tape is not None:
        trace.tape[-1] = (*trace.tape[-1][:2], computed)
        trace.tape.append((placing, (computed,), out))
    if trace.locations is not None:
        trace.locations[out._number] = trace.locations[computed._number]


def overflow(trace: Trace, number: int) -> None:
    """Cut the pending trace at the end of an iteration or of its budget (`gtrace.core.trace.segmentation`).

    Args:
        number: an entry before which the next operation cannot be.
    """
    segmentation, settings = thread.segmentation, config.current
    pending, most = len(trace.refs), settings.max_pending
    if not segmentation.stretch.beginning and len(trace.flat) >= BEGINNING:
        segmentation.begin(trace.flat)
    progress = segmentation.stretch.progress
    if progress is not None:
        most = max(most, 4 * progress.loop.period)
    waits = thread.in_gradient()
    due = segmentation.ready(trace.flat, waits)
    full = trace.full or pending >= most
    if due and not waits:
        segmentation.cut_off(trace.refs)
        segmentation.cut()
        flush("period")
    elif full or (trace.limit and not waits and segmentation.searches(pending)):
        if full:
            segmentation.stretch.progress = None
        if segmentation.watch(trace.flat, settings.window, full):
            segmentation.cut_off(trace.refs)
            flush("budget")
    if trace.limit and trace is thread.trace:
        stretch = segmentation.stretch
        if stretch.progress is not None:
            trace.limit = segmentation.place()
        else:
            # each operation adds at least one entry, so the budget cannot end before this number
            trace.limit = number + max(min(most - pending, max(stretch.search - pending, SHORTEST)), 1)
