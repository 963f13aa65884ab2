"""Recording the operations that programs are full of: what `gtrace.trace.bind` does, written for speed.

What follows from an operation's operands is looked up; checks and promotion are for operands not met before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from gtrace.ir.aval import Aval
from gtrace.ir.graph import Scalar
from gtrace.ir.op import Instr, Op, Params, literal_code
from gtrace.trace.array import Array
from gtrace.trace.bind import admit, attend, bind, expect
from gtrace.trace.convert import scalar_aval
from gtrace.trace.record import thread

_ref = weakref.ref
_new = object.__new__


def unary_fast(op: Op, slow: Callable[[Any], Array]) -> Callable[[Any], Array]:
    """Return `slow` with a fast path for Arrays whose avals the operation has met before."""
    table = op.table

    def function(x: Any) -> Array:
        try:
            instr = table[(x.aval,)]
        except (KeyError, AttributeError):
            instr = None
        if instr is None:
            return slow(x)  # outside the handler: its errors are the user's, and have no other cause
        trace = thread.trace
        i = x._number if x._trace is trace else admit(trace, x)
        refs = trace.refs
        out: Array = _new(Array)
        out.aval = instr.aval
        out._trace = trace
        out._number = number = len(refs)
        out._buf = None
        out._code = -1
        trace.flat += (instr.code, i)
        refs.append(_ref(out))
        tape = trace.tape
        if tape is not None:
            tape.append((instr, (x,), out))
        if number >= trace.limit:
            attend(trace, instr, out)
        return out

    return function


def binary_fast(
    op: Op, slow: Callable[[Any, Any], Array], other: Callable[[Any, Any], Array] | None = None
) -> Callable[[Any, Any], Array]:
    """Return `slow` with a fast path for Arrays whose avals the operation has met before.

    Args:
        other: takes what is not two Arrays; None: `slow` does.
    """
    table = op.table
    other = other or slow

    def function(x: Any, y: Any) -> Array:
        if x.__class__ is not Array or y.__class__ is not Array:
            return other(x, y)
        instr = table.get((x.aval, y.aval))
        if instr is None:
            return slow(x, y)
        trace = thread.trace
        i = x._number if x._trace is trace else admit(trace, x)
        j = y._number if y._trace is trace else admit(trace, y)
        refs = trace.refs
        out: Array = _new(Array)
        out.aval = instr.aval
        out._trace = trace
        out._number = number = len(refs)
        out._buf = None
        out._code = -1
        trace.flat += (instr.code, i, j)
        refs.append(_ref(out))
        tape = trace.tape
        if tape is not None:
            tape.append((instr, (x, y), out))
        if number >= trace.limit:
            attend(trace, instr, out)
        return out

    return function


def number_fast(op: Op, slow: Callable[[Any, Any], Array]) -> Callable[[Any, Any], Array]:
    """Return `slow` with a fast path for a floating Array and a Python number, on either side."""
    after: dict[Aval, tuple[Instr, Aval, int]] = {}
    before: dict[Aval, tuple[Instr, Aval, int]] = {}

    def function(x: Any, y: Any) -> Array:
        if x.__class__ is Array:
            array, value, known = x, y, after
        elif y.__class__ is Array:
            array, value, known = y, x, before
        else:
            return slow(x, y)
        kind = value.__class__
        if kind is not float and (kind is not int or value.bit_length() >= 64):
            return slow(x, y)
        found = known.get(array.aval)
        if found is None:
            a = array.aval
            if not a.floating or a.weak:
                return slow(x, y)
            scalar = scalar_aval(a.dtype, a.device)
            instr = op.instr((), (a, scalar) if known is after else (scalar, a))
            found = known[a] = instr, scalar, literal_code(scalar, False)
        if not value:
            return slow(x, y)  # the sign of a zero is part of the program
        instr, scalar, code = found
        value = float(value)
        trace = thread.trace
        i = array._number if array._trace is trace else admit(trace, array)
        refs = trace.refs
        number = len(refs)
        trace.flat += (code, instr.code, i, number) if known is after else (code, instr.code, number, i)
        trace.scalars.append(value)
        out: Array = _new(Array)
        out.aval = instr.aval
        out._trace = trace
        out._number = number + 1
        out._buf = None
        out._code = -1
        refs += (None, _ref(out))
        tape = trace.tape
        if tape is not None:
            operand = Scalar(value, scalar)
            tape.append((instr, (array, operand) if known is after else (operand, array), out))
        if number + 1 >= trace.limit:
            attend(trace, instr, out)
        return out

    return function


_met: dict[Any, Instr] = {}


def bind_met(op: Op, x: Any, given: tuple[Any, ...], resolve: Callable[..., tuple[Array, Params]]) -> Array:
    """Record `op` of one operand, with attributes that follow from its aval and from what else the user gave.

    Programs make the same call again and again: what `resolve` found is remembered.

    Args:
        given: the user's arguments.
        resolve: from the operation, x and these to the operand and the attributes; raises what is wrong with them.
    """
    if x.__class__ is not Array:
        return bind(op, *_single(resolve(op, x, *given)))
    key = op, x.aval, given, *[g.__class__ for g in given]  # True is not 1, nor is 1.0
    try:
        instr = _met.get(key)
    except TypeError:  # a list of axes
        return bind(op, *_single(resolve(op, x, *given)))
    if instr is None:
        operand, params = resolve(op, x, *given)
        if operand is not x:
            return bind(op, (operand,), params)
        instr = _met[key] = op.instr(params, (x.aval,))
    trace = thread.trace
    i = x._number if x._trace is trace else admit(trace, x)
    out = expect(trace, instr.aval, len(trace.refs))
    trace.flat += (instr.code, i)
    trace.refs.append(_ref(out))
    if trace.tape is not None:
        trace.tape.append((instr, (x,), out))
    if out._number >= trace.limit:
        attend(trace, instr, out)
    return out


def _single(resolved: tuple[Array, Params]) -> tuple[tuple[Array], Params]:
    return (resolved[0],), resolved[1]
