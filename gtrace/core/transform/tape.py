"""Reverse mode: the recorded operations are the tape.

A gradient runs its function on fresh Arrays while the current trace keeps a tape, then walks the tape backwards. The
rules record ordinary operations in the same trace. So forward pass, backward pass and update become one program, and
gradients of gradients need nothing more.

The walk depends only on the recording. Its entries in the trace's list are cached as a `CachedPullback`. If the same
entries are recorded again at the same list position, the cached entries are appended without running rules.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs
import torch

from gtrace.core import ops
from gtrace.core.base.bounded_tables import SMALL, BoundedTable
from gtrace.core.base.errors import user_location
from gtrace.core.base.events import Recorded, bus
from gtrace.core.base.mechanisms import OPEN_RULES
from gtrace.core.base.tree import TreeDef
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Scalar
from gtrace.core.ir.op import Instr
from gtrace.core.ir.reach import reached_results
from gtrace.core.ops.elementwise import identity, neg
from gtrace.core.ops.shape import constant, unbroadcast
from gtrace.core.trace.array import Array, fresh
from gtrace.core.trace.bind import new_pending
from gtrace.core.trace.record import PADDING, SETTLED, TapeEntry, Trace, followers, thread
from gtrace.core.transform.arguments import ArrayCall, lift_outputs, split_aux
from gtrace.core.transform.open_pullbacks import Note, OpenPullback, composed, open_key
from gtrace.core.transform.open_rules import DerivedCall, OpenRule, derived_call, open_rule

PULL = "pull"
"""The name of a walk that applies rules alone."""

MAX_PULLBACKS = 1024
"""Size of the table of cached pullbacks."""

ENTRY = 60
"""Bytes of a list entry, in the key or in the cached entries."""


@attrs.define(eq=False)
class Tape:
    """The recording of one gradient.

    Attributes:
        inputs: the fresh Arrays to differentiate with respect to.
        entries: (instruction, operands, result), in order.
        trace: the trace that holds the recording.
        flat, scalars: (start, stop) of the recording in the trace's lists.
        notes: what the rules record in a walk that is to be composed for other sizes; None: nobody wants to know.
        steady: sizes that another recording had, too.
    """

    inputs: list[Array]
    entries: list[TapeEntry]
    trace: Trace
    flat: tuple[int, int]
    scalars: tuple[int, int]
    notes: list[Note] | None = None
    steady: frozenset[int] = frozenset()


def record(inputs: Sequence[Array], function: Callable[[list[Array]], Any]) -> tuple[Any, Tape]:
    """Run `function` on fresh copies of `inputs`, and tape its recording."""
    trace = thread.trace
    outermost = trace.tape is None
    entries: list[TapeEntry] = [] if trace.tape is None else trace.tape
    if outermost and trace.capture is None:
        copies = [fresh(x) if x._buf is not None else identity(x) for x in inputs]
    else:
        # the copy is an operation that an enclosing gradient must see; one around a capture gets it with the program
        copies = [identity(x) for x in inputs]
    for x in copies:
        if x._trace is SETTLED:
            x._number = thread.mark
    start = len(entries)
    trace = thread.trace  # copying may have cut the trace
    flat, scalars = len(trace.flat), len(trace.scalars)
    try:
        # no interrupt arrives between the `try` and the next statement, nor before the first one of the `finally`
        if outermost:
            thread.trace.tape = entries
        followers[id(copies)] = thread.mark, lambda x: id(x) in _followed(copies, entries[start:])[0]
        # torch.no_grad() around a gradient has no effect; inside the function it stops gradients
        result = function(copies) if torch.is_grad_enabled() else torch.enable_grad()(function)(copies)
    finally:
        if outermost:
            thread.trace.tape = None
        followers.pop(id(copies), None)
        if outermost:
            for x in copies:
                if x._trace is SETTLED:
                    x._number = -1
            if thread.trace is not trace:
                for _, _, x in entries:
                    if x._trace is SETTLED:
                        x._number = -1
    if not outermost:
        entries = entries[start:]
    return result, Tape(copies, entries, trace, (flat, len(trace.flat)), (scalars, len(trace.scalars)))


def run_taped(name: str, call: ArrayCall, has_aux: bool) -> tuple[list[Array], TreeDef, Tape, Any]:
    """Run a user's function on fresh arguments; return its outputs, their structure, the tape and aux."""
    aux: list[Any] = []

    def run(arrays: list[Array]) -> tuple[list[Array], TreeDef]:
        value, extra = split_aux(name, call.run(arrays), has_aux)
        aux.append(extra)
        return lift_outputs(name, value)

    (outputs, structure), tape = record(call.inputs, run)
    return outputs, structure, tape, aux[0]


