"""Reverse mode: the recorded operations are the tape.

A gradient runs its function on fresh Arrays while the current trace keeps a tape, then walks the tape backwards. The
rules record ordinary operations, in the same trace: forward, backward and update become one program, and a gradient of
a gradient needs nothing more.

The walk only depends on what was recorded, so its result is remembered as a `Plan`: the stretch of the trace's list
that it appended. When the same program is recorded again, at the same place of the list, the plan is appended as it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs

from gtrace.ir.aval import Aval
from gtrace.ir.graph import Scalar
from gtrace.ir.op import Instr
from gtrace.ops.create import ones_like, zeros_like
from gtrace.ops.elementwise import add, identity, multiply, neg
from gtrace.ops.shape import unbroadcast
from gtrace.trace.array import Array, fresh
from gtrace.trace.bind import expect, project
from gtrace.trace.record import TapeEntry, Trace, thread
from gtrace.transform.arguments import Call, lift_outputs, split_aux
from gtrace.tree import TreeDef

MAX_PLANS = 1024
"""Plans remembered; beyond it all are forgotten and made anew."""


@attrs.define(eq=False)
class Tape:
    """What one gradient recorded.

    Attributes:
        inputs: the fresh Arrays the gradient is taken with respect to.
        entries: (instruction, operands, result), in order.
        trace: where it was recorded.
        flat, scalars: the first and last place of the recording in the trace's lists.
    """

    inputs: list[Array]
    entries: list[TapeEntry]
    trace: Trace
    flat: tuple[int, int]
    scalars: tuple[int, int]


def record(inputs: Sequence[Array], function: Callable[[list[Array]], Any]) -> tuple[Any, Tape]:
    """Run `function` on fresh copies of `inputs`, taping what is recorded."""
    trace = thread.trace
    outermost = trace.tape is None
    entries: list[TapeEntry] = [] if trace.tape is None else trace.tape
    if outermost:
        copies = [fresh(x) if x._buf is not None else identity(x) for x in inputs]
        thread.trace.tape = entries  # copying may have cut the trace: it is read anew
    else:
        # the copy is an operation that the enclosing gradient must see
        copies = [identity(x) for x in inputs]
    start = len(entries)
    trace = thread.trace
    flat, scalars = len(trace.flat), len(trace.scalars)
    try:
        result = function(copies)
    finally:
        if outermost:
            thread.trace.tape = None
    if not outermost:
        entries = entries[start:]
    return result, Tape(copies, entries, trace, (flat, len(trace.flat)), (scalars, len(trace.scalars)))


def run_taped(name: str, call: Call, has_aux: bool) -> tuple[list[Array], TreeDef, Tape, Any]:
    """Run a function of the user's on fresh arguments; returns its outputs, their structure, the tape and aux."""
    aux: list[Any] = []

    def run(arrays: list[Array]) -> tuple[list[Array], TreeDef]:
        value, extra = split_aux(name, call.run(arrays), has_aux)
        aux.append(extra)
        return lift_outputs(name, value)

    (outputs, structure), tape = record(call.inputs, run)
    return outputs, structure, tape, aux[0]


def pull(tape: Tape, outputs: Sequence[Array], cotangents: Sequence[Array] | None = None) -> list[Array]:
    """Walk the tape backwards; returns the cotangents of its inputs.

    Args:
        outputs: Arrays the tape computed.
        cotangents: one for each output, with its aval; None: ones.
    """
    trace = thread.trace
    if trace is not tape.trace or trace.limit == 0 or trace.tape is not None:
        # cut by a force, or somebody watches the operations: an enclosing gradient, a capture, a log
        return _walk(tape, outputs, cotangents)
    key = _plan_key(tape, trace, outputs, cotangents)
    if key is None:
        return _walk(tape, outputs, cotangents)
    plan = _plans.get(key)
    if plan is not None:
        return plan.replay(trace)
    return _planned(key, tape, trace, outputs, cotangents)


_BACKWARD = " (its backward pass)"


def _walk(tape: Tape, outputs: Sequence[Array], cotangents: Sequence[Array] | None) -> list[Array]:
    before, home = thread.origin, thread.region
    reached = {id(x) for x in tape.inputs}
    steps: list[TapeEntry] = []
    for entry in tape.entries:
        instr, operands, out = entry
        if (instr.op.nondiff is None or instr.op is project) and instr.aval.floating:
            for x in operands:
                if id(x) in reached:
                    reached.add(id(out))
                    steps.append(entry)
                    break
    found: dict[int, Any] = {}
    for k, out in enumerate(outputs):
        if id(out) in reached:
            ct = ones_like(out) if cotangents is None else cotangents[k]
            found[id(out)] = add(found[id(out)], ct) if id(out) in found else ct
    locations = tape.trace.locations
    for instr, operands, out in reversed(steps):
        if tape.trace.marks:
            region = tape.trace.region(out._number) if out._trace is tape.trace else None
            thread.switch(home if region is None else region.backward or region)
        if locations is not None:
            made = locations.get(out._number) if out._trace is tape.trace else None
            thread.origin = made and f"{made.removesuffix(_BACKWARD)}{_BACKWARD}"
        cotangent = found.pop(id(out), None)
        if cotangent is None:
            continue
        if instr.op is project:
            # the cotangent of several results is a list, with None for those that have none
            whole, k = operands[0], instr.params[0]
            slots = found.setdefault(id(whole), [None] * len(whole.aval.avals))
            slots[k] = cotangent if slots[k] is None else add(slots[k], cotangent)
        else:
            _apply(instr, operands, out, cotangent, reached, found)
    thread.origin = before
    thread.switch(home)
    return [found[id(x)] if id(x) in found else zeros_like(x) for x in tape.inputs]


