"""Functions of arrays with symbolic sizes: they are traced for several sizes, and what varies is fitted.

A fitted integer is an expression of the names. No expression of two operations can be told from another one by a
single example, so there are several, and sizes that fit none are an error.
What Python code does with the sizes is `gtrace.jax.symbolic_decisions`' task.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from gtrace.errors import ExportError
from gtrace.extend import ShapeDtypeStruct, fit, message, tree
from gtrace.jax.symbolic_shapes import SymbolicScope, symbolic_shape
from gtrace.jax.symbolic_sizes import Scope, SymbolicSize

EXAMPLES = 8
"""For so many sizes a function is traced. A relation that `fit` finds has at most five numbers of its own."""

_PRIMES = (
    (2, 3, 5, 7, 11, 13, 17, 19), (23, 29, 37, 41, 43, 47, 53, 59), (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049),
    (61, 67, 71, 73, 79, 83, 89, 97), (4001, 4003, 4007, 4013, 4019, 4021, 4027, 4049),
)  # fmt: skip
"""Sizes that are tried first, by turns small and large, because what gtrace records may depend on that.
They are primes, of which a fixed size is unlikely to be a simple function."""

_LARGEST = 400
"""The largest size that is tried where constraints leave no primes."""

_ATTEMPTS = 5000


def names_in(specs: Any) -> list[SymbolicSize]:
    """Return the symbolic sizes of a pytree of `ShapeDtypeStruct`."""
    leaves = [x for x in tree.leaves(specs) if isinstance(x, ShapeDtypeStruct)]
    return [n for x in leaves for n in x.shape if isinstance(n, SymbolicSize)]


def examples(sizes: Sequence[SymbolicSize]) -> list[dict[str, int]]:
    """Return values of the names in these sizes, several times, which fulfil all constraints.

    Raises:
        ExportError: there are too few.
    """
    scope: Any = sizes[0].scope
    names = sorted(set().union(*[n.names() for n in sizes]))
    for known in scope.known:
        names = sorted({*names, *known.names()})
    found: list[dict[str, int]] = []
    for values in _tried(names):
        if all(values[name] not in [other[name] for other in found] for name in names) and scope.holds(values):
            found.append(values)
            if len(found) == EXAMPLES:
                return found
    fix = "Loosen the constraints, or pass sizes."
    got = f"{len(found)} with {scope!r}"
    raise ExportError(message("symbolic sizes", f"constraints that {EXAMPLES} sizes fulfil", got, fix))


def _tried(names: Sequence[str]) -> Iterator[dict[str, int]]:
    for k in range(len(_PRIMES[0])):
        for row in _PRIMES:
            yield {name: row[(k + 3 * j) % len(row)] for j, name in enumerate(names)}
    draw = random.Random(0)
    for largest, _ in itertools.product((8, 64, _LARGEST), range(_ATTEMPTS)):
        yield {name: draw.randint(1, largest) for name in names}


def sized(specs: Any, values: Mapping[str, int]) -> Any:
    """Return a pytree of `ShapeDtypeStruct` with sizes in place of symbolic ones."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, ShapeDtypeStruct):
            return leaf
        shape = tuple([n.evaluate(values) if isinstance(n, SymbolicSize) else n for n in leaf.shape])
        return ShapeDtypeStruct(shape, leaf.dtype, leaf.device, sharding=leaf.sharding)

    return tree.map(one, specs)


def fitted(rows: Sequence[Sequence[int]], values: Sequence[Mapping[str, int]], scope: Scope) -> list[Any]:
    """Return how each integer follows from the names: integers, and symbolic sizes.

    Args:
        rows: the integers for each of `values`.

    Raises:
        ExportError: one does not follow.
    """
    names = sorted(values[0])
    given = [[*(v[name] for name in names), *row] for v, row in zip(values, rows, strict=True)]
    relations = fit(given, len(names))
    if isinstance(relations, int):
        got = ", ".join(str(row[relations]) for row in given)
        fix = "Write it without Python code that depends on the size, or pass sizes."
        raise ExportError(message("symbolic sizes", "integers that are simple functions of them", got, fix))
    own = [SymbolicSize({((name, 1),): 1}, scope) for name in names]
    return [relation(own) for relation in relations[len(names) :]]


def same(found: Sequence[tuple[Sequence[Any], Any]]) -> None:
    """Check that results for several sizes have one structure, and arrays of as many axes.

    Raises:
        ExportError: they have others.
    """
    kinds = {(structure, tuple([(len(x.shape), str(x.dtype)) for x in leaves])) for leaves, structure in found}
    if len(kinds) > 1:
        fix = "Write it without Python code that depends on the size, or pass sizes."
        raise ExportError(message("symbolic sizes", "results of one kind for all of them", "several", fix))


_INTEGER = re.compile(r"(?<![\w.%])\d+(?=\.0(?![\w.])|(?![\w.]))")
"""An integer in the text of a program, or a float that is one."""


@attrs.frozen
class OpenProgram:
    """The text of a program with symbolic sizes: pieces of text, and a size between each two.

    Attributes:
        sizes: integers, and symbolic sizes.
    """

    pieces: tuple[str, ...]
    sizes: tuple[Any, ...]

    def text(self, values: Mapping[str, int]) -> str:
        """Return the program for these values of the names."""
        sizes = [x.evaluate(values) if isinstance(x, SymbolicSize) else x for x in self.sizes]
        return "".join([*itertools.chain(*zip(self.pieces, map(str, sizes), strict=False)), self.pieces[-1]])

    @classmethod
    def of(cls, texts: Sequence[str], values: Sequence[Mapping[str, int]], scope: SymbolicScope) -> OpenProgram:
        """Return what these programs have in common, each for one of `values`.

        Raises:
            ExportError: they differ in more than integers that follow from the names.
        """
        pieces = [tuple(_INTEGER.split(text)) for text in texts]
        if len(set(pieces)) > 1:
            fix = "Write it without Python code and numbers that depend on the size, or pass sizes."
            raise ExportError(message("export", "the same operations for all sizes", "others for some", fix))
        rows = [[int(n) for n in _INTEGER.findall(text)] for text in texts]
        varying = [k for k, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1]
        sizes: list[Any] = list(rows[0])
        for k, size in zip(varying, fitted([[row[k] for k in varying] for row in rows], values, scope), strict=True):
            sizes[k] = size
        return cls(pieces[0], tuple(sizes)).joined()

    def joined(self) -> OpenProgram:
        """Return the same with its integers as text."""
        pieces, sizes = [self.pieces[0]], []
        for size, piece in zip(self.sizes, self.pieces[1:], strict=True):
            if isinstance(size, SymbolicSize):
                sizes.append(size)
                pieces.append(piece)
            else:
                pieces[-1] += str(size) + piece
        return OpenProgram(tuple(pieces), tuple(sizes))

    def to_json(self) -> list[str]:
        """Return pieces of text and sizes in turn."""
        return [*itertools.chain(*zip(self.pieces, map(str, self.sizes), strict=False)), self.pieces[-1]]

    @classmethod
    def from_json(cls, data: Sequence[str], scope: SymbolicScope) -> OpenProgram:
        """Return the program that `to_json` wrote."""
        sizes = [symbolic_shape(text, scope=scope)[0] for text in data[1::2]]
        return cls(tuple(data[::2]), tuple(sizes))