def pull(tape: Tape, outputs: Sequence[Array], cotangents: Sequence[Array] | None = None) -> list[Array]:
    """Walk the tape backwards; return the cotangents of its inputs. Without `cotangents`, they begin as ones."""

    def walk() -> list[Array]:
        found = pull_some(tape, outputs, cotangents)
        return [constant(0, x.aval) if g is None else g for x, g in zip(tape.inputs, found, strict=True)]

    return recorded_once(PULL, tape, outputs, cotangents, walk)


def recorded_once(
    walk: Hashable, tape: Tape, outputs: Sequence[Array], cotangents: Sequence[Array] | None,
    make: Callable[[], list[Array]],
) -> list[Array]:  # fmt: skip
    """Return the result of `make`, a `walk` of the tape from `outputs`. Entries of an equal earlier walk are reused."""
    before = thread.walking
    thread.walking = True
    try:
        return _recorded_once(walk, tape, outputs, cotangents, make)
    finally:
        thread.walking = before


def _recorded_once(
    walk: Hashable, tape: Tape, outputs: Sequence[Array], cotangents: Sequence[Array] | None,
    make: Callable[[], list[Array]],
) -> list[Array]:  # fmt: skip
    trace = thread.trace
    if trace is not tape.trace or trace.tape is not None or not in_one_go(trace):
        # a force cut the trace, or an enclosing gradient or a log must see each operation
        return make()
    key = walk_key(walk, tape, trace, outputs, cotangents)
    if key is None:
        return make()
    known = _pullbacks.get(key)
    if known is None:
        new = _at_new_sizes if walk == PULL and OPEN_RULES.on else _remembered
        return new(key, tape, trace, outputs, cotangents, make)
    results = known.replay(trace)
    return make() if results is None else results


def _followed(inputs: Sequence[Array], entries: Sequence[TapeEntry]) -> tuple[set[int], list[TapeEntry]]:
    """Return the identities of values that depend on `inputs` differentiably, and the entries that compute them."""
    reached = {id(x) for x in inputs}
    parts: dict[int, tuple[bool, ...]] = {}
    steps: list[TapeEntry] = []
    for entry in entries:
        instr, operands, out = entry
        if (instr.op.rules.nondiff is None or instr.op.projection) and instr.aval.floating:
            for x in operands:
                if id(x) in reached:
                    if instr.op.rules.reached is not None:
                        parts[id(out)] = reached_results(instr, [id(each) in reached for each in operands])
                    elif instr.op.projection and id(x) in parts and not parts[id(x)][instr.index]:
                        break
                    reached.add(id(out))
                    steps.append(entry)
                    break
    return reached, steps


def in_one_go(trace: Trace) -> bool:
    """Whether operations may be appended at once: they need no handling except that their lines are noted."""
    if trace.capture is None:
        return trace.limit != 0
    return thread.layout is None and Recorded not in bus.wanted


_BACKWARD = " (its backward pass)"


def _backward(line: str) -> str:
    """Return the line to note for the derivative of an operation."""
    return f"{line.removesuffix(_BACKWARD)}{_BACKWARD}"


def pull_some(
    tape: Tape, outputs: Sequence[Array], cotangents: Sequence[Array] | None = None
) -> list[Array | None]:  # fmt: skip
    """Walk the tape backwards as `pull` does; return None for inputs that no cotangent reaches."""
    before, home, layout = thread.origin, thread.region, thread.layout
    reached, steps = _followed(tape.inputs, tape.entries)
    found: dict[int, Any] = {}
    for k, out in enumerate(outputs):
        if id(out) in reached:
            ct = constant(1, out.aval) if cotangents is None else cotangents[k]
            found[id(out)] = ops.add(found[id(out)], ct) if id(out) in found else ct
    locations = tape.trace.locations
    try:
        thread.lay_out(None)  # the operations' own rules lay out gradients
        for instr, operands, out in reversed(steps):
            if tape.trace.marks:
                region = tape.trace.region(out._number) if out._trace is tape.trace else None
                thread.switch(home if region is None else region.backward or region)
            if locations is not None:
                made = locations.get(out._number) if out._trace is tape.trace else None
                thread.origin = made and _backward(made)
            cotangent = found.pop(id(out), None)
            if cotangent is None:
                continue
            if instr.op.projection:
                # the cotangent of several results is a list, with None for those that have none
                whole, k = operands[0], instr.index
                slots = found.setdefault(id(whole), [None] * len(whole.aval.avals))
                slots[k] = cotangent if slots[k] is None else ops.add(slots[k], cotangent)
            else:
                _apply(instr, operands, out, cotangent, reached, found, tape)
    finally:
        # a rule may raise, or be interrupted
        thread.origin = before
        thread.switch(home)
        thread.lay_out(layout)
    return [found.get(id(x)) for x in tape.inputs]


