"""Fast recording of the common operations: what `gtrace.trace.bind` does, written for speed.

The instruction is looked up by the avals of the operands. Checks and promotion run only for new avals.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from gtrace.exact import exact_key
from gtrace.ir.aval import Aval
from gtrace.ir.graph import Scalar
from gtrace.ir.op import MAX_TABLE, Instr, Op, Params
from gtrace.tables import BoundedTable
from gtrace.trace.array import Array
from gtrace.trace.bind import as_input, bind, new_pending, on_recorded
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
            return slow(x)  # outside the handler: its errors must not be chained to this one
        trace = thread.trace
        i = x._number if x._trace is trace else as_input(trace, x)
        flat = trace.flat
        flat += (instr, i)
        number = len(flat) - 2
        out: Array = _new(Array)
        out.aval = instr.aval
        out._trace = trace
        out._number = number
        out._buf = None
        out._leaf = None
        trace.refs.append(_ref(out))
        tape = trace.tape
        if tape is not None:
            tape.append((instr, (x,), out))
        if number >= trace.limit:
            on_recorded(trace, instr, out)
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
        i = x._number if x._trace is trace else as_input(trace, x)
        j = y._number if y._trace is trace else as_input(trace, y)
        flat = trace.flat
        flat += (instr, i, j)
        number = len(flat) - 3
        out: Array = _new(Array)
        out.aval = instr.aval
        out._trace = trace
        out._number = number
        out._buf = None
        out._leaf = None
        trace.refs.append(_ref(out))
        tape = trace.tape
        if tape is not None:
            tape.append((instr, (x, y), out))
        if number >= trace.limit:
            on_recorded(trace, instr, out)
        return out

    return function


def number_fast(op: Op, slow: Callable[[Any, Any], Array]) -> Callable[[Any, Any], Array]:
    """Return `slow` with a fast path for a floating Array and a Python number, on either side."""
    after: BoundedTable[Aval, tuple[Instr, Aval]] = BoundedTable(MAX_TABLE)
    before: BoundedTable[Aval, tuple[Instr, Aval]] = BoundedTable(MAX_TABLE)

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
            if not a.floating or a.weak or a.complex:
                return slow(x, y)
            scalar = scalar_aval(a.dtype, a.device)
            instr = op.instr((), (a, scalar) if known is after else (scalar, a))
            found = instr, scalar
            known.remember(a, found)
        if not value or value != value:
            return slow(x, y)  # `slow` encodes the sign of a zero and records one object for every NaN
        instr, scalar = found
        value = float(value)
        trace = thread.trace
        i = array._number if array._trace is trace else as_input(trace, array)
        scalars, flat = trace.scalars, trace.flat
        scalars += (value,)
        slots = len(scalars)
        # scalar_operand_code of the last slot, for a value that is no zero
        flat += (instr, i, 1 - 2 * slots) if known is after else (instr, 1 - 2 * slots, i)
        number = len(flat) - 3
        out: Array = _new(Array)
        out.aval = instr.aval
        out._trace = trace
        out._number = number
        out._buf = None
        out._leaf = None
        trace.refs.append(_ref(out))
        tape = trace.tape
        if tape is not None:
            operand = Scalar(value, scalar)
            tape.append((instr, (array, operand) if known is after else (operand, array), out))
        if number >= trace.limit:
            on_recorded(trace, instr, out)
        return out

    return function


_met: BoundedTable[Any, Instr] = BoundedTable(MAX_TABLE)


def bind_met(op: Op, x: Any, given: tuple[Any, ...], resolve: Callable[..., tuple[Array, Params]]) -> Array:
    """Record `op` of one operand, with attributes that follow from its aval and from what else the user gave.

    Programs repeat their calls, so the result of `resolve` is remembered.

    Args:
        given: the user's arguments.
        resolve: takes the operation, x and these; returns the operand and the attributes, or raises for bad arguments.
    """
    if x.__class__ is not Array:
        return bind(op, *_single(resolve(op, x, *given)))
    kinds = [g.__class__ for g in given]
    # 1, 1.0 and True are equal: the types are part of the key. Inside tuples, and for the sign of a zero, `exact_key`
    key = (op, x.aval, exact_key(given)) if tuple in kinds or float in kinds else (op, x.aval, given, *kinds)
    try:
        instr = _met.get(key)
    except TypeError:  # a list of axes
        return bind(op, *_single(resolve(op, x, *given)))
    if instr is None:
        operand, params = resolve(op, x, *given)
        if operand is not x:
            return bind(op, (operand,), params)
        instr = op.instr(params, (x.aval,))
        _met.remember(key, instr)
    trace = thread.trace
    i = x._number if x._trace is trace else as_input(trace, x)
    flat = trace.flat
    flat += (instr, i)
    number = len(flat) - 2
    out = new_pending(trace, instr.aval, number)
    trace.refs.append(_ref(out))
    if trace.tape is not None:
        trace.tape.append((instr, (x,), out))
    if number >= trace.limit:
        on_recorded(trace, instr, out)
    return out


_chains: BoundedTable[Any, tuple[Instr, ...]] = BoundedTable(MAX_TABLE)


def record_view(x: Array, kind: str, key: Any, steps: Callable[[Array], Sequence[tuple[Op, Params]]]) -> Array:
    """Record the operations, of one operand each, that make a view of `x`; returns `x` itself if there are none.

    Programs repeat their calls, so what `steps` returns is remembered.

    Args:
        kind: what makes the view, such as a reshape.
        key: of what the user gave; equal keys mean the same in all respects. None: it has no key.
        steps: takes x; returns the operations and their attributes, in order, or raises for bad arguments.
    """
    chain = None if key is None else _chains.get((kind, x.aval, key))
    if chain is None:
        made, a = [], x.aval
        for op, params in steps(x):
            instr = op.instr(params, (a,))
            a = instr.aval
            made.append(instr)
        chain = tuple(made)
        if key is not None:
            _chains.remember((kind, x.aval, key), chain)
    for instr in chain:
        trace = thread.trace
        i = x._number if x._trace is trace else as_input(trace, x)
        flat = trace.flat
        flat += (instr, i)
        number = len(flat) - 2
        out = new_pending(trace, instr.aval, number)
        trace.refs.append(_ref(out))
        if trace.tape is not None:
            trace.tape.append((instr, (x,), out))
        if number >= trace.limit:
            on_recorded(trace, instr, out)
        x = out
    return x


def _single(resolved: tuple[Array, Params]) -> tuple[tuple[Array], Params]:
    return (resolved[0],), resolved[1]
