"""Recording an operation: `bind`. Most operations take the fast paths of it in `gtrace.trace.fast`."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from gtrace.config import config
from gtrace.errors import user_location
from gtrace.events import Recorded, bus
from gtrace.ir.aval import Aval, contiguous_strides
from gtrace.ir.graph import Scalar
from gtrace.ir.op import CODES, Instr, Op, Params, define, leaf_code
from gtrace.trace.array import Array, flush, layout, leaked, materialize
from gtrace.trace.record import Trace, thread

_ref = weakref.ref
_new = object.__new__


def placeholder(trace: Trace, a: Aval) -> Array:
    """Return a new input of a captured trace."""
    out: Array = _new(Array)
    out.aval = a
    out._buf = None
    out._trace = trace
    out._code = leaf_code(a, contiguous_strides(a.shape))
    out._number = trace.leaf(out, out._code, out)
    return out


def admit(trace: Trace, x: Array) -> int:
    """Return the number of operand `x`, which `trace` did not compute, as an input of `trace`.

    Raises:
        LeakError: `x` is a placeholder whose own trace is over.
    """
    tensor = x._buf
    if trace.capture is not None:
        if tensor is None and x._trace is not None and x._trace.capture is not None and x._trace.closed:
            raise leaked(x)
        return trace.leaf(x, leaf_code(x.aval, contiguous_strides(x.aval.shape)), x)
    if tensor is None:
        tensor = materialize(x, "thread")
    # Trace.leaf, written out: every operand from outside passes here
    number = trace.numbers.get(id(tensor))
    if number is None:
        code = x._code
        number = trace.numbers[id(tensor)] = len(trace.refs)
        trace.flat.append(code if code >= 0 else layout(x))
        trace.leaves.append(tensor)
        trace.refs.append(None)
        trace.held += tensor.nbytes
        if trace.held > trace.allowed:
            trace.weigh()
    return number


def bind(op: Op, operands: Sequence[Array | Scalar], params: Params = ()) -> Array:
    """Record ``op(*operands, **params)``; returns its result, which has no value yet.

    Raises:
        ShapeError, DtypeError, DeviceError: the operands do not fit, now and not when the program runs.
    """
    avals = tuple([x.aval for x in operands])
    instr = op.table.get((params, *avals))
    if instr is None:
        instr = op.instr(params, avals)
    return emit(instr, operands)


def emit(instr: Instr, operands: Sequence[Array | Scalar]) -> Array:
    """Record an instruction that is already known to fit `operands`."""
    trace = thread.trace
    step = [instr.code]
    for x in operands:
        if x.__class__ is Scalar:
            step.append(trace.scalar(x))
        else:
            step.append(x._number if x._trace is trace else admit(trace, x))  # type: ignore[union-attr, arg-type]
    out = expect(trace, instr.aval, len(trace.refs))
    trace.flat += step
    trace.refs.append(_ref(out))
    if trace.tape is not None:
        trace.tape.append((instr, tuple(operands), out))
    if out._number >= trace.limit:
        attend(trace, instr, out)
    return out


def bind_all(op: Op, operands: Sequence[Array], params: Params = ()) -> list[Array]:
    """Record an operation with several results; returns them."""
    return emit_all(op.instr(params, tuple([x.aval for x in operands])), operands)


def emit_all(instr: Instr, operands: Sequence[Array]) -> list[Array]:
    """Record an instruction with several results, and for each the operation that takes it out."""
    trace = thread.trace
    step = [instr.code, *[x._number if x._trace is trace else admit(trace, x) for x in operands]]
    whole = expect(trace, instr.aval, len(trace.refs))
    trace.flat += step
    trace.refs.append(_ref(whole))
    if CODES[instr.code] is not instr:
        trace.special[whole._number] = instr
    if trace.tape is not None:
        trace.tape.append((instr, tuple(operands), whole))
    results = []
    for k, a in enumerate(instr.aval.avals):
        taking = project.instr((k,), (instr.aval,))
        out = expect(trace, a, len(trace.refs))
        trace.flat += (taking.code, whole._number)
        trace.refs.append(_ref(out))
        if trace.tape is not None:
            trace.tape.append((taking, (whole,), out))
        results.append(out)
    if trace.locations is not None:
        for number in range(whole._number, len(trace.refs)):
            trace.locations[number] = thread.origin or user_location()
    if len(trace.refs) > trace.limit:
        attend(trace, instr, whole)
    return results


def _project_result(avals: tuple[Any, ...], index: int) -> Aval:
    return avals[0].avals[index]


project = define(
    "project", lambda results, index: results[index], params=("index",), result=_project_result,
    nondiff="derivatives treat it together with the operation whose result it takes out",
)  # fmt: skip


def expect(trace: Trace, a: Any, number: int) -> Array:
    """Return an Array for a result of `trace`."""
    out: Array = _new(Array)
    out.aval = a
    out._trace = trace
    out._number = number
    out._buf = None
    out._code = -1
    return out


def attend(trace: Trace, instr: Instr, out: Array) -> None:
    """Do what recording an operation entails beyond recording it: log, locations, eager mode, budget."""
    if Recorded in bus.wanted:
        bus.emit(Recorded(instr.op.name, out._number, repr(instr.aval)))
    if trace.locations is not None:
        trace.locations[out._number] = thread.origin or user_location()
    if trace.capture is None:
        if config.current.eager:
            flush("eager")
        else:
            _overflow(trace)


def _overflow(trace: Trace) -> None:
    """Cut the pending trace where its loop begins anew, or where its budget ends; see `gtrace.trace.rhythm`."""
    rhythm, settings = thread.rhythm, config.current
    if rhythm.period and rhythm.due(trace.flat):
        steady = rhythm.cut(trace.flat)
        count = len(trace.refs)
        flush("period" if steady else "budget")
        if steady:
            # from the last operation of the next iteration on, or, as long as its shape is not known, from the first
            thread.trace.limit = min(thread.trace.limit, count - 1 if rhythm.shape else 0)
    elif trace.full or (
        len(trace.refs) >= settings.max_pending and not (rhythm.period and len(trace.refs) < settings.window)
    ):
        rhythm.forget_loop()
        rhythm.watch(trace.flat, settings.window)
        flush("budget")
        if rhythm.period:
            thread.trace.limit = 0
