"""What a program computes row by row of an array, and the values of that for random operands."""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Iterable
from typing import Any

import torch

from gtrace.core.ir.aval import Aval
from gtrace.core.ir.def_use import Values
from gtrace.core.ir.equality import evaluated
from gtrace.core.ir.graph import Node, Scalar

CASES = ("maximum", "gt", "eq")
"""Operations that tell variances from 0; see `Rows.cases`."""


class Rows:
    """What is computed row by row of an array, a cotangent of its shape, and vectors.

    A row has the elements along some axes, for one place along the others. Followed are arrays of the same shape, and
    arrays with a number for each row or for each place of a row. They are computed by sums, products, quotients,
    powers, sums of arrays, and comparisons of numbers with 0.

    Args:
        axes: of a row.

    Attributes:
        nodes: what computes them, by value, in order.
        full: the values of the array's shape; of these, `plain` ones need nothing that is computed of a row.
        vectors: the operands beside the array and the cotangent.
        cases: the values that are compared with 0; `compared` are the results.
    """

    def __init__(self, values: Values, x: int, axes: tuple[int, ...], cotangent: int | None = None) -> None:
        self.values, self.cotangent = values, cotangent
        a = values.avals[x]
        self._kind, self._axes = a, axes
        self._rows = a.size // math.prod(a.shape[k] for k in axes)
        self._sizes = {self._rows, a.shape[-1] if axes == (len(a.shape) - 1,) else self._rows}
        self.nodes: dict[int, Node] = {}
        self.full: set[int] = set()
        self.plain: set[int] = set()
        self.cases: list[int] = []
        self.compared: set[int] = set()
        self._given = dict.fromkeys([x] if cotangent is None else [x, cotangent])
        self._grow()
        self.vectors = list(self._given)[2 if cotangent is not None else 1 :]

    def _grow(self) -> None:
        values = self.values
        pending: list[int] = []  # a heap of places, some of which come twice
        grown = list(self._given)
        done = -1
        while grown or pending:
            for value in grown:
                for user in values.users.get(value, ()):
                    heapq.heappush(pending, values.place[user.out])
            grown = []
            place = heapq.heappop(pending) if pending else done
            if place == done:
                continue
            done = place
            node = values.graph.nodes[place]
            if not self._is_followed(node):
                continue
            out = node.out
            self.nodes[out] = node
            self._given.update((v, None) for v in node.values() if v not in self.nodes)
            if self.is_full(out):
                self.full.add(out)
                if all(v not in self.nodes or v in self.plain for v in node.values()):
                    self.plain.add(out)
            if out in self.full or node.instr.aval.size == self._rows:  # vectors along rows are results
                grown.append(out)

    def is_full(self, value: int) -> bool:
        """Whether a value has the type of the array."""
        return self._has_dtype(self.values.avals[value]) and self.values.avals[value].shape == self._kind.shape

    def _has_dtype(self, a: Any) -> bool:
        return isinstance(a, Aval) and a.dtype is self._kind.dtype

    def _is_vector(self, a: Any) -> bool:
        return self._has_dtype(a) and a.shape != self._kind.shape and a.size in self._sizes

    def _is_followed(self, node: Node) -> bool:
        a, op, avals = node.instr.aval, node.op, self.values.avals
        if not all(v in self.nodes or v in self._given or self._is_vector(avals[v]) for v in node.values()):
            return False
        full = any(map(self.is_full, node.values()))
        if op.name in CASES and not full and _is_zero(node.ins[1]):
            self.cases.append(node.ins[0])  # type: ignore[arg-type]  # a value
            self.compared.add(node.out)
            return True
        if self.is_full(node.out):
            return op.algebraic or (op.moves and not full)
        return self._is_vector(a) and (op.algebraic or (op.rules.linear is True and (op.moves is not full)))

    def needed(self, values: Iterable[int]) -> set[int]:
        """Return the arrays of the same shape that values are computed of, and those among these values."""
        left = list(values)
        found = set(left)
        while left:
            fresh = [v for v in self.nodes[left.pop()].values() if v in self.nodes and v not in found]
            found.update(fresh)
            left += fresh
        return found & self.full

    @functools.cached_property
    def env(self) -> dict[int, Any] | None:
        """The values of everything for random operands, at small sizes; None: they are too large.

        One of several rows has no variance, so what a program does with such rows shows.
        """
        return evaluated(self.values, list(self.nodes.values()), list(self._given), self._add_zeros)

    def _add_zeros(self, x: torch.Tensor) -> None:
        if self._rows > 1:
            x[tuple([slice(None) if k in self._axes else 0 for k in range(x.dim())])] = 0.0


def _is_zero(x: Any) -> bool:
    return isinstance(x, Scalar) and x.value == 0
