"""Finds the open route of a structure: its recordings are prepared once for all sizes.

To prepare a recording takes longer than a call with small arrays, so a size that comes once runs as it was recorded.
Here a structure is prepared once for all sizes. Some of its recordings show which integers follow from the sizes of the
inputs, and how. The recording is made for sizes that stand in for those, small and large ones, primes and powers of
two, and each is prepared. If all become the same programs, whose integers follow from the sizes too, then a call of a
new size reads its integers, checks that they follow, and runs the code that the programs have for open sizes.

That is a trial, no proof. So code runs only between the sizes that were tried, where no size is equal to another one by
chance, and it is compared with the recording in its first calls, and now and then.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import attrs

from gtrace.core.backends.schedule import CallSequence
from gtrace.core.backends.symbolic import Relation, fit
from gtrace.core.base.errors import GtraceError
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.ir.graph import Graph, RecordedGraph
from gtrace.core.ir.resizing import NotOpenError, given_attributes, integers_of, rebuilt, strides_like
from gtrace.core.ir.skeleton import mask
from gtrace.core.runtime.lifted_scalars import Scalars, scalar_inputs
from gtrace.core.runtime.open_routes import KINDS, Number, OpenParts, OpenProgram, OpenRoute, Reading
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.routes import Parts, Route, Strides

EXAMPLES = 4
"""Recordings that relations are fitted to: through two points a rule of some kind leads, and through three often."""

MOST_SIZES = 12
"""Sizes that vary by themselves, at most."""

SMALL_SIZES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
MIDDLE_SIZES = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109)
POWERS = tuple(2**k for k in range(1, 13))
"""Sizes that stand in for those of calls, in the order of these."""

LEAST, LARGE, LARGER = 2, 20011, 4
"""A small one and a large one, which stand in for one size at a time. The large one is so many times the largest of the
examples, at least."""

LEAST_ROWS = 6
"""Recordings that became the same programs, at least: half of them are of sizes that stand in."""


FAILURES = (NotOpenError, GtraceError, IndexError, ValueError, TypeError, RuntimeError, ArithmeticError)
"""What is raised for integers that do not belong together."""

Prepare = Callable[[Graph, Strides], Route | Parts]
"""Returns the route of a graph."""


def _number(column: Sequence[Any], dims: Sequence[Sequence[int]]) -> Number:
    """Return what a number of a program follows from: numbers that vary by themselves are inputs.

    Args:
        column: the number in each recording.
        dims: the sizes of the inputs there.
    """
    found = _known(column, dims)
    if found is None:
        raise NotOpenError("a number of a program follows from no size")
    return found


def _known(column: Sequence[Any], dims: Sequence[Sequence[int]]) -> Number | None:
    if len(set(map(exact_key, column))) == 1:
        return Number(value=column[0])
    return _computed(column, dims, "int")


def _computed(column: Sequence[Any], dims: Sequence[Sequence[int]], kind: str) -> Number | None:
    """Return what a number follows from that is of a kind; see `KINDS`."""
    found = [_INTEGERS[kind](x) if x.__class__ in (int, float) else None for x in column]
    integers = [n for n in found if n is not None]
    if len(integers) < len(column) or list(map(exact_key, map(KINDS[kind], integers))) != list(map(exact_key, column)):
        return None
    relations = fit([(*row, n) for row, n in zip(dims, integers, strict=True)], len(dims[0]))
    return None if isinstance(relations, int) else Number(relation=relations[-1], kind=kind)


_INTEGERS: dict[str, Callable[[Any], int | None]] = {
    "int": lambda x: x if x.__class__ is int else None,
    "float": lambda x: int(x) if math.isfinite(x) else None,
    "inverse": lambda x: round(1.0 / x) if x and math.isfinite(1.0 / x) else None,
}
"""The integers that numbers may be made of; see `KINDS`."""


def _form(route: Route | Parts) -> Any:
    """Return what the routes of a structure have in common, as a key."""
    if isinstance(route, Route):
        return None if route.program is None else route.program.family.key, route.inputs, route.outputs
    calls = route.calls
    if not isinstance(calls, CallSequence) or route.avals is not None:
        raise NotOpenError("programs are sharded")
    steps = tuple([(step.ins, step.outs) for step in calls.steps])
    orders = tuple(sorted(calls.orders.items()))
    return steps, calls.inputs, calls.outputs, orders, tuple(map(_form, route.routes))


def _leaves(route: Route | Parts) -> list[Route]:
    return [route] if isinstance(route, Route) else [leaf for part in route.routes for leaf in _leaves(part)]


@attrs.frozen(eq=False)
class Example:
    """A recording that was prepared.

    Attributes:
        numbers: those of the recording, by slot.
        programs: what it became.
        integers: see `integers_of`.
    """

    program: RecordedGraph
    numbers: Scalars
    programs: tuple[Program, ...]
    integers: list[int] = attrs.field(init=False)

    @integers.default
    def _read(self) -> list[int]:
        return integers_of(self.program.graph)


def open_route(examples: Sequence[Example], prepare: Prepare, aside: Prepare) -> OpenRoute | None:
    """Return what runs recordings of one structure at any size; None if they become different programs.

    Args:
        examples: recordings of different sizes, the newest last.
        prepare: prepares a recording.
        aside: prepares one, and nobody else gets to know of it.
    """
    try:
        return _open_route(examples, prepare, aside)
    except FAILURES:
        return None


@attrs.frozen(eq=False)
class _Row:
    """A recording of some sizes that was prepared.

    Attributes:
        free: the sizes that vary by themselves.
        dims: all sizes of inputs.
        numbers: its numbers, by slot.
        form: see `_form`.
    """

    free: tuple[int, ...]
    dims: Sequence[int]
    numbers: Scalars
    route: Route | Parts
    form: Any


def _open_route(examples: Sequence[Example], prepare: Prepare, aside: Prepare) -> OpenRoute:
    last = examples[-1]
    graph = last.program.graph
    count = sum(len(a.shape) for a in graph.avals)
    relations, free = _relations([example.integers for example in examples], count)
    sizes = [example.integers[:count] for example in examples]
    constants = frozenset(r.offset for r in relations if not r.places)
    numbers, lifted = _following(examples, sizes)

    def prepared(example: Graph, given: Scalars, strides: Strides, by: Prepare) -> Route | Parts:
        graph, inputs = scalar_inputs(example, last.program.scalar_slots, given, lifted, 1)
        return by(graph, [*strides, *[()] * len(inputs.lifted)])

    def row(chosen: Sequence[int], given: Scalars | None) -> _Row:
        sizes = last.integers[:count]
        for place, n in zip(free, chosen, strict=True):
            sizes[place] = n
        sizes = [relation(sizes) for relation in relations[:count]]
        own = [*sizes, *[relation(sizes) for relation in relations[count:]]]
        if given is None:
            given = tuple([x if k in lifted else numbers[k].of(own) for k, x in enumerate(last.numbers)])
        made = rebuilt(graph, own, [given[slot] for slot in last.program.scalar_slots])
        shapes = zip(made.avals, graph.avals, last.program.strides, strict=True)
        own_strides = [strides_like(a.shape, like.shape, strides) for a, like, strides in shapes]
        route = prepared(made, given, own_strides, aside)
        return _Row(tuple(chosen), own[:count], given, route, _form(route))

    rows = [row([e.integers[place] for place in free], e.numbers) for e in reversed(examples)]
    for chosen in _stand_ins([example.integers for example in examples], free, constants):
        with contextlib.suppress(*FAILURES):  # these do not belong together
            rows.append(row(chosen, None))
    counts = collections.Counter(row.form for row in rows[: len(examples)])
    rows, limits = _limited(sorted(rows, key=lambda row: -counts[row.form]))
    alike = [example for example in examples if any(row.numbers is example.numbers for row in rows)]
    real = [prepared(e.program.graph, e.numbers, e.program.strides, prepare) for e in alike[-2:]]
    if len(real) < 2 or any(_form(route) != rows[0].form for route in real):
        raise NotOpenError("few examples become these programs, or the engine knows more of them than of others")
    columns = list(zip(*[_leaves(row.route) for row in rows], strict=True))  # one for each program
    taken = iter([_followed(leaves, rows) for leaves in columns])
    for leaves, leaf in zip(columns, _leaves(real[-1]), strict=True):
        if leaf.program is not None:
            met = [one.program.shape for one in leaves if one.program]
            own = fit([shape.sizes for shape in met], leaf.program.shape.dims)
            varying = [k for k, x in enumerate(zip(*[shape.scalars for shape in met], strict=True)) if len(set(x)) > 1]
            leaf.program.family.learn(None if isinstance(own, int) else own, frozenset(varying))
    taken_numbers = scalar_inputs(graph, last.program.scalar_slots, last.numbers, lifted, 1)[1].lifted
    formulas = [_formula([example.numbers[slot] for example in examples], sizes) for slot, _ in taken_numbers]
    reading = Reading(
        tuple(last.program.slots),
        taken_numbers,
        tuple(formulas),
        relations[:count],
        _attributes(graph, relations[count:]),
        tuple(numbers.items()),
        tuple([(place, least, most) for place, (least, most) in zip(free, limits, strict=True)]),
        constants,
    )
    programs = dict.fromkeys([program for route in real for program in route.programs])
    return OpenRoute(reading, _opened(real[-1], taken), tuple(programs))


def _relations(integers: Sequence[Sequence[int]], count: int) -> tuple[tuple[Relation, ...], list[int]]:
    """Return what the integers of recordings follow from, and the places of the sizes that vary by themselves.

    Args:
        count: how many are sizes of inputs.
    """
    found = fit(integers, count)
    if isinstance(found, int):
        raise NotOpenError(f"integer {found} follows from no size")
    columns = list(zip(*[row[:count] for row in integers], strict=True))
    firsts: dict[tuple[int, ...], int] = {}
    for place, column in enumerate(columns):
        if len(set(column)) > 1:
            firsts.setdefault(column, place)
    # a smaller size may follow from a larger one: the halves of an array that has its value are arrays
    free: dict[tuple[int, ...], int] = {}
    following: dict[tuple[int, ...], Relation] = {}
    for column in sorted(firsts, key=lambda column: -column[-1]):
        earlier = fit(list(zip(*free, column, strict=True)), len(free)) if free else 0
        if isinstance(earlier, int):
            free[column] = firsts[column]
            following[column] = Relation((firsts[column],))
        else:
            places = list(free.values())
            following[column] = attrs.evolve(earlier[-1], places=tuple([places[k] for k in earlier[-1].places]))
    if not 0 < len(free) <= MOST_SIZES:
        raise NotOpenError("no size of an input varies, or too many do")
    sizes = [following.get(column, relation) for column, relation in zip(columns, found, strict=False)]
    return (*sizes, *found[count:]), list(free.values())


def _limited(rows: Sequence[_Row]) -> tuple[list[_Row], list[tuple[int, int]]]:
    """Return the rows that became the same programs as the first one, and limits of sizes between which all do."""
    alike = [row for row in rows if row.form == rows[0].form]
    others = [row.free for row in rows if row.form != rows[0].form]
    while len(alike) >= LEAST_ROWS:
        limits = [(min(column), max(column)) for column in zip(*[row.free for row in alike], strict=True)]
        wrong = [free for free in others if all(a <= n <= b for n, (a, b) in zip(free, limits, strict=True))]
        if not wrong:
            return alike, limits
        # one limit is moved, so that as many as possible are left
        first = alike[0].free
        left = [
            [row for row in alike if (row.free[k] > n) == (first[k] > n) and row.free[k] != n]
            for k, n in enumerate(wrong[0])
            if first[k] != n
        ]
        alike = max(left, key=len, default=[])
    raise NotOpenError("recordings become different programs at different sizes")


def _followed(
    leaves: Sequence[Route], rows: Sequence[_Row]
) -> tuple[tuple[Relation, ...], tuple[int, ...], tuple[Number, ...]]:
    """Return what the integers and numbers of a program follow from; see `OpenProgram`."""
    shapes = [leaf.program.shape for leaf in leaves if leaf.program is not None]
    if not shapes:
        return (), (), ()
    dims, count = [row.dims for row in rows], len(rows[0].dims)
    found = fit([(*own, *shape.sizes) for own, shape in zip(dims, shapes, strict=True)], count)
    if isinstance(found, int):
        raise NotOpenError("an integer of a program follows from no size")
    values = zip(*[[x.value for x in shape.scalars] for shape in shapes], strict=True)
    distinct = list(dict.fromkeys(found[count:]))
    places = tuple([distinct.index(relation) for relation in found[count:]])
    return tuple(distinct), places, tuple([_number(column, dims) for column in values])


def _opened(route: Route | Parts, taken: Iterator[Any]) -> OpenProgram | OpenParts:
    if isinstance(route, Route):
        return OpenProgram(route.program, route.inputs, route.outputs, *next(taken))
    assert isinstance(route.calls, CallSequence)
    return OpenParts(route.calls, tuple([_opened(part, taken) for part in route.routes]))


def _attributes(graph: Graph, relations: Sequence[Relation]) -> tuple[tuple[int, Any, Any, tuple[Relation, ...]], ...]:
    left, found = iter(relations), []
    for node in graph.nodes:
        own: list[int] = []
        params = (node.instr.plain or node.instr).params
        masked = mask(given_attributes(params), own)
        following = tuple(itertools.islice(left, len(own)))
        if own or node.op.numbers:
            varies = node.op.numbers or any(r.places for r in following)
            rest = exact_key(masked) if node.op.numbers else None
            found.append((node.out, None if varies else params, rest, following))
    return tuple(found)


def _following(
    examples: Sequence[Example], dims: Sequence[Sequence[int]]
) -> tuple[dict[int, Number], dict[int, Hashable]]:
    """Return what numbers of a recording must be, and which of them are inputs: by slot, with a name for equal ones."""
    firsts: dict[Hashable, int] = {}
    found: dict[int, Number] = {}
    inputs: dict[int, Hashable] = {}
    for slot, column in enumerate(zip(*[example.numbers for example in examples], strict=True)):
        known = _known(column, dims)
        if known is None:
            name = tuple(map(exact_key, column))
            first = firsts.setdefault(name, slot)
            inputs[slot] = name
            if first < slot:
                found[slot] = Number(slot=first)
        else:
            found[slot] = known
    return found, inputs


def _formula(column: Sequence[Any], dims: Sequence[Sequence[int]]) -> Number | None:
    """Return what a number that is an input follows from, if that is known."""
    made = [_computed(column, dims, kind) for kind in KINDS]
    return next((number for number in made if number is not None), None)


def _stand_ins(integers: Sequence[Sequence[int]], free: Sequence[int], constants: frozenset[int]) -> list[list[int]]:
    """Return rows of sizes in place of those that vary, none of which is equal to a constant."""
    order = sorted(range(len(free)), key=lambda k: integers[-1][free[k]])
    rows = []
    for sizes in (SMALL_SIZES, MIDDLE_SIZES, POWERS):
        row = [0] * len(free)
        for n, k in zip(sizes, order, strict=False):
            row[k] = n
        rows.append(row)
    own = [integers[-1][place] for place in free]
    rows += [[2 * n + 1 for n in own], [1 << n.bit_length() for n in own], [n // 2 + 1 for n in own]]
    for k, place in enumerate(free):
        large = max(LARGE, LARGER * max(example[place] for example in integers) + 1)
        rows += [[*own[:k], n, *own[k + 1 :]] for n in (LEAST, large)]
    return [list(row) for row in dict.fromkeys([tuple(_apart(row, constants)) for row in rows])]


def _apart(row: Sequence[int], constants: frozenset[int]) -> list[int]:
    made: list[int] = []
    for n in row:
        while n in constants or n in made:
            n += 1
        made.append(n)
    return made
