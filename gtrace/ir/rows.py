"""What a program computes of an array row by row, and the values of that on random rows."""

from __future__ import annotations

import heapq
from typing import Any

import torch

from gtrace.ir.aval import Aval
from gtrace.ir.graph import Graph, Node, Scalar

SPREADS, MEANS = (0.1, 1.0, 1e-20), (1.0, 0.0, 0.0)
"""Of the rows. On the last one, any number that is added to what a norm divides by shows."""

TOLERANCE = 1e-9
"""How far equal values may be apart, as a part of the largest in their row."""

FULL, ROW, FLAT, COLUMN = "full", "row", "flat", "column"
"""What a value is beside an array [..., n]: of its shape, [..., 1], [...], or [n]."""


class Values:
    """A graph, with what is often asked of it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.avals = graph.value_avals()
        self.made = {node.out: node for node in graph.nodes}
        self.place = {node.out: k for k, node in enumerate(graph.nodes)}
        self.outputs = frozenset(graph.outputs)
        self.users: dict[int, list[Node]] = {}
        for node in graph.nodes:
            for value in dict.fromkeys(node.values()):
                self.users.setdefault(value, []).append(node)

    def added_up(self, value: int) -> Node | None:
        """Return the sum that is the only use of a value."""
        users = self.users.get(value, [])
        return users[0] if len(users) == 1 and users[0].op.name == "add" and value not in self.outputs else None


class Rows:
    """What is computed row by row, along the last axis, of an array, a cotangent of its shape, and vectors.

    Only sums, products, quotients, powers, and sums and means of rows are followed.

    Attributes:
        kinds: the results, in order, and the kind of each.
        plain: the arrays among these that are computed without what is the same for a row.
        columns: the vectors.
    """

    def __init__(self, values: Values, x: int, cotangent: int | None = None) -> None:
        self.values, self.x, self.cotangent = values, x, cotangent
        self.shape: tuple[int, ...] = values.avals[x].shape
        self.kinds: dict[int, str] = {}
        self.plain: set[int] = set()
        self.columns: list[int] = []
        self._grow()

    def kind(self, value: int) -> str | None:
        """Return the kind of a value that is given: the array, a vector, a cotangent."""
        shape = getattr(self.values.avals[value], "shape", None)
        if shape == self.shape:
            return FULL
        return COLUMN if shape == self.shape[-1:] else None

    def _grow(self) -> None:
        values, kinds = self.values, self.kinds
        given = {self.x: FULL} | ({} if self.cotangent is None else {self.cotangent: FULL})
        columns: dict[int, None] = {}
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
                    operands.append(kind or (COLUMN if self.kind(operand) == COLUMN else None))
            out = self._kind_of(node, operands)
            if out is None:
                continue
            kinds[node.out] = out
            if (
                out == FULL
                and ROW not in operands
                and all(kinds.get(v) != FULL or v in self.plain for v in node.values())
            ):
                self.plain.add(node.out)
            if out != COLUMN:  # vectors are results
                self._follow(node.out, pending)
            columns.update((v, None) for v in node.values() if v not in kinds and v not in given)
        self.columns = list(columns)

    def _follow(self, value: int, pending: list[int]) -> None:
        for user in self.values.users.get(value, []):
            heapq.heappush(pending, self.values.place[user.out])

    def _kind_of(self, node: Node, operands: list[str | None]) -> str | None:
        """Return the kind of a result; None: it is not computed row by row from what is known."""
        if not operands or None in operands:
            return None
        a, name = node.instr.aval, node.op.name
        if not isinstance(a, Aval) or a.dtype is not self.values.avals[self.x].dtype:
            return None
        if name in ("mean", "sum") and operands == [FULL]:
            axes, keepdims = node.params
            return None if axes != (len(self.shape) - 1,) else ROW if keepdims else FLAT
        if name == "sum_to" and operands == [FULL]:
            return ROW if a.shape == (*self.shape[:-1], 1) else COLUMN if a.shape == self.shape[-1:] else None
        if name in ("broadcast_to", "reshape") and operands in ([ROW], [FLAT]):
            if a.shape == (*self.shape[:-1], 1):
                return ROW
            if name == "reshape" and a.shape == self.shape[:-1]:
                return FLAT
            return FULL if name == "broadcast_to" and operands == [ROW] and a.shape == self.shape else None
        if not node.op.algebraic:
            return None
        if FLAT in operands:
            return FLAT if set(operands) == {FLAT} else None
        if a.shape == self.shape:
            return FULL
        return ROW if set(operands) == {ROW} else None

    def _random(self, value: int, *sizes: int) -> torch.Tensor:
        """Return random numbers that stand for a value: others for each."""
        generator = torch.Generator().manual_seed(value)
        return torch.randn((*sizes, self.shape[-1]), generator=generator, dtype=torch.float64)

    def formula(self) -> tuple[Any, list[int]]:
        """Return what is computed, which is equal for equal layers, and its values in order."""
        place = {self.x: 0} if self.cotangent is None else {self.x: 0, self.cotangent: 1}
        steps = []
        for value in self.kinds:
            node = self.values.made[value]
            ins = tuple([v if isinstance(v, Scalar) else place.setdefault(v, len(place)) for v in node.ins])
            place.setdefault(value, len(place))
            steps.append((node.instr, ins))
        return tuple(steps), list(place)

    def evaluate(self) -> dict[int, torch.Tensor]:
        """Return the values of everything on the rows."""
        spreads, means = (torch.tensor(x, dtype=torch.float64)[:, None] for x in (SPREADS, MEANS))
        env = {self.x: self._random(self.x, len(SPREADS)) * spreads + means}
        if self.cotangent is not None:
            env[self.cotangent] = self._random(self.cotangent, len(SPREADS))
        for value, kind in self.kinds.items():
            node = self.values.made[value]
            operands = [
                torch.tensor(v.value, dtype=torch.float64)
                if isinstance(v, Scalar)
                else env[v]
                if v in env
                else env.setdefault(v, self._random(v))
                for v in node.ins
            ]  # fmt: skip
            name = node.op.name
            if name in ("mean", "sum"):
                env[value] = getattr(operands[0], name)(-1, keepdim=True)
            elif name == "sum_to":
                env[value] = operands[0].sum(-1, keepdim=True) if kind == ROW else operands[0].sum(0)
            elif name in ("broadcast_to", "reshape"):
                env[value] = operands[0]
            else:
                env[value] = node.op.impl(*operands, **node.attributes)
        return env


def equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and bool(((x - y).abs() <= TOLERANCE * y.abs().amax(-1, keepdim=True)).all())