def _apply(
    instr: Instr, operands: Sequence[Any], out: Array, ct: Any, reached: set[int], found: dict[int, Any],
    tape: Tape,
) -> None:  # fmt: skip
    """Apply one operation's rule, and add to the cotangents of its operands."""
    needed = [id(x) in reached for x in operands]
    flat = thread.trace.flat
    start = len(flat)
    grads = _rule(instr, operands, out, ct, needed)
    if tape.notes is not None and out._trace is thread.trace and any(g is not None for g in grads):
        rule: OpenRule | DerivedCall | None
        if ct.__class__ is list:
            rule = derived_call(instr, ct, needed)
        else:
            rule = open_rule(_rule, instr, operands, out, ct, needed, tape.steady)
        tape.notes.append(Note(out._number, start, len(flat), rule))
    for x, g in zip(operands, grads, strict=True):
        if g is not None:
            found[id(x)] = ops.add(found[id(x)], g) if id(x) in found else g


def _rule(
    instr: Instr, operands: Sequence[Any], out: Array, ct: Any, needed: Sequence[bool]
) -> list[Array | None]:  # fmt: skip
    """Return the cotangents that an operation's rule gives the operands that need one."""
    op = instr.op
    values = [x.value if x.__class__ is Scalar else x for x in operands]
    named = dict(zip(op.params, instr.params, strict=True))
    before = thread.in_rule
    thread.in_rule = True
    try:
        if op.rules.partials is not None:
            grads: Sequence[Array | None] = [
                _scale(ct, partial(*values, out, **named)) if need else None
                for partial, need in zip(op.rules.partials, needed, strict=True)
            ]
        else:
            assert op.rules.vjp is not None
            grads = op.rules.vjp(ct, needed, *values, out, **named)
        return [
            None if g is None or not need else unbroadcast(g, x.aval) if op.elementwise else g
            for x, need, g in zip(operands, needed, grads, strict=True)
        ]
    finally:
        thread.in_rule = before


def _scale(ct: Array, partial: Any) -> Array:
    if partial.__class__ is int:
        return ct if partial == 1 else neg(ct)
    return ops.multiply(ct, partial)


# -- cached pullbacks


@attrs.frozen(eq=False)
class CachedPullback:
    """The entries that a backward walk appended to the trace.

    Attributes:
        start: the position in the trace's list.
        flat, scalars: the entries that were appended to each of the trace's lists.
        results: (number, aval) of the cotangent of each input.
        lines: in captures, the number and the line of each operation; None: the line of the gradient itself.
    """

    start: int
    flat: tuple[Any, ...]
    scalars: tuple[bool | int | float | complex, ...]
    results: tuple[tuple[int, Aval], ...]
    lines: tuple[tuple[int, str | None], ...]

    def replay(self, trace: Trace) -> list[Array] | None:
        """Append the entries to `trace`; return the results, or None if another recording came in between."""
        slots, flat = trace.scalars, trace.flat
        start = len(slots)
        slots += self.scalars
        flat += self.flat
        end = len(flat)
        if end - len(self.flat) != self.start or len(slots) - len(self.scalars) != start:
            # a signal handler or finalizer recorded an operation, so the value numbers in the entries are wrong
            flat[end - len(self.flat) : end] = (PADDING,) * len(self.flat)
            return None
        if trace.locations is not None:
            here = thread.origin or user_location()
            trace.locations.update([(number, line or here) for number, line in self.lines])
        arrays: dict[int, Array] = {}
        out = []
        for number, a in self.results:
            x = arrays.get(number)
            if x is None:
                x = arrays[number] = new_pending(trace, a, number)
                trace.refs.append(weakref.ref(x))
            out.append(x)
        return out


_pullbacks: BoundedTable[Hashable, CachedPullback] = BoundedTable(
    MAX_PULLBACKS, lambda found: SMALL + ENTRY * (found.start + len(found.flat) + len(found.lines))
)


