"""What a pure function records, with its sizes left open.

A library function, or the rule of a derivative, is Python code that records some operations. Most record the same
operations at any size, and each integer in them is a constant or a size of an operand. Whether that holds is found by
trying: the function runs for the sizes of a call, and with other numbers in their place, small and large ones, primes
and powers of two. If all recordings agree, they are its program for all sizes that are equal, zero or one in the same
places.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs

from gtrace.core.base.errors import GtraceError, user_location
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.edit import renumber
from gtrace.core.ir.graph import Graph, Scalar
from gtrace.core.ir.op import Op, Params
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import as_input, new_pending, overflow
from gtrace.core.trace.capture import GONE
from gtrace.core.trace.record import Trace, thread

TRIED = (
    (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37),
    (101, 61, 31, 17, 13, 11, 7, 5, 3, 19, 23, 29),
    (64, 32, 16, 8, 4, 2, 128, 256, 512, 1024, 2048, 4096),
)
"""The sizes that stand in for those of a call, each time."""

LARGE = 20011
"""Stands in for one size after the other, beside the first of `TRIED`: a function may do something else for many
elements. All sizes together would make constants of functions too large."""

NUMBERS = (3.75, -0.3, 1000.0)
"""The numbers that stand in for those of a call, in turn. Those of one operation differ."""

MOST_FACTORS = 4
"""Sizes that are multiplied to another one or to a count, at most."""

FORMS = ((1, 0), (1, -1), (-1, 0), (1, 1), (-1, -1))
"""(factor, offset): what integers of a program are made of sizes, such as the last index of an axis."""

LEAST = 9
"""Integers that are less far from 0 may be anything, such as axes: they are sizes only where they equal one."""


@attrs.frozen
class Size:
    """An integer that follows from one of the sizes of a call.

    Attributes:
        place: which one; see `split`.
        factor, offset: the integer is ``factor * size + offset``.
    """

    place: int
    factor: int = 1
    offset: int = 0

    def of(self, sizes: Sequence[int]) -> int:
        """Return the integer."""
        return self.factor * sizes[self.place] + self.offset


MOST_SIZES = 64
"""Different sizes of a pattern, at most."""

_MARKS = tuple(tuple(object() for _ in FORMS) for _ in range(MOST_SIZES))
"""Stand for sizes in patterns, and for what follows from them."""


def _following(sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Iterate over the integers that follow from sizes, each with the size and the form. Sizes come first."""
    for form, (factor, offset) in enumerate(FORMS):
        for place, n in enumerate(sizes):
            value = factor * n + offset
            if not form or abs(value) >= LEAST:
                yield value, place, form


@attrs.frozen
class Count:
    """A number that is a product of sizes, such as the count of elements, by which a mean divides.

    Attributes:
        places: which ones; see `split`.
        kind: float or int.
    """

    places: tuple[int, ...]
    kind: type

    def of(self, sizes: Sequence[int]) -> Any:
        """Return the number."""
        return self.kind(math.prod([sizes[k] for k in self.places]))


@attrs.frozen
class Conditions:
    """What must hold for the sizes of a call, beside their pattern.

    Attributes:
        products: (size, sizes, offset): the size is the product of these, plus the offset.
        orders: each has sizes from the smallest to the largest.
        kept: (size, value): these are not open.
    """

    products: tuple[tuple[int, tuple[int, ...], int], ...] = ()
    orders: tuple[tuple[int, ...], ...] = ()
    kept: tuple[tuple[int, int], ...] = ()

    def hold(self, sizes: Sequence[int]) -> bool:
        """Whether they hold for these sizes."""
        if any(sizes[k] != n for k, n in self.kept):
            return False
        if any(sizes[k] != math.prod([sizes[j] for j in places]) + offset for k, places, offset in self.products):
            return False
        return all(sizes[a] < sizes[b] for order in self.orders for a, b in itertools.pairwise(order))


_DERIVED: dict[str, Callable[[float], float]] = {
    "same": lambda x: x, "inverse": lambda x: 1.0 / x if x else math.copysign(math.inf, x), "negative": lambda x: -x,
    "less": lambda x: x - 1.0,
}  # fmt: skip
"""What rules make of a number."""


