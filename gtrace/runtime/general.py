"""Programs for every size: how the integers of a program follow from the sizes of its inputs.

Two recordings of one structure with other sizes show which integers vary. Each is guessed to be a simple function of
the sizes of the inputs, and a program is compiled with these left open. A guess may be wrong; but every program is
recorded with all its integers, and they are compared with the guesses before the general program stands in for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from gtrace.ir.graph import Graph, Node, Scalar, skeleton
from gtrace.runtime.conditions import hold
from gtrace.runtime.interpret import Program

MAX_FREE = 6
"""Sizes of which products are tried."""

MAX_DIVISOR = 8
"""Divisors that are tried."""


@attrs.frozen
class Relation:
    """An integer as a function of the sizes of the inputs: ``factor * ((product + shift) // divisor) + offset``.

    Attributes:
        places: the sizes that are multiplied; none: the integer is `offset`.
    """

    places: tuple[int, ...] = ()
    factor: int = 1
    shift: int = 0
    divisor: int = 1
    offset: int = 0

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
        return product + self.offset if self.offset else product

    @property
    def cost(self) -> tuple[Any, ...]:
        """Simple relations first."""
        return self.offset != 0, self.divisor, len(self.places), abs(self.factor), abs(self.offset)


def fit(examples: Sequence[Sequence[int]], dims: int) -> tuple[Relation, ...] | int:
    """Return how each integer of a program follows from its first `dims`, the sizes of its inputs.

    Args:
        examples: the integers of programs of one structure, as `gtrace.ir.graph.skeleton` lists them.

    Returns:
        A relation for each integer that holds in all examples; or the place of the first that has none.

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
                found[column] = min(fitting, key=lambda r: r.cost, default=None)
            relation = found[column]
            if relation is None:
                return place
            relations.append(relation)
    return tuple(relations)


def _candidates(free: dict[tuple[int, ...], int]) -> list[tuple[Relation, tuple[int, ...]]]:
    """Return functions of the free sizes, without factor and offset, and their values in the examples."""
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
    """Return `base` with the factor and the offset that make `column` of `values`; None if there are none."""
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


def layout(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Return the axes of a dense tensor from the outermost to the innermost; None if it is not dense.

    >>> layout((2, 3), (3, 1)), layout((2, 3), (1, 2)), layout((2, 3), (6, 1))
    ((0, 1), (1, 0), None)
    """
    if 0 in shape:
        return tuple(range(len(shape)))
    order = sorted(range(len(shape)), key=lambda k: (-strides[k], k))
    step = 1
    for k in reversed(order):
        if shape[k] > 1 and strides[k] != step:
            return None
        step *= max(shape[k], 1)
    return tuple(order)


def open_scalars(graph: Graph, places: Sequence[int]) -> Graph:
    """Return `graph` with those of its scalars, counted in order of appearance, as further inputs."""
    fresh = len(graph.inputs) + len(graph.nodes)
    count = 0
    inputs, avals, nodes = list(graph.inputs), list(graph.avals), []
    for node in graph.nodes:
        ins = list(node.ins)
        for k, operand in enumerate(ins):
            if isinstance(operand, Scalar):
                if count in places:
                    ins[k] = fresh
                    inputs.append(fresh)
                    avals.append(operand.aval)
                    fresh += 1
                count += 1
        nodes.append(Node(node.instr, tuple(ins), node.out, node.location))
    return Graph(tuple(inputs), tuple(avals), tuple(nodes), graph.outputs)


@attrs.frozen(eq=False)
class Shape:
    """What tells a program from the others of its family.

    Attributes:
        sizes: its integers, those of the inputs first.
        dims: how many of them are sizes of inputs.
        scalars: its Python scalars.
    """

    sizes: tuple[int, ...]
    dims: int
    scalars: tuple[Scalar, ...]


def shape_of(graph: Graph) -> tuple[Any, Shape]:
    """Return the skeleton of a canonical graph, and the rest."""
    bones, sizes = skeleton(graph)
    scalars = tuple([x for node in graph.nodes for x in node.ins if x.__class__ is Scalar])
    return bones, Shape(sizes, sum(len(a.shape) for a in graph.avals), scalars)


@attrs.define(eq=False)
class General:
    """A program compiled for open sizes.

    Attributes:
        program: takes the inputs and then the scalars that are open.
        relations: how the integers follow from the sizes.
        constants: the scalars; None for the open ones.
        conditions: on the sizes of the inputs, under which the code is right; see `gtrace.runtime.conditions`.
        origin: "process", "worker" or "cache".
    """

    program: Program
    relations: tuple[Relation, ...]
    constants: tuple[Scalar | None, ...]
    conditions: tuple[Any, ...]
    origin: str = ""

    def fits(self, shape: Shape) -> bool:
        """Whether the program is that one with these sizes and scalars."""
        if any(c is not None and c != x for c, x in zip(self.constants, shape.scalars, strict=True)):
            return False
        if any(r(shape.sizes) != n for r, n in zip(self.relations, shape.sizes, strict=True)):
            return False
        return hold(self.conditions, shape.sizes)

    def bind(self, shape: Shape) -> Program:
        """Return the program with the scalars of one that fits."""
        open_ = [x for c, x in zip(self.constants, shape.scalars, strict=True) if c is None]
        if not open_:
            return self.program
        program = self.program
        numbers = [torch.tensor(x.value, dtype=x.aval.dtype, device=x.aval.device) for x in open_]
        return lambda tensors: program([*tensors, *numbers])
