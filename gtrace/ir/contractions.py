"""Products of two arrays by what their axes are, whichever way they are written.

Each axis has a label, and permutations only move labels: ``matmul`` and ``einsum`` in any order of axes are the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from gtrace.ir.graph import Node
from gtrace.ir.rows import Values

Labels = tuple[str, ...]
"""What the axes of an array are."""


@attrs.frozen
class Term:
    """An array, and what each of its axes is."""

    value: int
    labels: Labels


@attrs.frozen
class Product:
    """A product of two arrays, permuted or not, summed over one axis."""

    terms: tuple[Term, Term]
    summed: str
    result: Labels

    def named(self, names: Mapping[str, str]) -> Product:
        """Return it with other labels; those that have no name are "d"."""
        one, other = (Term(t.value, tuple([names.get(c, "d") for c in t.labels])) for t in self.terms)
        return Product((one, other), names.get(self.summed, "d"), tuple([names.get(c, "d") for c in self.result]))


def peeled(values: Values, value: int, labels: Labels) -> Term:
    """Return the array that a value is a permutation of."""
    node = values.made.get(value)
    while node is not None and node.op.name == "permute":
        axes = node.params[0]
        labels = tuple(labels[axes.index(k)] for k in range(len(axes)))
        value = node.ins[0]  # type: ignore[assignment]  # an array
        node = values.made.get(value)
    return Term(value, labels)


def product_of(values: Values, node: Node | None) -> Product | None:
    """Return the product that a node computes; None: it computes something else."""
    if node is None or node.op.name not in ("matmul", "einsum") or len(node.ins) != 2:
        return None
    x, y = node.ins
    if not (isinstance(x, int) and isinstance(y, int)):
        return None
    if node.op.name == "matmul":
        a, b = node.instr.ins
        n = len(a.shape)
        if n < 3 or a.shape[:-2] != b.shape[:-2]:
            return None
        batch = tuple(map(str, range(n - 2)))
        first, second, result = (*batch, "row", "sum"), (*batch, "sum", "column"), (*batch, "row", "column")
    else:
        terms, _, after = node.params[0].partition("->")
        first, second = map(tuple, terms.split(","))
        result = tuple(after)
    one, other = peeled(values, x, first), peeled(values, y, second)
    summed = (set(first) | set(second)) - set(result)
    several = any(len(set(labels)) != len(labels) for labels in (first, second, result))
    if several or len(summed) != 1 or not summed <= set(first) & set(second):
        return None
    return Product((one, other), summed.pop(), result)
