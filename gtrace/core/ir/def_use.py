"""A graph, with what searches in it ask: who makes a value, who takes it, what it is computed from."""

from __future__ import annotations

import math
from collections.abc import Collection

from gtrace.core.ir.graph import Graph, Node


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

    def depends(self, value: int, on: Collection[int]) -> bool:
        """Whether a value is one of others, or computed from any of them."""
        first = min((self.place[x] for x in on), default=math.inf)
        left, seen = [value], {value}
        while left:
            x = left.pop()
            if x in on:
                return True
            if self.place.get(x, -1) > first:  # operations before the first of them cannot be
                fresh = [y for y in self.made[x].values() if y not in seen]
                seen.update(fresh)
                left += fresh
        return False
