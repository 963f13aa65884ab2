"""Canonical form: graphs that compute the same thing in the same way become the same graph.

Identities, dead code and duplicates are removed. Operands of commutative operations are sorted. Values are numbered by
a depth-first walk from the outputs. So the result depends neither on names nor on the order of recording.

Commutative operands and outputs are sorted by hashes, refined as in Weisfeiler and Leman (1968). A value is hashed by
its operands, then by its users; then both are repeated with inputs distinguished by their users. Sizes and numbers only
break ties, sizes by their order, so that a program keeps its form when they change. Values that still tie and are
connected through others that do are a group; groups that are alike are numbered as they come. Outputs and inputs that
tie within a group are marked one at a time, and everything is hashed again. Values that tie after that are
interchangeable, except in contrived graphs. There one program may get two signatures, which costs a compile but never
gives a wrong result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import attrs

from gtrace.core.base import mechanisms
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar, Subgraph
from gtrace.core.ir.op import stable_hash
from gtrace.core.ir.pipeline import (
    CSE,
    DCE,
    FOLD,
    JOIN_PARTS,
    MERGE_BATCHES,
    MOVE_TRANSPOSES,
    ORDER_OPERANDS,
    REMOVE_IDENTITIES,
    Pass,
    Pipeline,
)
from gtrace.core.ir.skeleton import kind, mask
from gtrace.core.ir.subgraph import subgraph, without_rules
from gtrace.core.passes.subgraph_calls import has_calls, inline_calls, map_subgraphs, merge_calls, narrow_calls

_MASK = (1 << 60) - 1
_OUTPUT = stable_hash("output")
_ROUNDS = 2
_MAX_MARKS = 64
_MAX_WORK = 100_000

Key = tuple[int, ...]


@attrs.frozen
class Canonical:
    """A canonical graph and how it maps to the one it came from.

    Attributes:
        graph: the program; its inputs are 0, 1, ... in order of first use, its outputs are distinct nodes.
        inputs: input k of `graph` is input ``inputs[k]`` of the original.
        outputs: output j of the original is output ``outputs[j]`` of `graph`, or, when negative, input
            ``-1 - outputs[j]`` of the original itself.
    """

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def is_rewritten(self, graph: Graph) -> bool:
        """Whether the program has other operations than `graph`, which it came from.

        Their order does not count, nor that of operands that may be exchanged, nor how often a value is computed.
        """
        numbers: dict[Hashable, int] = {}

        def number(key: Hashable) -> int:
            return numbers.setdefault(key, len(numbers))

        def numbered(graph: Graph, inputs: Iterable[int]) -> dict[int, int]:
            found = {value: number(place) for value, place in zip(graph.inputs, inputs, strict=True)}
            for node in graph.nodes:
                ins = [found[x] if isinstance(x, int) else number(x.key) for x in node.ins]
                found[node.out] = number((node.instr, *(sorted(ins) if node.op.commutative else ins)))
            return found

        before, after = numbered(graph, range(len(graph.inputs))), numbered(self.graph, self.inputs)
        ways = zip(graph.outputs, self.outputs, strict=True)
        return any(before[v] != (after[self.graph.outputs[k]] if k >= 0 else number(-1 - k)) for v, k in ways)


def canonicalize(graph: Graph) -> Canonical:
    """Return the canonical form of `graph`. Its outputs are taken as a set; `Canonical.outputs` has their order.

    >>> from gtrace import ir
    >>> print(ir.canonicalize(gt.make_graph(lambda x, y: (gt.exp(x), gt.sin(y) * 2)[1])(gt.ones(2), gt.ones(3))).graph)
    graph(%0: f32[3]) {
      %1: f32[3] = sin(%0)
      %2: f32[3] = mul(%1, 2.0:f32[]~)
      return %2
    }
    """
    graph = CANONICAL.run(graph)
    position = {value: k for k, value in enumerate(graph.inputs)}
    results = [value for value in dict.fromkeys(graph.outputs) if value not in position]
    order = _order_keys(graph, results)
    results.sort(key=order.__getitem__)
    numbering, nodes, inputs = _number(graph, results, order)
    avals = tuple(graph.avals[position[value]] for value in inputs)
    canonical = Graph(tuple(range(len(inputs))), avals, nodes, tuple(numbering[value] for value in results))
    where = {value: k for k, value in enumerate(results)}
    outputs = tuple(where[v] if v in where else -1 - position[v] for v in graph.outputs)
    return Canonical(canonical, tuple(position[value] for value in inputs), outputs)


def canonical_subgraph(sub: Subgraph) -> Subgraph:
    """Return the canonical form of a sub-graph, whose inputs and outputs keep their places."""

    def make() -> Subgraph:
        graph = CANONICAL.run(sub.graph)
        places = {value: k for k, value in enumerate(graph.inputs)}
        results = [value for value in dict.fromkeys(graph.outputs) if value not in places]
        # inputs and outputs are distinguished by their places
        marks = {value: 1 + k for k, value in enumerate((*graph.inputs, *results))}
        numbering, nodes, _ = _number(graph, results, _refine(graph, results, marks), graph.inputs)
        outputs = tuple(numbering[value] for value in graph.outputs)
        return subgraph(Graph(tuple(range(len(graph.inputs))), graph.avals, nodes, outputs))

    return sub.memo("canonical", make)


def _canonical_subgraphs(graph: Graph) -> Graph:
    nodes = tuple(map_subgraphs(node, canonical_subgraph) for node in graph.nodes)
    return Graph(graph.inputs, graph.avals, nodes, graph.outputs)


def _without_rules(graph: Graph) -> Graph:
    return Graph(graph.inputs, graph.avals, tuple(map(without_rules, graph.nodes)), graph.outputs)


CANONICAL = Pipeline(
    "canonical",
    (
        Pass("without_rules", _without_rules),
        Pass("inline_calls", inline_calls),
        REMOVE_IDENTITIES,
        DCE,
        FOLD,
        JOIN_PARTS,
        DCE,
        ORDER_OPERANDS,
        CSE,
        MERGE_BATCHES,
        MOVE_TRANSPOSES,
        DCE,
        Pipeline(
            "calls",
            (
                Pass("merge_calls", lambda graph: merge_calls(graph, canonical_subgraph), mechanisms.MERGE_CALLS),
                DCE,
                Pass("narrow_calls", narrow_calls, mechanisms.NARROW_CALLS),
                DCE,
                Pass("canonical_subgraphs", _canonical_subgraphs),
                CSE,
                DCE,
            ),
            when=has_calls,
        ),
    ),
)
"""The passes that a program goes through before its values are numbered."""


def _order_keys(graph: Graph, results: Sequence[int]) -> dict[int, Key]:
    """Return for each value a sort key that does not depend on names or on the order of the nodes.

    While outputs tie, or else inputs, within a group, one of the tied values is marked in each such group, and
    everything is hashed again. The mark also breaks ties between the values that are used with the marked one and those
    used with the others.
    """
    marks: dict[int, int] = {}
    used = {value for node in graph.nodes for value in node.values()}
    inputs = [value for value in graph.inputs if value in used]
    for mark in range(1, 1 + min(_MAX_MARKS, _MAX_WORK // (len(graph.nodes) + 1))):
        keys, groups = _separate(graph, _refine(graph, results, marks))
        tied = _first_ties(results, keys, groups) or _first_ties(inputs, keys, groups)
        if not tied:
            return keys
        marks |= dict.fromkeys(tied, mark)
    return _separate(graph, _refine(graph, results, marks))[0]


def _separate(graph: Graph, keys: dict[int, Key]) -> tuple[dict[int, Key], dict[int, int]]:
    """Break the ties between groups: values that tie and are used together, directly or through others that tie.

    Values that several groups share do not tie. So groups of equal keys can change places, and are numbered in the
    order of the program. The updates of parameters of one shape are an example.

    Returns:
        The keys, and by value that tied one that stands for its group.
    """
    count = Counter(keys.values())
    parent = {value: value for value, key in keys.items() if count[key] > 1}
    if not parent:
        return keys, {}
    for node in graph.nodes:
        if node.out in parent:
            for value in node.values():
                if value in parent:
                    parent[_root(parent, value)] = _root(parent, node.out)
    groups = {value: _root(parent, value) for value in parent}
    members: dict[int, list[int]] = {}
    for value, group in groups.items():
        members.setdefault(group, []).append(value)
    seen: Counter[int] = Counter()
    separate = dict(keys)
    for tied in members.values():
        alike = _mix(*sorted(_mix(*keys[value]) for value in tied))
        for value in tied:
            separate[value] = (*keys[value], alike, seen[alike])
        seen[alike] += 1
    return separate, groups


def _root(parent: dict[int, int], value: int) -> int:
    while parent[value] != value:
        parent[value] = value = parent[parent[value]]
    return value


def _first_ties(values: Sequence[int], keys: dict[int, Key], groups: dict[int, int]) -> list[int]:
    """Return of each group the first of the values that have its lowest shared key, if any do."""
    first: dict[Key, int] = {}
    shared: dict[int, Key] = {}
    for value in values:
        key = keys[value]
        if first.setdefault(key, value) != value:
            group = groups[value]
            shared[group] = min(key, shared.get(group, key))
    return [first[key] for key in shared.values()]


def _refine(graph: Graph, results: Sequence[int], marks: dict[int, int]) -> dict[int, Key]:
    keys = _hash(graph, results, marks, exact=False)
    if len(set(keys.values())) == len(keys):
        return keys
    # compare operands before users: in a gradient, almost every value has users whose sizes vary
    exact = _hash(graph, results, marks, exact=True)
    alone = {v: stable_hash(repr(a)) for v, a in zip(graph.inputs, graph.avals, strict=True)}
    _hash_from_operands(graph, alone, exact=True)
    ranks = _ranks(graph)
    return {value: (*key, ranks[value], alone[value], *exact[value]) for value, key in keys.items()}


def _ranks(graph: Graph) -> dict[int, int]:
    """Return the order by integers of values that are equal without these: by their own, then by those of operands.

    The halves of an array are an example. The order of hashes would be another one at other sizes.
    """
    above = {value: stable_hash(kind(a)) for value, a in zip(graph.inputs, graph.avals, strict=True)}
    _hash_from_operands(graph, above, exact=False)
    makers = {node.out: node for node in graph.nodes}
    own: dict[int, tuple[int, ...]] = {value: a.shape for value, a in zip(graph.inputs, graph.avals, strict=True)}
    depths = dict.fromkeys(graph.inputs, 0)
    for node in graph.nodes:
        depths[node.out] = 1 + max([depths[value] for value in node.values()], default=0)
        integers: list[int] = []
        mask(node.params, integers)
        own[node.out] = tuple(integers)
    layers: dict[tuple[int, int], list[int]] = {}
    for value, depth in depths.items():  # values that are alike are equally far from the inputs
        layers.setdefault((depth, above[value]), []).append(value)
    ranks: dict[int, int] = {}
    for _, alike in sorted(layers.items(), key=lambda item: item[0][0]):
        keys = {value: (own[value], _ranks_of_operands(makers.get(value), ranks)) for value in alike}
        order = {key: rank for rank, key in enumerate(sorted(set(keys.values())))}
        ranks.update({value: order[key] for value, key in keys.items()})
    return ranks


def _ranks_of_operands(node: Node | None, ranks: dict[int, int]) -> tuple[int, ...]:
    found = [] if node is None else [ranks[value] for value in node.values()]
    return tuple(sorted(found) if node is not None and node.op.commutative else found)


def _hash(graph: Graph, results: Sequence[int], marks: dict[int, int], exact: bool) -> dict[int, Key]:
    text = repr if exact else kind
    kinds = {v: _mix(stable_hash(text(a)), marks.get(v, 0)) for v, a in zip(graph.inputs, graph.avals, strict=True)}
    ends = {value: _mix(_OUTPUT, marks.get(value, 0)) for value in results}
    above = dict(kinds)
    users: dict[int, int] = {}
    for _ in range(_ROUNDS):
        _hash_from_operands(graph, above, exact)
        users = _hash_from_users(graph, ends, above, exact)
        for value in graph.inputs:
            above[value] = _mix(kinds[value], users.get(value, 0))
    return {value: (above[value], users.get(value, 0)) for value in above}


def _hash_from_operands(graph: Graph, above: dict[int, int], exact: bool) -> None:
    for node in graph.nodes:
        if exact:
            own = node.instr.digest
            parts = [above[x] if x.__class__ is int else stable_hash(repr(x)) for x in node.ins]
        else:
            own = node.instr.form
            parts = [above[x] if x.__class__ is int else 1 for x in node.ins]
        if node.op.commutative:
            parts.sort()
        above[node.out] = _mix(own, *parts)


def _hash_from_users(graph: Graph, ends: dict[int, int], above: dict[int, int], exact: bool) -> dict[int, int]:
    users = dict(ends)
    for node in reversed(graph.nodes):
        context = _mix(node.instr.digest if exact else node.instr.form, users.get(node.out, 0), above[node.out])
        for slot, operand in enumerate(node.ins):
            if operand.__class__ is int:
                use = _mix(context, 0 if node.op.commutative else slot)
                users[operand] = (users.get(operand, 0) + use) & _MASK
    return users


def _mix(*parts: int) -> int:
    # CPython hashes a tuple of ints the same way in every process, but nearly linearly in its last item: sums of such
    # hashes could cancel. The multiplication between shifts is the finalizer of Steele et al. (2014).
    mixed = hash(parts) & _MASK
    mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
    return mixed ^ (mixed >> 32)


def _number(
    graph: Graph, results: Sequence[int], order: dict[int, Key], fixed: Sequence[int] = ()
) -> tuple[dict[int, int], tuple[Node, ...], list[int]]:
    """Walk depth first from the outputs. Return the final number of each value, the nodes in order, and the inputs."""
    maker = {node.out: node for node in graph.nodes}
    inputs = list(fixed)
    visited: dict[int, int] = {value: k for k, value in enumerate(inputs)}
    ordered: list[tuple[Node, tuple[Operand, ...]]] = []
    for root in results:
        stack: list[tuple[int, tuple[Operand, ...] | None]] = [(root, None)]
        while stack:
            value, ins = stack.pop()
            if ins is not None:
                ordered.append((maker[value], ins))
                continue
            if value in visited:
                continue
            visited[value] = len(visited)
            node = maker.get(value)
            if node is None:
                inputs.append(value)
                continue
            ins = _arrange(node, order, visited)
            stack.append((value, ins))
            stack.extend((x, None) for x in reversed(ins) if isinstance(x, int))
    numbering = {value: k for k, value in enumerate(inputs)}
    nodes = []
    for node, ins in ordered:
        numbering[node.out] = len(numbering)
        renamed = tuple(numbering[x] if isinstance(x, int) else x for x in ins)
        nodes.append(Node(node.instr, renamed, numbering[node.out], node.location))
    return numbering, tuple(nodes), inputs


def _arrange(node: Node, order: dict[int, Key], visited: dict[int, int]) -> tuple[Operand, ...]:
    if not node.op.commutative or len(set(node.instr.ins)) > 1:
        # the avals differ: `order_operands` has fixed the order
        return node.ins

    def key(operand: Operand) -> tuple[int, Key, int, str]:
        if isinstance(operand, Scalar):
            return 1, (), 0, repr(operand)
        return 0, order[operand], visited.get(operand, len(visited)), ""

    return tuple(sorted(node.ins, key=key))
