"""Products of two arrays by what their axes are, whichever way they are written.

Each axis has a label, and permutations only move labels: ``matmul`` and ``einsum`` in any order of axes are the same.
Those that are products of two matrices become such a product.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from gtrace.core.ir.def_use import Values
from gtrace.core.ir.edit import Replacements, rewrite
from gtrace.core.ir.graph import Graph, Node

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

    def named(self, names: Mapping[str, str]) -> Product | None:
        """Return it with other labels; one that has no name is "d". None: there are several."""
        if len({*self.result, *self.terms[0].labels, *self.terms[1].labels} - names.keys()) > 1:
            return None
        one, other = (Term(t.value, tuple([names.get(c, "d") for c in t.labels])) for t in self.terms)
        return Product((one, other), names.get(self.summed, "d"), tuple([names.get(c, "d") for c in self.result]))


def peeled(values: Values, value: int, labels: Labels) -> Term:
    """Return the array that a value is a permutation of."""
    node = values.made.get(value)
    while node is not None and node.op.name == "permute":
        axes = node.attributes["axes"]
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
        terms, _, after = node.attributes["equation"].partition("->")
        first, second = map(tuple, terms.split(","))
        result = tuple(after)
    one, other = peeled(values, x, first), peeled(values, y, second)
    summed = (set(first) | set(second)) - set(result)
    several = any(len(set(labels)) != len(labels) for labels in (first, second, result))
    if several or len(summed) != 1 or not summed <= set(first) & set(second):
        return None
    return Product((one, other), summed.pop(), result)


def has_einsums(graph: Graph) -> bool:
    """Whether there are products in Einstein's notation."""
    return any(node.op.name == "einsum" for node in graph.nodes)


def multiply_matrices(graph: Graph) -> Graph:
    """Return a graph in which an ``einsum`` that is the product of two matrices is one, with axes put together.

    So it is computed by whatever computes such products fastest, and equal products are equal however they are written.

    >>> graph = gt.make_graph(lambda x, w: gt.einsum("btd,dhk->bthk", x, w))(gt.ones((2, 3, 4)), gt.ones((4, 5, 6)))
    >>> print(multiply_matrices(graph))
    graph(%0: f32[2,3,4], %1: f32[4,5,6]) {
      %3: f32[6,4] = reshape(%0) {shape=(6, 4)}
      %4: f32[4,30] = reshape(%1) {shape=(4, 30)}
      %5: f32[6,30] = matmul(%3, %4)
      %2: f32[2,3,5,6] = reshape(%5) {shape=(2, 3, 5, 6)}
      return %2
    }
    """
    return rewrite(graph, {"einsum": _matmul})


def _matmul(build: Replacements, node: Node) -> int | None:
    """Put the axes of two operands together to matrices, and multiply these."""
    found = _matrices(node)
    if found is None:
        return None
    places, labels, (rows, summed, columns) = found

    def matrix(k: int, first: str, second: str) -> int:
        value, a, own = node.ins[places[k]], node.instr.ins[places[k]], labels[k]
        flipped = own == second + first
        groups = (second, first) if flipped else (first, second)
        sizes = dict(zip(own, a.shape, strict=True))
        value = build.arranged(value, tuple(map(own.index, "".join(groups))))  # type: ignore[arg-type]  # an array
        value = build.shaped(value, tuple([math.prod(map(sizes.__getitem__, group)) for group in groups]))
        return build.arranged(value, (1, 0) if flipped else (0, 1))

    product = build("matmul", (), matrix(0, rows, summed), matrix(1, summed, columns))
    return build.shaped(product, node.instr.aval.shape)


def _matrices(node: Node) -> tuple[tuple[int, int], tuple[str, str], tuple[str, str, str]] | None:
    """Return the order of the operands, their labels, and those of rows, of what is summed over, and of columns.

    None: it is no product of two matrices, or its result would have to be rearranged.
    """
    terms, _, result = node.attributes["equation"].partition("->")
    labels = terms.split(",")
    if len(labels) != 2 or not all(isinstance(x, int) for x in node.ins):
        return None
    if any(a.dtype is not node.instr.aval.dtype or not a.floating or a.complex for a in node.instr.ins):
        return None
    for places in ((0, 1), (1, 0)):
        first, second = (labels[k] for k in places)
        if len(set(first)) != len(first) or len(set(second)) != len(second):
            return None
        summed = "".join(c for c in first if c in second)
        rows = "".join(c for c in result if c in first)
        columns = "".join(c for c in result if c in second)
        if not (summed and rows and columns) or set(summed) & set(result):
            return None
        if set(rows + summed) != set(first) or set(columns + summed) != set(second):
            return None
        if result == rows + columns:
            return places, (first, second), (rows, summed, columns)
    return None