@attrs.frozen
class Number:
    """A number that follows from one of those of a call.

    Attributes:
        place: which one.
        how: the name of a function; see `_DERIVED`.
    """

    place: int
    how: str

    def of(self, value: Any) -> float:
        """Return the number."""
        return _DERIVED[self.how](value)


def split(
    shapes: Sequence[tuple[int, ...]], attributes: Sequence[Any] = ()
) -> tuple[tuple[int, ...], tuple[Any, ...]] | None:
    """Return the different sizes above 1 of a call, and the pattern that calls with other sizes share.

    An integer among the attributes that equals a size, or follows from one by `FORMS`, is taken for it. None: there are
    too many sizes.

    >>> split([(5, 7), (7,)])[0]
    (5, 7)
    >>> split([(5, 7)], [(7, 1)])[1] == split([(4, 3)], [(3, 1)])[1] != split([(5, 7)], [(5, 1)])[1]
    True
    """
    numbers: dict[int, int] = {}
    pattern: list[Any] = []
    for shape in shapes:
        pattern += [n if n < 2 else 2 + numbers.setdefault(n, len(numbers)) for n in shape]
        pattern.append(-1)
    if len(numbers) > len(_MARKS):
        return None
    sizes = tuple(numbers)
    if not attributes:
        return sizes, tuple(pattern)
    marks: dict[int, Any] = {}
    for value, place, form in _following(sizes):
        marks.setdefault(value, _MARKS[place][form])
    return sizes, (*pattern, *[_marked(value, marks) for value in attributes])


def _marked(value: Any, marks: Mapping[int, Any]) -> Any:
    kind = value.__class__
    if kind is int:
        return marks.get(value, value)
    return tuple([_marked(x, marks) for x in value]) if kind is tuple else value


def changes(sizes: Sequence[int], others: Sequence[int]) -> dict[int, int]:
    """Return which integers become others if sizes do.

    >>> found = changes((20, 3), (64, 7))
    >>> found[20], found[3], found[19], found[-20]
    (64, 7, 63, -64)
    """
    found: dict[int, int] = {}
    for value, place, form in _following(sizes):
        factor, offset = FORMS[form]
        found.setdefault(value, factor * others[place] + offset)
    return found


def resized(value: Any, sizes: Mapping[int, int]) -> Any:
    """Return an aval or an attribute with other sizes; see `changes`.

    >>> resized((True, (5, 2), "mean"), {5: 64})
    (True, (64, 2), 'mean')
    """
    kind = value.__class__
    if kind is int:
        return sizes.get(value, value)
    if kind is tuple:
        return tuple([resized(x, sizes) for x in value])
    if kind is Aval:
        return aval(resized(value.shape, sizes), value.dtype, value.device, value.weak)
    return value


@attrs.frozen(eq=False)
class OpenProgram:
    """What a function records, for any sizes of one pattern. Values are numbered: inputs, then results.

    Attributes:
        steps: of each operation its attributes, with `Size` for a size, what it takes, values and the avals of numbers,
            and its numbers, some as `Count` or `Number`.
        outputs: the values that are returned.
        result: what the function returned beside them.
        conditions: what must hold for the sizes.
    """

    steps: tuple[tuple[Op, Params, tuple[Any, ...], tuple[Any, ...]], ...]
    outputs: tuple[int, ...]
    result: Any
    conditions: Conditions

    def record(self, trace: Trace, arrays: Sequence[Array], sizes: Sequence[int]) -> list[Array]:
        """Record the operations; return the outputs.

        Args:
            sizes: those of the call, for which the conditions hold.
        """
        flat, tape = trace.flat, trace.tape
        values: list[Any] = list(arrays)
        numbers = [x._number if x._trace is trace else as_input(trace, x) for x in arrays]
        kinds = [x.aval for x in arrays]
        returned = set(self.outputs)
        here = None if trace.locations is None else thread.origin or user_location()
        for op, attributes, ins, scalars in self.steps:
            given = iter(scalars)
            operands, codes = [], []
            for x in ins:
                if x.__class__ is int:
                    operands.append(values[x])
                    codes.append(numbers[x])
                else:
                    number = next(given)
                    scalar = Scalar(number.of(sizes) if number.__class__ is Count else number, x)
                    operands.append(scalar)
                    codes.append(trace.scalar(scalar))
            avals = tuple([kinds[x] if x.__class__ is int else x for x in ins])
            params = filled(attributes, sizes) if attributes else ()
            if op.lowered:
                params = tuple([x.retyped(avals) if getattr(x, "deferred", False) else x for x in params])
            instr = op.instr(params, avals)
            flat += (instr, *codes)
            number = len(flat) - 1 - len(codes)
            out = None
            if tape is not None or len(values) in returned:
                out = new_pending(trace, instr.aval, number)
                if tape is not None:
                    tape.append((instr, tuple(operands), out))
            trace.refs.append(GONE if out is None else weakref.ref(out))
            values.append(out)
            numbers.append(number)
            kinds.append(instr.aval)
            if trace.locations is not None:
                trace.locations[number] = here  # type: ignore[assignment]
        if trace.capture is None and len(flat) > trace.limit:
            overflow(trace, len(flat) - 1)
        return [values[k] for k in self.outputs]


