"""Symbolic programs: one compiled program for many sizes, whose integers follow from the sizes of its inputs.

Two recordings with the same structure and different sizes show which integers vary. Each of these is guessed to be a
simple function of the sizes of the inputs, and a program is compiled with those sizes open. A guess may be wrong. But
every program is recorded with all its integers, and the symbolic program runs it only if all guesses match them.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from gtrace.core.backends.executable import Compiled, Executable
from gtrace.core.backends.guards import hold
from gtrace.core.ir.graph import Graph, Scalar, skeleton

MAX_FREE = 6
"""At most so many varying sizes are tried in products."""

MAX_DIVISOR = 8
"""The largest divisor that is tried."""


@attrs.frozen
class Relation:
    """An integer as a function of the sizes of the inputs: ``factor * ((product + shift) // divisor) + offset``.

    Attributes:
        places: the sizes that are multiplied; empty: the integer is `offset`.
        others, weight: sizes whose product, so many times, is added, as for arrays that are joined; empty: none is.
    """

    places: tuple[int, ...] = ()
    factor: int = 1
    shift: int = 0
    divisor: int = 1
    offset: int = 0
    others: tuple[int, ...] = ()
    weight: int = 0

    def __call__(self, sizes: Sequence[Any]) -> Any:
        if not self.places:
            return self.offset
        product = sizes[self.places[0]]
        for place in self.places[1:]:
            product = product * sizes[place]
        if self.divisor != 1:
            product = (product + self.shift) // self.divisor
        if self.factor != 1:
            product = product * self.factor
        if self.others:
            added = sizes[self.others[0]]
            for place in self.others[1:]:
                added = added * sizes[place]
            product = product + self.weight * added
        return product + self.offset if self.offset else product

    @property
    def cost(self) -> tuple[Any, ...]:
        """A sort key that puts simple relations first: ``n - 1`` is also ``3 * (n // 3)`` for some sizes."""
        multiple = self.divisor > 1 and abs(self.factor) > 1
        return multiple, self.offset != 0, self.divisor, len(self.places), abs(self.factor), abs(self.offset)


def fit(examples: Sequence[Sequence[int]], dims: int) -> tuple[Relation, ...] | int:
    """Return how each integer of a program follows from the first `dims` of them, the sizes of its inputs.

    Args:
        examples: the integers of programs of one structure, as `gtrace.core.ir.graph.skeleton` lists them.

    Returns:
        For each integer a relation that holds in all examples; or the place of the first integer without one.

    >>> relations = fit([(64, 8, 512, 63), (32, 8, 256, 31)], 2)
    >>> [r((100, 8)) for r in relations]
    [100, 8, 800, 99]
    """
    columns = list(zip(*examples, strict=True))
    free: dict[tuple[int, ...], int] = {}
    for place in range(dims):
        if len(set(columns[place])) > 1:
            free.setdefault(columns[place], place)
    candidates = _candidates(free)
    found: dict[tuple[int, ...], Relation | None] = {}
    relations = []
    for place, column in enumerate(columns):
        if len(set(column)) == 1:
            relations.append(Relation(offset=column[0]))
        elif place < dims:
            relations.append(Relation((place,)))
        else:
            if column not in found:
                fitting = [r for r in (_solve(column, *candidate) for candidate in candidates) if r is not None]
                found[column] = min(fitting, key=lambda r: r.cost, default=None) or _sum(column, free)
            relation = found[column]
            if relation is None:
                return place
            relations.append(relation)
    return tuple(relations)


def _candidates(free: dict[tuple[int, ...], int]) -> list[tuple[Relation, tuple[int, ...]]]:
    """Return relations of the free sizes, still without factor and offset, with their values in the examples."""
    singles = list(free.items())
    made = [(Relation((place,)), column) for column, place in singles]
    for divisor in range(2, MAX_DIVISOR + 1):
        for column, place in singles:
            for shift in (0, divisor - 1):
                values = tuple((n + shift) // divisor for n in column)
                made.append((Relation((place,), shift=shift, divisor=divisor), values))
    few = singles[:MAX_FREE]
    products = [*itertools.combinations_with_replacement(few, 2), *itertools.combinations(few, 3)]
    for chosen in products:
        values = tuple(_product(numbers) for numbers in zip(*[column for column, _ in chosen], strict=True))
        made.append((Relation(tuple(place for _, place in chosen)), values))
    return made


def _product(numbers: Sequence[int]) -> int:
    result = 1
    for n in numbers:
        result *= n
    return result


def _solve(column: tuple[int, ...], base: Relation, values: tuple[int, ...]) -> Relation | None:
    """Return `base` with the factor and the offset that turn `values` into `column`; None if there are none."""
    other = next((k for k, value in enumerate(values) if value != values[0]), None)
    if other is None:
        return None
    factor, rest = divmod(column[other] - column[0], values[other] - values[0])
    if rest or not factor:
        return None
    offset = column[0] - factor * values[0]
    if any(factor * value + offset != n for value, n in zip(values, column, strict=True)):
        return None
    return attrs.evolve(base, factor=factor, offset=offset)


LEAST_FOR_SUMS = 5
"""Examples that a sum of two sizes must hold for, at least: through three a plane leads."""


def _sum(column: tuple[int, ...], free: dict[tuple[int, ...], int]) -> Relation | None:
    """Return how an integer is the sum of multiples of two sizes, or of one and the product of two; None: it is not."""
    if len(column) < LEAST_FOR_SUMS:
        return None
    few = list(free.items())[:MAX_FREE]
    terms: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((place,), values) for values, place in few]
    terms += [
        ((a, b), tuple(map(operator.mul, x, y))) for (x, a), (y, b) in itertools.combinations_with_replacement(few, 2)
    ]
    for (places, x), (others, y) in itertools.combinations(terms, 2):
        factors = _plane(column, x, y)
        if factors is not None:
            return Relation(places, factors[0], offset=factors[2], others=others, weight=factors[1])
    return None


def _plane(column: tuple[int, ...], x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return (a, b, c) with ``column = a * x + b * y + c`` and a, b not 0; None if there are none."""
    rises = [(p - x[0], q - y[0], r - column[0]) for p, q, r in zip(x, y, column, strict=True)]
    for (p, q, r), (s, t, u) in itertools.combinations(rises[1:], 2):
        scale = p * t - q * s
        if not scale:
            continue
        (a, rest), (b, other) = divmod(r * t - q * u, scale), divmod(p * u - r * s, scale)
        if rest or other or not a or not b or any(a * p + b * q != r for p, q, r in rises):
            return None
        return a, b, column[0] - a * x[0] - b * y[0]
    return None


@attrs.frozen(eq=False)
class SymbolicSizes:
    """The numbers in which programs with the same skeleton differ.

    Attributes:
        sizes: its integers, those of the inputs first.
        dims: how many of them are sizes of inputs.
        scalars: its Python scalars.
    """

    sizes: tuple[int, ...]
    dims: int
    scalars: tuple[Scalar, ...]


def shape_of(graph: Graph) -> tuple[Any, SymbolicSizes]:
    """Return the skeleton of a canonical graph, and its integers and scalars."""
    structure, sizes = skeleton(graph)
    scalars = tuple([x for node in graph.nodes for x in node.ins if x.__class__ is Scalar])
    return structure, SymbolicSizes(sizes, sum(len(a.shape) for a in graph.avals), scalars)


@attrs.define(eq=False)
class SymbolicProgram:
    """A program compiled for open sizes.

    Attributes:
        compiled: takes the inputs and then the open scalars; its guards are on the sizes of the inputs. Code and guards
            are replaced together, so that a reader never sees the guards of other code.
        relations: how the integers follow from the sizes of the inputs.
        constants: the scalars; None for an open one.
    """

    compiled: Compiled
    relations: tuple[Relation, ...]
    constants: tuple[Scalar | None, ...]

    @staticmethod
    def matches(
        relations: Sequence[Relation], constants: Sequence[Scalar | None], guards: Sequence[Any], shape: SymbolicSizes
    ) -> bool:
        """Whether code with these relations, constants and guards runs the program of `shape`."""
        if any(c is not None and c != x for c, x in zip(constants, shape.scalars, strict=True)):
            return False
        return all(r(shape.sizes) == n for r, n in zip(relations, shape.sizes, strict=True)) and hold(
            guards, shape.sizes
        )

    def executable_for(self, shape: SymbolicSizes) -> Executable | None:
        """Return an executable for the program of `shape`, with its scalars bound; None if the code does not fit."""
        compiled = self.compiled
        if not self.matches(self.relations, self.constants, compiled.guards, shape):
            return None
        executable = compiled.executable.owning()
        open_ = [x for c, x in zip(self.constants, shape.scalars, strict=True) if c is None]
        if not open_:
            return executable
        run = executable.run
        numbers = [torch.tensor(x.value, dtype=x.aval.dtype, device=x.aval.device) for x in open_]
        return attrs.evolve(executable, run=lambda tensors: run([*tensors, *numbers]))