def _apply(
    instr: Instr, operands: Sequence[Any], out: Array, ct: Any, reached: set[int], found: dict[int, Any]
) -> None:
    """Apply one operation's rule, adding to the cotangents of its operands."""
    op = instr.op
    needed = [id(x) in reached for x in operands]
    values = [x.value if x.__class__ is Scalar else x for x in operands]
    named = dict(zip(op.params, instr.params, strict=True))
    if op.partials is not None:
        grads: Sequence[Array | None] = [
            _scale(ct, partial(*values, out, **named)) if need else None
            for partial, need in zip(op.partials, needed, strict=True)
        ]
    else:
        assert op.vjp is not None
        grads = op.vjp(ct, needed, *values, out, **named)
    for x, need, g in zip(operands, needed, grads, strict=True):
        if need and g is not None:
            if op.elementwise:
                g = unbroadcast(g, x.aval)
            found[id(x)] = add(found[id(x)], g) if id(x) in found else g


def _scale(ct: Array, partial: Any) -> Array:
    if partial.__class__ is int:
        return ct if partial == 1 else neg(ct)
    return multiply(ct, partial)


# -- plans


@attrs.frozen(eq=False)
class Plan:
    """What a backward walk appended to the trace.

    Attributes:
        flat, scalars: the stretches of the trace's lists.
        count: values in it.
        results: (number, aval) of the cotangent of each input.
    """

    flat: tuple[int, ...]
    scalars: tuple[bool | int | float, ...]
    count: int
    results: tuple[tuple[int, Aval], ...]

    def replay(self, trace: Trace) -> list[Array]:
        """Append the stretch to `trace`; returns the results."""
        arrays: dict[int, Array] = {}
        trace.flat += self.flat
        trace.scalars += self.scalars
        refs: list[weakref.ref[Array] | None] = [None] * self.count
        base = len(trace.refs)
        out = []
        for number, a in self.results:
            x = arrays.get(number)
            if x is None:
                x = arrays[number] = expect(trace, a, number)
                refs[number - base] = weakref.ref(x)
            out.append(x)
        trace.refs += refs
        return out


_plans: dict[Hashable, Plan] = {}


def _plan_key(
    tape: Tape, trace: Trace, outputs: Sequence[Array], cotangents: Sequence[Array] | None
) -> Hashable | None:
    """Return what the backward walk depends on; None if an output has no number in the trace.

    That is: the recorded stretch, where the next value will be numbered, the outputs and their cotangents, and which
    operands are the tape's inputs (an input shares its buffer, hence its number in the list, with the Array it copies).
    """
    if trace.special or trace.marks:
        return None  # rules of the user's and regions, which the recorded ints do not tell apart
    ends = outputs if cotangents is None else (*outputs, *cotangents)
    for x in ends:
        if x._trace is not trace:
            return None
    # for the moment, the inputs carry numbers of their own
    for k, x in enumerate(tape.inputs):
        if x._trace is None:
            x._number = -2 - k
    numbers = tuple([x._number for _, operands, _ in tape.entries for x in operands if x.__class__ is Array])
    for x in tape.inputs:
        if x._trace is None:
            x._number = -1
    a, b = tape.flat
    c, d = tape.scalars
    return (
        tuple(trace.flat[a:b]),
        tuple(trace.scalars[c:d]),
        len(trace.refs),
        numbers,
        tuple([x._number for x in ends]),
        cotangents is None,
        tuple([x.aval for x in tape.inputs]),
    )


def _planned(
    key: Hashable, tape: Tape, trace: Trace, outputs: Sequence[Array], cotangents: Sequence[Array] | None
) -> list[Array]:
    """Walk the tape and remember what the walk appended, if it stayed within the trace and used nothing new."""
    before = len(trace.flat), len(trace.scalars), len(trace.refs), len(trace.leaves)
    grads = _walk(tape, outputs, cotangents)
    own = thread.trace is trace and len(trace.leaves) == before[3]
    if own and all(x._trace is trace and x._number >= before[2] for x in grads):
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        _plans[key] = Plan(
            tuple(trace.flat[before[0] :]),
            tuple(trace.scalars[before[1] :]),
            len(trace.refs) - before[2],
            tuple((x._number, x.aval) for x in grads),
        )
    return grads