def filled(attributes: Any, sizes: Sequence[int]) -> Any:
    """Return attributes with integers in place of each `Size` and `Count`."""
    kind = attributes.__class__
    if kind is tuple:
        return tuple([filled(x, sizes) for x in attributes])
    return attributes.of(sizes) if kind is Size or kind is Count else attributes


Record = Callable[[Mapping[int, int], Sequence[Any]], tuple[Graph, Any] | None]
"""(`changes` of the sizes of a call, numbers) -> the program that a function records, and what it returns beside."""


def tried(
    record: Record, sizes: tuple[int, ...], numbers: Sequence[Any] = (), steady: Collection[int] = ()
) -> OpenProgram | None:
    """Return the program of a function for all sizes of a pattern; None if it differs for some.

    Args:
        record: runs the function. None: its program uses an array from outside.
        sizes: those of a call.
        numbers: those of the call; all are floats, or they stay as they are.
        steady: sizes that were the same in another call. They are kept, if the program is the same only then.
    """
    vary = bool(numbers) and all(x.__class__ is float for x in numbers)
    if len(sizes) > len(TRIED[0]):
        return None
    rows = [*TRIED, *[(*TRIED[0][:k], LARGE, *TRIED[0][k + 1 :]) for k in range(len(sizes))]]
    stand_ins = itertools.islice(itertools.cycle(NUMBERS), len(rows))
    values = [numbers, *[[x * (k + 1) if vary else own for k, own in enumerate(numbers)] for x in stand_ins]]
    order = tuple(sorted(range(len(sizes)), key=lambda k: sizes[k]))
    products = _products(sizes, order)
    kept = tuple((k, n) for k, n in enumerate(sizes) if n in steady)
    # integers may belong together, such as the sizes of a reshape or the ends of a slice
    attempts = [Conditions(), Conditions((), (), kept), Conditions(products), Conditions((), (order,))]
    attempts += [Conditions(products, (order,)), Conditions(products, (), kept)]
    for conditions in dict.fromkeys(attempts):
        chosen = [sizes, *[_chosen(some, sizes, order, conditions) for some in rows]]
        if all(map(conditions.hold, chosen)):
            found = _tried(record, chosen, values, conditions)
            if found is not None:
                return found
    return None


def _chosen(
    some: Sequence[int], sizes: tuple[int, ...], order: Sequence[int], conditions: Conditions
) -> tuple[int, ...]:
    """Return sizes in place of those of a call."""
    own, kept = list(some[: len(sizes)]), dict(conditions.kept)
    if conditions.orders:
        own = [n for _, n in sorted(zip(order, sorted(own), strict=True))]
    taken = set(kept.values())
    for k, n in enumerate(own):
        while n in taken:
            n += 1
        own[k] = kept.get(k, n)
        taken.add(own[k])
    for k, places, offset in conditions.products:
        if k not in kept:
            own[k] = math.prod([own[j] for j in places]) + offset
    return tuple(own)


