"""A graph indexed for searches: where a value is computed, who uses it, and what it depends on."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection

from gtrace.core.ir.graph import Graph, Node


class Values:
    """A graph with indices of its values."""

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

    @functools.cached_property
    def constants(self) -> frozenset[int]:
        """The values that are the same in every run."""
        found: set[int] = set()
        for node in self.graph.nodes:
            op = node.op
            if not (op.effect or op.collective or op.rules.body is not None) and found.issuperset(node.values()):
                found.add(node.out)
        return frozenset(found)

    def depends(self, value: int, on: Collection[int]) -> bool:
        """Whether a value is in `on`, or depends on a value in it."""
        first = min((self.place[x] for x in on), default=math.inf)
        left, seen = [value], {value}
        while left:
            x = left.pop()
            if x in on:
                return True
            if self.place.get(x, -1) > first:  # an operation before the first value of `on` cannot depend on one
                fresh = [y for y in self.made[x].values() if y not in seen]
                seen.update(fresh)
                left += fresh
        return False
