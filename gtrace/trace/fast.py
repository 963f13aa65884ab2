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


def binary_fast(op: Op, slow: Callable[[Any, Any], Array], numbers: bool = False) -> Callable[[Any, Any], Array]:
    """Return `slow` with a fast path for Arrays whose avals the operation has met before.

    Args:
        numbers: also for a floating Array and a Python number, on either side.
    """
    table = op.table
    after: BoundedTable[Aval, tuple[Instr, Aval]] = BoundedTable(MAX_TABLE)
    before: BoundedTable[Aval, tuple[Instr, Aval]] = BoundedTable(MAX_TABLE)

    def with_number(x: Array, number_after: bool) -> tuple[Instr, Aval] | None:
        """Return the instruction for an Array and a number, and the aval of the number; None: `slow` finds them."""
        a = x.aval
        if not a.floating or a.weak or a.complex:
            return None
        scalar = scalar_aval(a.dtype, a.device)
        found = op.instr((), (a, scalar) if number_after else (scalar, a)), scalar
        (after if number_after else before).remember(a, found)
        return found

    def function(x: Any, y: Any) -> Array:
        scalar = None
        if x.__class__ is Array:
            if y.__class__ is Array:
                instr = table.get((x.aval, y.aval))
                if instr is None:
                    return slow(x, y)
                trace = thread.trace
                entry = (
                    instr,
                    x._number if x._trace is trace else as_input(trace, x),
                    y._number if y._trace is trace else as_input(trace, y),
                )
            else:
                kind = y.__class__
                if not numbers or (kind is not float and (kind is not int or y.bit_length() >= 64)):
                    return slow(x, y)
                found = after.get(x.aval) or with_number(x, True)
                if found is None or not y or y != y:
                    return slow(x, y)  # it encodes the sign of a zero, and records one object for every NaN
                instr, scalar = found
                trace = thread.trace
                i = x._number if x._trace is trace else as_input(trace, x)
                scalars = trace.scalars
                scalars += (y if kind is float else float(y),)
                # scalar_operand_code of the last slot, for a value that is no zero
                entry = instr, i, 1 - 2 * len(scalars)
        elif y.__class__ is Array:
            kind = x.__class__
            if not numbers or (kind is not float and (kind is not int or x.bit_length() >= 64)):
                return slow(x, y)
            found = before.get(y.aval) or with_number(y, False)
            if found is None or not x or x != x:
                return slow(x, y)
            instr, scalar = found
            trace = thread.trace
            i = y._number if y._trace is trace else as_input(trace, y)
            scalars = trace.scalars
            scalars += (x if kind is float else float(x),)
            entry = instr, 1 - 2 * len(scalars), i
        else:
            return slow(x, y)
        flat = trace.flat
        flat += entry
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
            if scalar is not None:
                if x.__class__ is Array:
                    y = Scalar(float(y), scalar)
                else:
                    x = Scalar(float(x), scalar)
            tape.append((instr, (x, y), out))
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
    key: Any
    if len(given) == 2 and given[0] is None and given[1] is False:  # a reduction over all axes
        key = op, x.aval
    else:
        kinds = [g.__class__ for g in given]
        # 1, 1.0 and True are equal: the types are part of the key. In tuples, and for the sign of a zero, `exact_key`
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