def _products(sizes: tuple[int, ...], order: Sequence[int]) -> tuple[tuple[int, tuple[int, ...], int], ...]:
    """Return which sizes are products of smaller ones, or one more than another, from the smallest on."""
    found = []
    for at, k in enumerate(order):
        if sizes[k] < LEAST:
            continue
        candidates: list[tuple[tuple[int, ...], int]]
        smaller = order[:at]
        candidates = [
            (some, 0) for length in range(2, MOST_FACTORS) for some in itertools.combinations(smaller, length)
        ]
        candidates += [((j,), 1) for j in smaller]
        for places, offset in candidates:
            if math.prod([sizes[j] for j in places]) + offset == sizes[k]:
                found.append((k, places, offset))
                break
    return tuple(found)


_FAILURES = (GtraceError, IndexError, ValueError, TypeError, RuntimeError, ArithmeticError)
"""What functions raise for integers that do not belong together."""


def _outline(graph: Graph) -> tuple[Any, ...]:
    """Return what is the same in programs that differ in integers and numbers alone."""
    return graph.inputs, len(graph.nodes), graph.outputs


def _tried(
    record: Record, chosen: Sequence[tuple[int, ...]], numbers: Sequence[Sequence[Any]], conditions: Conditions
) -> OpenProgram | None:
    graphs: list[Graph] = []
    results: list[Any] = []
    for some, own in zip(chosen, numbers, strict=True):
        try:
            made = record(changes(chosen[0], some), own)
        except _FAILURES:
            return None
        if made is None:
            return None
        graphs.append(renumber(made[0]))
        results.append(made[1])
        # at once: a rule that has operations for each element has very many at the large sizes, which come last
        if made[1] != results[0] or _outline(graphs[-1]) != _outline(graphs[0]):
            return None
    steps = []
    for nodes in zip(*[graph.nodes for graph in graphs], strict=True):
        taken = [[x if x.__class__ is int else x.aval for x in node.ins] for node in nodes]
        if any(node.op is not nodes[0].op for node in nodes) or any(ins != taken[0] for ins in taken):
            return None
        params = _generalized([node.params for node in nodes], chosen)
        values = [tuple([x.value for x in node.ins if x.__class__ is Scalar]) for node in nodes]
        scalars = _generalized(values, chosen, numbers)
        if params is None or scalars is None:
            return None
        steps.append((nodes[0].op, params[0], tuple(taken[0]), scalars[0]))
    return OpenProgram(tuple(steps), graphs[0].outputs, results[0], conditions)


def _generalized(
    values: Sequence[Any], chosen: Sequence[Sequence[int]], numbers: Sequence[Sequence[Any]] | None = None
) -> tuple[Any] | None:
    """Return what became these values for the chosen sizes, in a tuple; None if they do not follow from these.

    Args:
        numbers: for the numbers of operations, those of the call: they may follow from these too, or be a product of
            sizes.
    """
    first = values[0]
    if all(exact_key(value) == exact_key(first) for value in values):
        return (first,)
    if all(value.__class__ is tuple and len(value) == len(first) for value in values):
        parts = [_generalized(part, chosen, numbers) for part in zip(*values, strict=True)]
        return None if None in parts else (tuple([part[0] for part in parts if part is not None]),)
    if all(getattr(value, "deferred", False) and value.retyped is not None for value in values):
        return (first,)  # the other attributes and the types say which one
    kind = first.__class__
    if kind not in (int, float) or any(value.__class__ is not kind for value in values):
        return None
    places = range(len(chosen[0]))
    if numbers is None:
        candidates = [Size(place, *form) for form in FORMS for place in places]
        for size in candidates:
            if all(size.of(own) == n for own, n in zip(chosen, values, strict=True)):
                return (size,)
    else:
        for place, how in itertools.product(range(len(numbers[0])), _DERIVED):
            number = Number(place, how)
            if all(exact_key(number.of(own[place])) == exact_key(x) for own, x in zip(numbers, values, strict=True)):
                return (number,)
    for length in range(1, MOST_FACTORS + 1):
        for some in itertools.combinations_with_replacement(places, length):
            if all(math.prod([own[k] for k in some]) == n for own, n in zip(chosen, values, strict=True)):
                return (Count(some, kind),)
    return None
