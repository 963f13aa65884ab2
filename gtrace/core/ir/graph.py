"""Graphs: frozen programs in static single assignment form.

A value is an int. `Graph.inputs` are values, and each node assigns one new value. An operand is a value or a
`Scalar`, which is a Python number and a constant of the program.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import attrs

from gtrace.core.base.bounded_tables import PER_OPERATION, SMALL, BoundedTable
from gtrace.core.ir.aval import Aval, Bundle, layout
from gtrace.core.ir.op import Instr, Op, Params
from gtrace.core.ir.skeleton import kind, mask


@attrs.define(eq=False)
class Scalar:
    """A Python number as an operand, with its promoted aval.

    Two scalars are equal if they have the same bits: 0.0 and -0.0 differ, a NaN equals itself.
    """

    value: bool | int | float | complex
    aval: Aval

    @property
    def key(self) -> tuple[str, Aval]:
        return repr(self.value), self.aval

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        value = self.value
        text = str(value) if not isinstance(value, float) or math.isfinite(value) else repr(value)
        return f"{text}:{self.aval!r}"


Operand = int | Scalar


@attrs.frozen(cache_hash=True)
class Node:
    """One operation: ``out = instr(ins)``.

    Attributes:
        instr: operation, attributes and avals.
        ins: the operands.
        out: the value that it assigns.
        location: ``file:line`` of the user's code, or None if unknown; equality ignores it.
    """

    instr: Instr
    ins: tuple[Operand, ...]
    out: int
    location: str | None = attrs.field(default=None, eq=False)

    @property
    def op(self) -> Op:
        return self.instr.op

    @property
    def params(self) -> Params:
        return self.instr.params

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes by name."""
        return self.instr.attributes

    def values(self) -> Iterator[int]:
        """Iterate over the operands that are values."""
        for operand in self.ins:
            if operand.__class__ is int:
                yield operand


