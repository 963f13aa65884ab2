"""Backward walks with their sizes left open: what one appended to the list, for recordings of other sizes.

A walk applies a rule to each operation. If each of these rules records the same operations at any size (`open_rules`),
so does the walk. Its entries are then appended at once, with the instructions of the sizes of the recording.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import attrs

from gtrace.core.base.errors import user_location
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.op import Instr, Op, Params
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import new_pending
from gtrace.core.trace.capture import GONE
from gtrace.core.trace.force import number_of
from gtrace.core.trace.open_programs import Conditions, Count, Number, Size, split
from gtrace.core.trace.record import PADDING, Trace, thread
from gtrace.core.transform.open_rules import DerivedCall, OpenRule, sizes_of


@attrs.frozen(eq=False)
class Note:
    """What a rule has recorded.

    Attributes:
        number: that of the result of the operation.
        start, stop: positions in the list.
        rule: the same for other sizes; None: it differs, or may do so where it records nothing here.
    """

    number: int
    start: int
    stop: int
    rule: OpenRule | DerivedCall | None


@attrs.frozen
class ShapeOf:
    """The shape of an input of the gradient.

    Attributes:
        place: that of the input.
    """

    place: int


@attrs.frozen
class NumberOf:
    """A number that follows from a recorded one.

    Attributes:
        slot: that of the recorded number.
        what: how it follows.
    """

    slot: int
    what: Number


@attrs.frozen
class DerivedOf:
    """The attributes of the call that a rule records for a recorded operation.

    Attributes:
        number: that of its result.
    """

    number: int
    rule: DerivedCall


def _filled(attributes: Any, trace: Trace, sizes: Sequence[int], inputs: Sequence[Array]) -> Any:
    """Return attributes or numbers for a recording."""
    kind = attributes.__class__
    if kind is tuple:
        return tuple([_filled(x, trace, sizes, inputs) for x in attributes])
    if kind is Size or kind is Count:
        return attributes.of(sizes)
    if kind is ShapeOf:
        return inputs[attributes.place].aval.shape
    if kind is DerivedOf:
        return attributes.rule.of(trace.flat[attributes.number])
    return attributes.what.of(trace.scalars[attributes.slot]) if kind is NumberOf else attributes


Step = tuple[Op, Params, bool, tuple[int, ...], tuple[int, ...]]
"""An operation, its attributes, whether these depend on sizes, its operands, and where the types of these stand."""


@attrs.frozen(eq=False)
class OpenPullback:
    """The entries that a backward walk appends to recordings of one structure. Types are numbered as they are needed.

    Attributes:
        start: the position in the list.
        values: the recorded values whose types are read.
        constants: types of numbers.
        steps: the operations.
        scalars: numbers, some of which follow from sizes or recorded numbers.
        fixed: (slot, number): the recorded numbers for which this holds.
        conditions: what must hold for the sizes of the recording.
        results: (number, its type) of the cotangent of each input.
        lines: see `gtrace.core.transform.tape.CachedPullback`.
    """

    start: int
    values: tuple[int, ...]
    constants: tuple[Aval, ...]
    steps: tuple[Step, ...]
    scalars: tuple[Any, ...]
    fixed: tuple[tuple[int, Any], ...]
    conditions: Conditions
    results: tuple[tuple[int, int], ...]
    lines: tuple[tuple[int, str | None], ...]

    def replay(self, trace: Trace, sizes: Sequence[int], inputs: Sequence[Array]) -> list[Array] | None:
        """Append the entries to `trace`; return the results.

        None: its numbers or sizes are others, or another recording came in between.

        Args:
            sizes: those of the recording; see `open_key`.
            inputs: those of the gradient.
        """
        slots, flat = trace.scalars, trace.flat
        for slot, value in self.fixed:
            if slots[slot].__class__ is not value.__class__ or exact_key(slots[slot]) != exact_key(value):
                return None
        if not self.conditions.hold(sizes):
            return None
        kinds = [flat[number].aval for number in self.values]
        kinds += self.constants
        entries: list[Any] = []
        for op, params, is_open, codes, sources in self.steps:
            if is_open:
                params = _filled(params, trace, sizes, inputs)
            avals = tuple([kinds[k] for k in sources])
            instr = op.table.get((params, *avals) if params else avals) or op.instr(params, avals)
            entries.append(instr)
            entries += codes
            kinds.append(instr.aval)
        scalars = _filled(self.scalars, trace, sizes, inputs)
        start = len(slots)
        slots += scalars
        flat += entries
        end = len(flat)
        if end - len(entries) != self.start or len(slots) - len(scalars) != start:
            # a signal handler or finalizer recorded an operation, so the value numbers in the entries are wrong
            flat[end - len(entries) : end] = (PADDING,) * len(entries)
            return None
        if trace.locations is not None:
            here = thread.origin or user_location()
            trace.locations.update([(number, line or here) for number, line in self.lines])
        arrays: dict[int, Array] = {}
        for number, kind in self.results:
            if number not in arrays:
                arrays[number] = new_pending(trace, kinds[kind], number)
                trace.refs.append(weakref.ref(arrays[number]))
        trace.refs += (GONE,) * (len(self.steps) - len(arrays))
        return [arrays[number] for number, _ in self.results]


def open_key(entries: Sequence[Any]) -> tuple[Hashable, tuple[int, ...]] | None:
    """Return what recorded entries share with those of other sizes, and their sizes; None: there are too many."""
    key: list[Any] = []
    places: dict[Any, int] = {}
    shapes: list[tuple[int, ...]] = []
    attributes = []
    for x in entries:
        if x.__class__ is int:
            key.append(x)
            continue
        key.append(x.structure)
        if x.__class__ is Instr:
            kinds: tuple[Any, ...] = (x.aval, *x.ins)  # an operand may have been recorded earlier
            if x.params:
                attributes.append(tuple([value for value in x.params if not getattr(value, "deferred", False)]))
        elif x is PADDING:
            continue
        else:
            kinds = (x.aval,)
        for a in kinds:
            place = places.get(a)
            if place is None:
                place = places[a] = len(places)
                shapes += [a.shape] if a.__class__ is Aval else [each.shape for each in a.avals]
            key.append(place)
    found = split(shapes, attributes)
    return None if found is None else ((tuple(key), found[1]), found[0])


def composed(
    trace: Trace, start: int, first: int, notes: Sequence[Note], inputs: Sequence[Array], grads: Sequence[Array],
    lines: tuple[tuple[int, str | None], ...], sizes: tuple[int, ...],
) -> OpenPullback | None:  # fmt: skip
    """Return the walk that was just recorded, for recordings of other sizes; None if it differs there.

    Args:
        start, first: where the walk began in the list, and in the numbers.
        notes: what each rule has recorded, in order.
        inputs, grads: those of the walk, and their cotangents.
        lines: of its operations.
        sizes: those of the recording.
    """
    made = _Composition(trace, start, first, sizes)
    zeros = {number_of(g): k for k, g in enumerate(grads)}
    at, following = start, list(reversed(notes))
    steps: list[tuple[Op, Params, tuple[Any, ...], tuple[Any, ...]]] | None = None
    stop = owner = start
    call: DerivedOf | None = None
    while at < len(trace.flat):
        instr = trace.flat[at]
        if instr.__class__ is not Instr:
            return None
        while following and following[-1].start <= at:
            if steps:
                return None
            note = following.pop()
            rule, owner, stop, call = note.rule, note.number, note.stop, None
            if rule is None:
                return None
            if isinstance(rule, DerivedCall):
                call = DerivedOf(owner, rule)
                continue
            steps = list(reversed(rule.program.steps))
            if steps and stop == note.start:
                return None
            made.take_conditions(owner, rule)
        if call is not None and at < stop:
            derived = exact_key(_filled(call, trace, sizes, ()))
            if instr.op is trace.flat[owner].op and derived == exact_key(instr.params):
                made.add(at, instr, call, True)
            elif instr.op.projection:
                made.add(at, instr, instr.params, False)
            else:
                return None
        elif at < stop:
            if not steps or not made.add_by_rule(at, instr, owner, steps.pop()):
                return None
        elif instr.op.constant and at in zeros and not instr.params[0] == ():
            if inputs[zeros[at]].aval.shape != instr.params[0]:
                return None
            made.add(at, instr, (ShapeOf(zeros[at]), *instr.params[1:]), True)
        elif instr.params and not (instr.op.constant and instr.params[0] == ()):
            return None
        else:
            made.add(at, instr, instr.params, False)
        at += 1 + len(instr.ins)
    for note in following:  # what they return was there before
        if not isinstance(note.rule, OpenRule) or note.rule.program.steps:
            return None
        made.take_conditions(note.number, note.rule)
    if steps:
        return None
    return made.finished(list(map(number_of, grads)), lines)


class _Composition:
    """Collects the steps of an `OpenPullback`."""

    def __init__(self, trace: Trace, start: int, first: int, sizes: tuple[int, ...]) -> None:
        self.trace, self.start, self.first = trace, start, first
        self.places = {n: k for k, n in enumerate(sizes)}
        self.sizes = sizes
        self.values: dict[int, int] = {}
        self.constants: list[Aval] = []
        self.made: list[tuple[Op, Any, bool, tuple[int, ...], list[Any]]] = []
        self.results: dict[int, int] = {}
        self.scalars: list[Any] = list(trace.scalars[first:])
        self.fixed: dict[int, Any] = {}
        self.products: dict[Any, None] = {}
        self.orders: dict[Any, None] = {}
        self.kept: dict[int, int] = {}

    def add(self, at: int, instr: Instr, params: Any, is_open: bool) -> None:
        """Add the operation at a position."""
        codes = tuple(self.trace.flat[at + 1 : at + 1 + len(instr.ins)])
        sources: list[Any] = []
        for code, a in zip(codes, instr.ins, strict=True):
            if code < 0:
                sources.append(("constant", len(self.constants)))
                self.constants.append(a)
            elif code < self.start:
                sources.append(("value", self.values.setdefault(code, len(self.values))))
            else:
                sources.append(("made", self.results[code]))
        self.results[at] = len(self.made)
        self.made.append((instr.op, params, is_open, codes, sources))

    def add_by_rule(self, at: int, instr: Instr, owner: int, step: Any) -> bool:
        """Add an operation that the rule of a recorded one has; returns whether it is just what the rule says."""
        op, attributes, _, numbers = step
        flat, trace, sizes = self.trace.flat, self.trace, self.sizes
        params = self._bound(attributes, owner)
        if op is not instr.op or exact_key(_filled(params, trace, sizes, ())) != exact_key(instr.params):
            return False
        slots = [(-1 - code) >> 1 for code in flat[at + 1 : at + 1 + len(instr.ins)] if code < 0]
        if len(slots) != len(numbers):
            return False
        for slot, number in zip(slots, numbers, strict=True):
            value = self._bound(number, owner)
            if slot < self.first or exact_key(_filled(value, trace, sizes, ())) != exact_key(trace.scalars[slot]):
                return False
            self.scalars[slot - self.first] = value
        self.add(at, instr, params, params != instr.params)
        return True

    def finished(self, grads: Sequence[int], lines: tuple[tuple[int, str | None], ...]) -> OpenPullback | None:
        """Return the walk with these results."""
        if any(number not in self.results for number in grads):
            return None
        offsets = {"value": 0, "constant": len(self.values), "made": len(self.values) + len(self.constants)}
        steps = [
            (op, params, is_open, codes, tuple([offsets[kind] + k for kind, k in sources]))
            for op, params, is_open, codes, sources in self.made
        ]
        results = tuple((number, offsets["made"] + self.results[number]) for number in grads)
        return OpenPullback(
            self.start, tuple(self.values), tuple(self.constants), tuple(steps), tuple(self.scalars),
            tuple(self.fixed.items()), self.conditions, results, lines,
        )  # fmt: skip

    def slots_of(self, number: int) -> list[int]:
        """Return the slots of the numbers that a recorded operation takes."""
        codes = self.trace.flat[number + 1 : number + 1 + len(self.trace.flat[number].ins)]
        return [(-1 - code) >> 1 for code in codes if code < 0]

    @property
    def conditions(self) -> Conditions:
        """What must hold for the sizes of the recording."""
        return Conditions(tuple(self.products), tuple(self.orders), tuple(self.kept.items()))

    def take_conditions(self, number: int, rule: OpenRule) -> None:
        """Note what must hold for the sizes and numbers of a recorded operation."""
        if rule.fixed:
            self.fixed.update({slot: self.trace.scalars[slot] for slot in self.slots_of(number)})
        conditions = rule.program.conditions
        for k, places, offset in conditions.products:
            place, *others = self._places((k, *places), number)
            self.products[place, tuple(others), offset] = None
        for order in conditions.orders:
            self.orders[self._places(order, number)] = None
        for k, n in conditions.kept:
            self.kept[self._places((k,), number)[0]] = n

    def _places(self, places: Sequence[int], number: int) -> tuple[int, ...]:
        """Return the places of sizes of a recorded operation among those of the recording."""
        known = sizes_of(self.trace.flat[number])
        assert known is not None
        return tuple([self.places[known[0][k]] for k in places])

    def _bound(self, attributes: Any, number: int) -> Any:
        """Return attributes with the sizes and numbers of a recorded operation."""
        kind = attributes.__class__
        if kind is tuple:
            return tuple([self._bound(x, number) for x in attributes])
        if kind is Number:
            return NumberOf(self.slots_of(number)[attributes.place], attributes)
        if kind is Size:
            return attrs.evolve(attributes, place=self._places((attributes.place,), number)[0])
        return attrs.evolve(attributes, places=self._places(attributes.places, number)) if kind is Count else attributes