def walk_key(
    walk: Hashable, tape: Tape, trace: Trace, outputs: Sequence[Array], cotangents: Sequence[Array] | None
) -> Hashable | None:
    """Return the key of a backward walk; None if an output has no number in the trace.

    The key holds the recorded entries and scalars, and the lengths of the trace's lists. It also holds the outputs,
    their cotangents, and which operands are the tape's inputs. An input shares its buffer, and so its number, with the
    Array it copies. In captures, the key also holds the lines of the operations, from which those of the walk follow.
    """
    if trace.special or trace.marks:
        return None  # the list does not show user-defined rules and regions
    ends = outputs if cotangents is None else (*outputs, *cotangents)
    for x in ends:
        if x._trace is not trace:
            return None
    # number the inputs -2, -3, ... while the key is built, to tell them from the Arrays they copy
    for k, x in enumerate(tape.inputs):
        if x._trace is SETTLED:
            x._number = -2 - k
    numbers = tuple([x._number for _, operands, _ in tape.entries for x in operands if x.__class__ is Array])
    for x in tape.inputs:
        if x._trace is SETTLED:
            x._number = -1
    a, b = tape.flat
    c, d = tape.scalars
    locations = trace.locations
    return (
        walk,
        tuple(trace.flat[a:b]),
        tuple(trace.scalars[c:d]),
        len(trace.flat),
        len(trace.scalars),
        numbers,
        tuple([x._number for x in ends]),
        cotangents is None,
        tuple([x.aval for x in tape.inputs]),
        None if locations is None else tuple([locations.get(x._number) for _, _, x in tape.entries]),
    )


@attrs.define(eq=False)
class Walks:
    """The walks of recordings of one structure.

    Attributes:
        first: the sizes of the first one.
        met: how many sizes were met.
        found: walks with their sizes left open, which hold under different conditions; None: it was another one.
    """

    first: tuple[int, ...]
    met: int = 1
    found: list[OpenPullback | None] = attrs.field(factory=list)


_open: BoundedTable[Hashable, Walks] = BoundedTable(
    MAX_PULLBACKS, lambda walks: SMALL + 3 * ENTRY * sum(len(one.steps) for one in walks.found if one is not None)
)

LEAST_MET = 3
"""Sizes after which a walk is composed for others: that takes as long as some walks."""

MOST_WALKS = 4
"""Walks of one structure that are composed."""


def _at_new_sizes(
    key: Any, tape: Tape, trace: Trace, outputs: Sequence[Array], cotangents: Sequence[Array] | None,
    make: Callable[[], list[Array]],
) -> list[Array]:  # fmt: skip
    """Return the result of `make`. From the third size of a walk on, its entries are those of other sizes."""
    a, b = tape.flat
    found = open_key(trace.flat[a:b])
    alike = cotangents is None or all(ct.aval is x.aval for x, ct in zip(outputs, cotangents, strict=True))
    if found is None or not alike or any(x.aval.__class__ is not Aval for x in tape.inputs):
        return _remembered(key, tape, trace, outputs, cotangents, make)
    entries, sizes = found
    name = key[0], entries, *key[3:-2], tuple([x.aval.kind for x in tape.inputs]), key[-1]
    known = _open.get(name)
    if known is None:
        _open.remember(name, Walks(sizes))
        return _remembered(key, tape, trace, outputs, cotangents, make)
    for one in known.found:
        results = None if one is None else one.replay(trace, sizes, tape.inputs)
        if results is not None:
            OPEN_RULES.used()
            return results
        if len(trace.flat) != key[3]:
            return make()
    known.met += 1
    if known.met < LEAST_MET or len(known.found) >= MOST_WALKS:
        return _remembered(key, tape, trace, outputs, cotangents, make)
    start, first = len(trace.flat), len(trace.scalars)
    notes: list[Note] = []
    tape.notes, tape.steady = notes, frozenset(sizes) & frozenset(known.first)
    try:
        grads = _remembered(key, tape, trace, outputs, cotangents, make)
    finally:
        tape.notes = None
    made = None
    if key in _pullbacks and len(trace.flat) > start:
        made = composed(trace, start, first, notes, tape.inputs, grads, _pullbacks[key].lines, sizes)
    known.found.append(made)
    return grads


def _remembered(
    key: Hashable, tape: Tape, trace: Trace, outputs: Sequence[Array], cotangents: Sequence[Array] | None,
    make: Callable[[], list[Array]],
) -> list[Array]:  # fmt: skip
    """Walk the tape and cache the appended entries, unless the trace was cut or got new inputs."""
    flat, scalars, leaves = len(trace.flat), len(trace.scalars), len(trace.leaves)
    grads = make()
    own = thread.trace is trace and len(trace.leaves) == leaves
    if own and all(x._trace is trace and x._number >= flat for x in grads):
        results = tuple((x._number, x.aval) for x in grads)
        appended = tuple(trace.flat[flat:]), tuple(trace.scalars[scalars:])
        _pullbacks.remember(key, CachedPullback(flat, *appended, results, _lines(tape, trace, flat)))
    return grads


def _lines(tape: Tape, trace: Trace, start: int) -> tuple[tuple[int, str | None], ...]:
    """Return the `lines` of a walk that was recorded from `start` on."""
    locations = trace.locations
    if locations is None:
        return ()
    derived = {_backward(line) for _, _, x in tape.entries if (line := locations.get(x._number))}
    return tuple((n, line if line in derived else None) for n, line in locations.items() if n >= start)
