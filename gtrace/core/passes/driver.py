"""The driver of rewrites that replace many operations: matches, claims, what must vanish, evaluation, refusal.

A rule proposes places to search. A search returns a match: the values that are replaced, the operations in their place,
and the values that must vanish.
The driver replaces all matches of a round together. A match whose values another one replaces waits for the next round.
A match is refused if something else needs what must vanish, or if evaluation shows other values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

import attrs

from gtrace.core.base.errors import GraphError
from gtrace.core.ir.def_use import Values
from gtrace.core.ir.edit import Replacements, toposort
from gtrace.core.ir.equality import computes
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.simplify import dce


@attrs.frozen
class Match:
    """What a search found.

    Attributes:
        replaced: the values that new operations compute.
        inside: the values that nothing may need any more.
        rewrite: makes the new operations.
        evaluation: the values that evaluation treats apart; see `computes`.
    """

    replaced: Collection[int]
    inside: Collection[int]
    rewrite: Callable[[Replacements], None]
    evaluation: Mapping[str, Collection[int]] = {}


Searches = Iterable[tuple[Hashable, Callable[[], Match | None]]]
"""Searches by a name that they keep when the program changes elsewhere."""


def fuse(graph: Graph, rule: Callable[[Values], Searches]) -> Graph:
    """Return a graph in which the matches of a rule are replaced."""
    left: set[Hashable] | None = None  # None: all
    while left is None or left:
        values = Values(graph)
        found: dict[Hashable, Match] = {}
        claimed: set[int] = set()
        wanted, left = left, set()
        for name, search in rule(values):
            match = search() if wanted is None or name in wanted else None
            if match is not None and claimed.isdisjoint(match.replaced):
                found[name] = match
                claimed.update(match.replaced)
            elif match is not None:
                left.add(name)
        if not found:
            break
        after, refused = _replaced(values, found)
        if refused:
            left.update(name for name in found if name not in refused)
        else:
            graph = after
    return graph


def _replaced(values: Values, found: Mapping[Hashable, Match]) -> tuple[Graph, Collection[Hashable]]:
    """Return a graph with all matches replaced, and the names of those that are refused."""
    graph = values.graph
    build = Replacements(graph)
    for match in found.values():
        match.rewrite(build)
    try:
        nodes = toposort(build.nodes.values(), graph.inputs)
    except GraphError:  # results need each other
        return graph, [*found][-1:]
    after = dce(Graph(graph.inputs, graph.avals, nodes, graph.outputs))
    made = {node.out: node for node in after.nodes}
    needed = [name for name, match in found.items() if not made.keys().isdisjoint(match.inside)]
    return after, needed or [
        name
        for name, match in found.items()
        if not computes(values, made, [value for value in match.replaced if value in made], **match.evaluation)
    ]
