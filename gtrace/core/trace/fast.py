"""Fast paths of `gtrace.core.trace.bind` for common operations.

They look up the instruction by the avals of the operands. Only new avals are checked and promoted.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.dtypes import FLOAT8, FLOATS
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Scalar
from gtrace.core.ir.op import MAX_TABLE, Instr, Op, Params
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import as_input, bind, distinct, new_pending, on_recorded
from gtrace.core.trace.convert import scalar_aval
from gtrace.core.trace.record import thread

_ref = weakref.ref
_new = object.__new__


def unary_fast(op: Op, slow: Callable[[Any], Array]) -> Callable[[Any], Array]:
    """Return `slow` with a fast path for Arrays of avals that the operation knows."""
    table = op.table

    def function(x: Any) -> Array:
        if x.__class__ is not Array:
            return slow(x)
        instr = table.get((x.aval,)) or op.met((x.aval,))
        if instr is None:
            return slow(x)
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
    op: Op, slow: Callable[[Any, Any], Array], numbers: bool = False, integers: bool = False
) -> Callable[[Any, Any], Array]:
    """Return `slow` with a fast path for Arrays of avals that the operation knows.

    Args:
        numbers: the fast path also takes a floating Array and a Python number, in either order.
        integers: the fast path also takes an integer Array and a Python integer.
    """
    table = op.table
    after: BoundedTable[Aval, tuple[Instr, Aval]] = BoundedTable(MAX_TABLE)
    before: BoundedTable[Aval, tuple[Instr, Aval]] = BoundedTable(MAX_TABLE)

    def with_number(x: Array, number_after: bool) -> tuple[Instr, Aval] | None:
        """Return the instruction for an Array and a number, and the aval of the number; None: `slow` decides."""
        a = x.aval
        if a.weak or not (a.dtype in FLOATS or (integers and a.dtype in _INTEGERS)):
            return None
        scalar = scalar_aval(a.dtype, a.device)
        found = op.instr((), (a, scalar) if number_after else (scalar, a)), scalar
        (after if number_after else before).remember(a, found)
        return found

    def met(x: Array, y: Array) -> Instr | None:
        """Return the instruction for two Arrays of new sizes, if their kinds are known and nobody is to be warned."""
        if x.aval.dtype is not y.aval.dtype or x.aval.weak is not y.aval.weak:
            return None
        return op.met((x.aval, y.aval))

    def function(x: Any, y: Any) -> Array:
        scalar = None
        value: Any = None
        if x.__class__ is Array:
            if y.__class__ is Array:
                instr = table.get((x.aval, y.aval)) or met(x, y)
                if instr is None:
                    return slow(x, y)
                trace = thread.trace
                entry = (
                    instr,
                    x._number if x._trace is trace else as_input(trace, x),
                    y._number if y._trace is trace else as_input(trace, y),
                )
            else:
                if numbers:
                    value = y if y.__class__ is float and x.aval.floating and y and y == y else _plain(y, x.aval)
                found = None if value is None else after.get(x.aval) or with_number(x, True)
                if found is None:
                    return slow(x, y)
                instr, scalar = found
                trace = thread.trace
                i = x._number if x._trace is trace else as_input(trace, x)
                scalars = trace.scalars
                scalars += (value,)
                # scalar_operand_code of the last slot, for a value other than -0.0
                entry = instr, i, 1 - 2 * len(scalars)
        elif y.__class__ is Array:
            if numbers:
                value = x if x.__class__ is float and y.aval.floating and x and x == x else _plain(x, y.aval)
            found = None if value is None else before.get(y.aval) or with_number(y, False)
            if found is None:
                return slow(x, y)
            instr, scalar = found
            trace = thread.trace
            i = y._number if y._trace is trace else as_input(trace, y)
            scalars = trace.scalars
            scalars += (value,)
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
                    y = Scalar(value, scalar)
                else:
                    x = Scalar(value, scalar)
            tape.append((instr, (x, y), out))
        if number >= trace.limit:
            on_recorded(trace, instr, out)
        return out

    return function


_INTEGERS = (torch.int64, torch.int32)


def _plain(value: Any, a: Aval) -> float | int | None:
    """Return a Python number as an operand beside an Array of type `a`; None if `slow` must handle it.

    `slow` handles -0.0, which has its own code, NaN, which is recorded as one object, and large integers.
    """
    kind = value.__class__
    if kind is float:
        if not a.floating or value != value or (not value and math.copysign(1.0, value) < 0):
            return None
        return value
    if kind is not int:
        return None
    if a.floating:
        return float(value) if -_LARGE < value < _LARGE else None
    return value if -_LARGE_INT32 < value < _LARGE_INT32 else None


_LARGE = 1 << 63
_LARGE_INT32 = 1 << 31


_met: BoundedTable[Any, Params] = BoundedTable(MAX_TABLE)


def bind_met(op: Op, x: Any, given: tuple[Any, ...], resolve: Callable[..., tuple[Array, Params]]) -> Array:
    """Record `op` of one operand, with attributes that follow from the kind of its aval and the user's arguments.

    The result of `resolve` is cached, because programs repeat their calls, at one size or at others.

    Args:
        given: the user's arguments.
        resolve: takes the operation, x and these arguments; returns operand and attributes, or raises.
    """
    if x.__class__ is not Array:
        return bind(op, *_single(resolve(op, x, *given)))
    key: Any
    if len(given) == 2 and given[0] is None and given[1] is False:  # a reduction over all axes
        key = op, x.aval.kind or x.aval
    else:
        kind, kinds = x.aval.kind or x.aval, [g.__class__ for g in given]
        # the types are part of the key, because 1, 1.0 and True are equal. In tuples, and for the sign of a zero,
        # `exact_key`
        key = (op, kind, exact_key(given)) if tuple in kinds or float in kinds else (op, kind, given, *kinds)
    try:
        params = _met.get(key)
    except TypeError:  # a list of axes
        return bind(op, *_single(resolve(op, x, *given)))
    if params is None:
        operand, params = resolve(op, x, *given)
        if operand is not x or x.aval.dtype in FLOAT8:
            return bind(op, (operand,), params)
        _met.remember(key, params)
    return _record(op.instr(params, (x.aval,)), x)


def _record(instr: Instr, x: Array) -> Array:
    """Record an instruction with one operand."""
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
_orders: BoundedTable[Any, Params] = BoundedTable(MAX_TABLE)


def record_order(op: Op, x: Array, key: Any, axes: Callable[[Array], tuple[int, ...]]) -> Array:
    """Record the operation that exchanges axes of `x`; return it as `distinct` does if none are.

    Args:
        key: an exact key of the user's arguments; None: they have no key.
        axes: takes x; returns the order of its axes, which depends on their number only, or raises for bad arguments.
    """
    known = (len(x.aval.shape), key)
    params = None if key is None else _orders.get(known)
    if params is None:
        found = axes(x)
        params = () if found == tuple(range(len(found))) else (found,)
        if key is not None:
            _orders.remember(known, params)
    return _record(op.instr(params, (x.aval,)), x) if params else distinct(x)


def record_view(x: Array, kind: str, key: Any, steps: Callable[[Array], Sequence[tuple[Op, Params]]]) -> Array:
    """Record the unary operations that make a view of `x`; return it as `distinct` does if there are none.

    The result of `steps` is cached, because programs repeat their calls.

    Args:
        kind: the kind of view, such as a reshape.
        key: an exact key of the user's arguments; None: they have no key.
        steps: takes x; returns the operations and their attributes in order, or raises for bad arguments.
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
    if not chain:
        return distinct(x)
    for instr in chain:
        x = _record(instr, x)
    return x


def _single(resolved: tuple[Array, Params]) -> tuple[tuple[Array], Params]:
    return (resolved[0],), resolved[1]
