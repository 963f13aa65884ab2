"""What a program computes of an array row by row, and the values of that on random rows."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core.ir.aval import Aval
from gtrace.core.ir.def_use import Values
from gtrace.core.ir.graph import Node, Scalar

SPREADS, MEANS = (0.1, 1.0, 1e-20, 0.0), (1.0, 0.0, 0.0, 0.0)
"""Of the rows. On the third one, any number that is added to what a norm divides by shows. The last one has no
variance, so what a program does with such rows shows."""

TOLERANCE = 1e-9
"""How far equal values may be apart, as a part of the largest in their row."""

SAMPLE = 16
"""Elements of a row that stand for all of it, where nothing tells one from the other."""

FULL, ROW, FLAT, COLUMN = "full", "row", "flat", "column"
"""What a value is beside an array: of its shape; a number for each row, with axes of one element where the row has its
axes, or without these; or a vector along the row, perhaps with axes of one element before."""

CASES = ("maximum", "gt", "eq")
"""Operations that tell variances from 0; see `Rows.cases`."""


class Rows:
    """What is computed row by row of an array, a cotangent of its shape, and vectors.

    A row has the elements along some axes, for one place along the others. Vectors have an element for each place of a
    row, if it is the last axis, and otherwise a number for each row. Only sums, products, quotients, powers, and sums
    and means of rows are followed, and comparisons of numbers of rows with 0.

    Args:
        axes: of a row.

    Attributes:
        kinds: the results, in order, and the kind of each.
        plain: the arrays among these that are computed without what is computed of a row.
        vectors: the vectors.
        cases: the numbers that are compared with 0; `compared` are the results.
        length: elements of a row.
    """

    def __init__(self, values: Values, x: int, axes: tuple[int, ...], cotangent: int | None = None) -> None:
        self.values, self.x, self.axes, self.cotangent = values, x, axes, cotangent
        self.shape: tuple[int, ...] = values.avals[x].shape
        self.length = math.prod(self.shape[k] for k in axes)
        self.along = axes == (len(self.shape) - 1,)
        self.kinds: dict[int, str] = {}
        self.plain: set[int] = set()
        self.vectors: list[int] = []
        self.cases: list[int] = []
        self.compared: set[int] = set()
        self._row = _stripped([1 if k in axes else n for k, n in enumerate(self.shape)])
        self._flat = tuple([n for k, n in enumerate(self.shape) if k not in axes])
        self._grow()

    def kind(self, value: int) -> str | None:
        """Return the kind of a value that is given: the array, a vector, a cotangent."""
        shape = getattr(self.values.avals[value], "shape", None)
        if shape is None or self.values.avals[value].dtype is not self._dtype:
            return None
        if shape == self.shape:
            return FULL
        if self.along:
            return COLUMN if _stripped(shape) == self.shape[-1:] else None
        return self._of_rows(shape)

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.values.avals[self.x].dtype
        return dtype

    def _of_rows(self, shape: Sequence[int]) -> str | None:
        """Return the kind of numbers of rows of this shape."""
        if _stripped(shape) == self._row:
            return ROW
        return FLAT if tuple(shape) == self._flat else None

    def _grow(self) -> None:
        values, kinds = self.values, self.kinds
        given = {self.x: FULL} | ({} if self.cotangent is None else {self.cotangent: FULL})
        vectors: dict[int, None] = {}
        pending: list[int] = []  # a heap of places, some of which come twice
        for value in given:
            self._follow(value, pending)
        done = -1
        while pending:
            place = heapq.heappop(pending)
            if place == done:
                continue
            done = place
            node = values.graph.nodes[place]
            operands = []
            for operand in node.ins:
                if isinstance(operand, int):
                    kind = kinds.get(operand) or given.get(operand)
                    other = None if kind else self.kind(operand)
                    operands.append(kind or (None if other == FULL else other))
            out = self._kind_of(node, operands)
            if out is None:
                continue
            kinds[node.out] = out
            if out == FULL and all(kinds.get(v) in (None, COLUMN) or v in self.plain for v in node.values()):
                self.plain.add(node.out)
            if out != COLUMN:  # vectors along rows are results
                self._follow(node.out, pending)
            vectors.update((v, None) for v in node.values() if v not in kinds and v not in given)
        self.vectors = list(vectors)

    def _follow(self, value: int, pending: list[int]) -> None:
        for user in self.values.users.get(value, []):
            heapq.heappush(pending, self.values.place[user.out])

    def _kind_of(self, node: Node, operands: list[str | None]) -> str | None:
        """Return the kind of a result; None: it is not computed row by row from what is known."""
        if not operands or None in operands:
            return None
        a, name = node.instr.aval, node.op.name
        if not isinstance(a, Aval):
            return None
        if name in CASES and operands in ([ROW], [FLAT]) and _is_zero(node.ins[1]):
            self.cases.append(node.ins[0])  # type: ignore[arg-type]  # a value
            self.compared.add(node.out)
            return operands[0]
        if a.dtype is not self._dtype:
            return None
        if name == "astype":
            return operands[0] if operands in ([ROW], [FLAT]) else None
        if name in ("mean", "sum") and operands == [FULL]:
            return self._of_rows(a.shape) if node.params[0] == self.axes else None
        if name == "sum_to" and operands == [FULL]:
            if self.along and _stripped(a.shape) == self.shape[-1:]:
                return COLUMN
            return ROW if self._of_rows(a.shape) == ROW else None
        if name in ("broadcast_to", "reshape") and operands in ([ROW], [FLAT]):
            kind = self._of_rows(a.shape)
            if kind == ROW or (kind == FLAT and name == "reshape"):
                return kind
            return FULL if name == "broadcast_to" and operands == [ROW] and a.shape == self.shape else None
        if not node.op.algebraic:
            return None
        if FLAT in operands:
            return FLAT if set(operands) == {FLAT} else None
        if a.shape == self.shape:
            return FULL
        return ROW if set(operands) == {ROW} else None

    # -- values

    def _random(self, value: int, kind: str | None) -> torch.Tensor:
        """Return random numbers that stand for a value that is given: others for each."""
        rows, sample = len(SPREADS), self.sample
        sizes = {FULL: (rows, sample), COLUMN: (sample,)}.get(kind or "", (rows, 1))
        return torch.randn(sizes, generator=torch.Generator().manual_seed(value), dtype=torch.float64)

    @property
    def sample(self) -> int:
        """How many elements of a row are evaluated: each stands for as many others, unless vectors lie along it."""
        return self.length if self.along else SAMPLE

    def total(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sums of rows."""
        return x.sum(-1, keepdim=True) * (self.length / self.sample)

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sums that have the form of vectors."""
        return x.sum(0) if self.along else self.total(x)

    def formula(self) -> tuple[Any, list[int]]:
        """Return what is computed, which is equal for equal layers, and its values in order."""
        place = {self.x: 0} if self.cotangent is None else {self.x: 0, self.cotangent: 1}
        steps = []
        for value in self.kinds:
            node = self.values.made[value]
            ins = tuple([v if isinstance(v, Scalar) else place.setdefault(v, len(place)) for v in node.ins])
            place.setdefault(value, len(place))
            steps.append((node.instr, ins))
        return (self.axes, *steps), list(place)

    def evaluate(self) -> dict[int, torch.Tensor]:
        """Return the values of everything on the rows."""
        spreads, means = (torch.tensor(x, dtype=torch.float64)[:, None] for x in (SPREADS, MEANS))
        env = {self.x: self._random(self.x, FULL) * spreads + means}
        if self.cotangent is not None:
            env[self.cotangent] = self._random(self.cotangent, FULL)
        for value, kind in self.kinds.items():
            node = self.values.made[value]
            operands = [
                torch.tensor(v.value, dtype=torch.float64)
                if isinstance(v, Scalar)
                else env[v]
                if v in env
                else env.setdefault(v, self._random(v, self.kind(v)))
                for v in node.ins
            ]  # fmt: skip
            name = node.op.name
            if name == "mean":
                env[value] = operands[0].mean(-1, keepdim=True)
            elif name in ("sum", "sum_to"):
                env[value] = operands[0].sum(0) if kind == COLUMN else self.total(operands[0])
            elif name in ("astype", "broadcast_to", "reshape"):
                env[value] = operands[0]
            else:
                env[value] = node.op.impl(*operands, **node.attributes).to(torch.float64)
        return env


def _stripped(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without axes of one element in front, which change nothing beside another array."""
    first = next((k for k, n in enumerate(shape) if n != 1), len(shape))
    return tuple(shape[first:])


def _is_zero(x: Any) -> bool:
    return isinstance(x, Scalar) and x.value == 0


def equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.shape != y.shape:
        return False
    close = (x - y).abs() <= TOLERANCE * y.abs().amax(-1, keepdim=True)
    return bool((close | (x.isnan() & y.isnan())).all())