@attrs.frozen(cache_hash=True)
class Graph:
    """A closed program.

    Attributes:
        inputs: the values that the caller passes.
        avals: the avals of the inputs.
        nodes: ordered so that every operand is assigned before its use.
        outputs: the values that it returns. A value may appear twice, or be an input.
    """

    inputs: tuple[int, ...]
    avals: tuple[Aval, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    def value_avals(self) -> dict[int, Any]:
        """Return the aval of every value; several arrays in one value have a `Bundle`."""
        table: dict[int, Aval | Bundle] = dict(zip(self.inputs, self.avals, strict=True))
        for node in self.nodes:
            table[node.out] = node.instr.aval
        return table

    @functools.cached_property
    def out_avals(self) -> tuple[Aval, ...]:
        table = self.value_avals()
        return tuple(table[value] for value in self.outputs)

    def structure(self, strides: Sequence[tuple[int, ...]]) -> Hashable:
        """Return what programs that differ in sizes and numbers only share, as a key in this process.

        Args:
            strides: of the inputs.
        """
        inputs = [(a.kind or a, layout(a.shape, own)) for a, own in zip(self.avals, strides, strict=True)]
        nodes = [
            (node.instr.structure, node.out, *[x if x.__class__ is int else None for x in node.ins])
            for node in self.nodes
        ]
        return tuple(inputs), self.inputs, tuple(nodes), self.outputs

    @property
    def fresh(self) -> int:
        """A number such that it and all greater ones are no values."""
        return 1 + max([*self.inputs, *(node.out for node in self.nodes)], default=-1)

    def uses(self) -> Counter[int]:
        """Return how often each value is an operand or an output."""
        return Counter([*self.outputs, *(value for node in self.nodes for value in node.values())])

    @property
    def has_lines(self) -> bool:
        """Whether the user's line of any operation is known."""
        return any(node.location for node in self.nodes)

    def __str__(self) -> str:
        return print_graph(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # IPython calls this, and hypothesis for a failing example
        printer.text(print_graph(self))


@attrs.frozen(eq=False)
class RecordedGraph:
    """A recorded program, with the recorder's slots of its inputs and scalars.

    Attributes:
        graph: the program; its inputs are tensors.
        strides: the strides of each input.
        slots: the slot of each input.
        scalar_slots: the slot of each scalar, in order of appearance.
    """

    graph: Graph
    strides: list[tuple[int, ...]]
    slots: list[int]
    scalar_slots: list[int]


@attrs.frozen
class Region:
    """A named part of a program.

    Attributes:
        name: the name of its signal.
        mode: the mode in which it is compiled on its own; None: it is compiled with the surrounding code.
        backward: the region of its gradients.
    """

    name: str
    mode: str | None = None
    backward: Region | None = None


Marks = tuple[tuple[int, "Region | None"], ...]
"""Where regions begin: (first value, region), in order. Values before the first mark are in no region."""


MAX_MEMO = 64
"""The number of results to cache for one program, such as batched forms for several sizes."""

_MISSING = object()


class Subgraph:
    """A graph as an attribute of an operation: the body of a loop, a branch. Interned: equal programs are one object.

    Attributes:
        graph: its inputs are 0, 1, ... in order; make one with `gtrace.core.ir.subgraph`.
        text: the printed graph.
        weight: its approximate bytes, without cached results.
    """

    __slots__ = ("graph", "text", "weight", "_plain", "_memo", "__weakref__")

    deferred = False

    def __init__(self, graph: Graph, text: str, plain: Subgraph | None = None) -> None:
        self.graph = graph
        self.text = text
        self._plain = plain
        self.weight = SMALL + (PER_OPERATION + 2 * len(text) // max(len(graph.nodes), 1)) * len(graph.nodes)
        self._memo: BoundedTable[Any, Any] = BoundedTable(MAX_MEMO, self.weight)

    @property
    def plain(self) -> Subgraph:
        """This sub-graph without the user's derivative rules; itself if it has none. Only a plain one is interned."""
        return self if self._plain is None else self._plain

    def memo(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the result of `make`, cached by `key`: a derivative, a batched form, a program."""
        found = self._memo.get(key, _MISSING)
        if found is _MISSING:
            found = make()
            self._memo.remember(key, found)
        return found

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        """The types of the results."""
        return self.graph.out_avals

    @property
    def skeleton(self) -> tuple[Skeleton, tuple[int, ...]]:
        """The skeleton of the graph; see the function `skeleton`."""
        return self.memo("skeleton", lambda: skeleton(self.graph))

    def __repr__(self) -> str:
        return self.text


class DeferredSubgraph(Subgraph):
    """A sub-graph that is captured once somebody reads it. Its types, and all who run it by a kernel, do without.

    Args:
        out_avals: the types of the results.
        make: captures it.
        retyped: gives that of the same function for inputs of other types; None: it is not known.
        operations: how many operations it has, about.
    """

    __slots__ = ("_out_avals", "_make", "_made", "retyped", "operations")

    deferred = True

    def __init__(
        self,
        out_avals: tuple[Aval, ...],
        make: Callable[[], Subgraph],
        retyped: Callable[[tuple[Aval, ...]], Subgraph] | None = None,
        operations: int = 1,
    ) -> None:
        self.operations = operations
        self._out_avals = out_avals
        self._make = make
        self._made: Subgraph | None = None
        self.retyped = retyped

    def _subgraph(self) -> Subgraph:
        if self._made is None:
            made = self._make()
            assert made.graph.out_avals == self._out_avals, f"declared {self._out_avals}, got {made.graph.out_avals}"
            self._made = made
        return self._made

    @property
    def graph(self) -> Graph:  # type: ignore[override]
        return self._subgraph().graph

    @property
    def text(self) -> str:  # type: ignore[override]
        return self._subgraph().text

    @property
    def weight(self) -> int:  # type: ignore[override]
        return DEFERRED

    @property
    def plain(self) -> Subgraph:
        return self

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        return self._out_avals

    def memo(self, key: Any, make: Callable[[], Any]) -> Any:
        return self._subgraph().memo(key, make)

    def __repr__(self) -> str:
        return self.text


DEFERRED = 10_000
"""Bytes of a sub-graph that may be captured later, about."""

Skeleton = tuple[Any, ...]
"""A graph without its sizes and the values of its scalars."""


def skeleton(graph: Graph) -> tuple[Skeleton, tuple[int, ...]]:
    """Split `graph` into its structure and its sizes. The sizes of inputs come first, then those of attributes.

    The structure has no sizes and no scalar values. Graphs with equal structures have their sizes in the same order.
    """
    sizes = [n for a in graph.avals for n in a.shape]
    nodes = []
    for node in graph.nodes:
        if node.instr.params:
            mask(node.instr.params, sizes)
        nodes.append((node.instr.form, tuple([x if x.__class__ is int else None for x in node.ins]), node.out))
    return (tuple(map(kind, graph.avals)), graph.inputs, tuple(nodes), graph.outputs), tuple(sizes)


def print_graph(graph: Graph, *, locations: bool = False, indent: str = "") -> str:
    """Return the text of `graph`; `locations` adds the user's line of each node as a comment.

    >>> from gtrace import ir
    >>> print(ir.print_graph(gt.make_graph(lambda x: x.sum(axis=1))(gt.ones((2, 3)))))
    graph(%0: f32[2,3]) {
      %1: f32[2] = sum(%0) {axes=(1,), keepdims=False}
      return %1
    }
    """
    head = ", ".join(f"%{value}: {a!r}" for value, a in zip(graph.inputs, graph.avals, strict=True))
    lines = [f"graph({head}) {{"]
    for node in graph.nodes:
        lines += _print_node(node, locations, indent)
    lines.append(f"{indent}  return" + "".join(f"{',' * (k > 0)} %{value}" for k, value in enumerate(graph.outputs)))
    lines.append(indent + "}")
    return "\n".join(lines)


def print_node(node: Node) -> str:
    """Return the text of one operation, without its sub-graphs."""
    return _print_node(node, False, "")[0].strip().removesuffix(" where")


def _print_node(node: Node, locations: bool, indent: str) -> list[str]:
    operands = ", ".join(f"%{x}" if isinstance(x, int) else repr(x) for x in node.ins)
    text = f"{indent}  %{node.out}: {node.instr.aval!r} = {node.op.name}({operands})"
    plain = {k: v for k, v in node.attributes.items() if not is_subgraphs(v)}
    if plain:
        inner = ", ".join(f"{k}={_print_param(v)}" for k, v in plain.items())
        text += f" {{{inner}}}"
    nested = [(k, v) for k, v in node.attributes.items() if is_subgraphs(v)]
    if nested:
        text += " where"
    if locations and node.location:
        text += f"  # {node.location}"
    lines = [text]
    for name, graphs in nested:
        for sub in graphs if isinstance(graphs, tuple) else (graphs,):
            body = print_graph(sub.graph, locations=locations, indent=indent + "    ")
            lines.append(f"{indent}    {name}{'[]' * isinstance(graphs, tuple)} = {body}")
    return lines


def is_subgraphs(value: Any) -> bool:
    """Whether an attribute is a sub-graph or a non-empty tuple of them."""
    return isinstance(value, Subgraph) or (isinstance(value, tuple) and bool(value) and isinstance(value[0], Subgraph))


def has_rules(params: Params) -> bool:
    """Whether a sub-graph among the attributes has user-defined derivative rules."""
    return any(sub.plain is not sub for sub in subgraphs(params))


def subgraphs(params: Params) -> tuple[Subgraph, ...]:
    """Return the sub-graphs among attributes, in order."""
    found: list[Subgraph] = []
    for value in params:
        if is_subgraphs(value):
            found += value if isinstance(value, tuple) else (value,)
    return tuple(found)


def _print_param(value: Any) -> str:
    # repr of an infinite float cannot be parsed, but an overflowing literal can
    return re.sub(r"\binf\b", "1e999", repr(value)) if not isinstance(value, str) else repr(value)
