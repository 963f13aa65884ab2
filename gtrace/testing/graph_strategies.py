"""Strategies for graphs and for Python functions that record them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from string import ascii_lowercase
from typing import Any

import attrs
import torch

from gtrace.core.base import tree
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar, Subgraph, print_graph
from gtrace.core.ir.op import REGISTRY, Op
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import replay
from gtrace.core.trace.convert import lift
from gtrace.testing.nodes import Unfinished, elementwise, takes
from gtrace.testing.recipes import RECIPES, Accepts, Recipe
from gtrace.testing.require import st
from gtrace.testing.samples import as_in_a_sample, fits_a_sample
from gtrace.testing.strategies import arguments

SMOOTH = (
    "neg", "sin", "cos", "tanh", "sigmoid", "square", "softplus", "gelu", "erf", "atan", "asinh",
    "add", "sub", "mul", "fma",
    "sum", "mean", "logsumexp", "softmax", "log_softmax", "cumsum", "matmul",
    "flip", "permute", "reshape", "broadcast_to", "concat", "slice", "pad", "roll", "tril",
)  # fmt: skip
"""Operations whose derivatives exist everywhere and stay moderate."""

CONTROL = ("scan", "switch", "while_loop")
"""Operations with sub-graphs."""

SMOOTH_CONTROL = ("scan", "switch")
"""Those of them that have a gradient."""

_SHAPES = [(), (2,), (3,), (2, 3), (3, 3), (2, 2), (3, 1), (1, 3), (2, 1, 3)]
"""Of inputs: few, so that they often broadcast or can be multiplied."""

_DEPTH = 2
"""Sub-graphs within one another."""

_BODY_NODES = 3
_MAX_LENGTH = 3

Dtypes = Sequence[torch.dtype]


@st.composite
def graphs(
    draw: st.DrawFn,
    max_nodes: int = 8,
    *,
    max_inputs: int = 3,
    ops: Iterable[str] | None = None,
    dtypes: Dtypes | None = None,
    smooth: bool = False,
    continuous: bool = False,
    control: bool = False,
) -> Graph:
    """Draw a valid graph; shrinks to few nodes on small operands. Its values are numbered in order, inputs first.

    Args:
        max_nodes: how many nodes are drawn at most. One may need others: an index to gather with, the results of a
            loop taken out.
        ops: names of the operations to draw; default: all of them.
        dtypes: of the inputs and of casts; default: float32, float64 and int64.
        smooth: draw float64 programs whose derivatives exist everywhere and stay moderate.
        continuous: leave out operations whose results jump where their floating operands hardly change, so that
            results of different roundings can be compared.
        control: draw loops and branches too; for a smooth program, only differentiable ones.

    >>> from hypothesis import given
    >>> from gtrace.core.ir.verify import verify
    >>> @given(graphs(max_nodes=4, control=True))
    ... def test(graph):
    ...     verify(graph)
    >>> test()
    """
    if dtypes is None:
        dtypes = (torch.float64,) if smooth else (torch.float32, torch.float64, torch.int64)
    names = tuple(ops) if ops is not None else SMOOTH if smooth else drawable()
    for name in names:
        if name not in REGISTRY:
            raise ValueError(f"[graphs] expected names of operations in ops, got {name!r}.")
    loops = () if not control else SMOOTH_CONTROL if smooth else CONTROL
    inputs = [draw(_inputs(dtypes)) for _ in range(draw(st.integers(1, max_inputs)))]
    unfinished = Unfinished(dict(enumerate(inputs)), names, tuple(dtypes), continuous or smooth, loops)
    _draw_nodes(draw, unfinished, 1, max_nodes)
    drawn = list(unfinished.avals)[len(inputs) :]
    # an index is no result of a program that is there to be differentiated
    results = [value for value in drawn if unfinished.avals[value].floating or not smooth] or list(range(len(inputs)))
    if draw(st.booleans()):
        used = {value for node in unfinished.nodes for value in node.values()}
        outputs = [value for value in results if value not in used] or results[-1:]
    else:
        outputs = draw(st.lists(st.sampled_from(results[::-1]), min_size=1, max_size=3, unique=True))
    return Graph(tuple(range(len(inputs))), tuple(inputs), tuple(unfinished.nodes), tuple(outputs))


@st.composite
def _inputs(draw: st.DrawFn, dtypes: Dtypes) -> Aval:
    return aval(draw(st.sampled_from(_SHAPES)), draw(st.sampled_from(list(dtypes))))


def _draw_nodes(draw: st.DrawFn, graph: Unfinished, least: int, most: int) -> None:
    for k in range(most + 1):
        if not draw(_another(graph, k < least, k == most)):
            break


@st.composite
def _another(draw: st.DrawFn, graph: Unfinished, needed: bool, full: bool) -> bool:
    """Draw whether there is one more node, and the node.

    Even a forced choice is drawn, so that any node can be left out when a graph shrinks.
    """
    more = draw(st.integers(0, 31)) > 0
    if full or not (more or needed):
        return False
    draw(_node(graph))
    return True


@st.composite
def _node(draw: st.DrawFn, graph: Unfinished) -> None:
    if graph.control and graph.depth < _DEPTH and draw(st.integers(0, 4)) == 4:
        _LOOPS[draw(st.sampled_from(graph.control))](draw, graph)
    else:
        grow(draw, graph)


# -- one node


_GROUPS = ("arithmetic",) * 2 + ("unary",) * 2 + ("several operands",) * 3 + ("attributes",) * 5 + ("as in samples",)
"""How often operations are drawn by their kind: the many functions of one element are not to crowd out the others."""

_ARITHMETIC = ("add", "sub", "mul", "div")


def grow(draw: st.DrawFn, graph: Unfinished) -> None:
    """Draw one more node (and what it needs) for a graph, if any of its operations takes one of its values."""
    x = draw(st.sampled_from(graph.values()))
    groups: dict[str, list[str]] = {}
    for name in graph.ops:
        op = REGISTRY[name]
        jumps = graph.continuous and graph.avals[x].floating and op.rules.nondiff is not None
        if not jumps and recipe_for(name)[0](graph, graph.avals[x]):
            groups.setdefault(_group(op), []).append(name)
    if groups:
        group = draw(st.sampled_from([group for group in _GROUPS if group in groups]))
        recipe_for(draw(st.sampled_from(groups[group])))[1](draw, graph, x)


def _group(op: Op) -> str:
    if op.name in _ARITHMETIC:
        return "arithmetic"
    if op.elementwise and not op.params:
        return "unary" if op.arity == 1 else "several operands"
    return "attributes" if op.name in RECIPES else "as in samples"


def recipe_for(name: str) -> tuple[Accepts, Recipe]:
    """Return how an operation is drawn."""
    op = REGISTRY[name]
    if name in RECIPES:
        return RECIPES[name]
    if op.elementwise and not op.params and op.arity:
        return functools.partial(takes, op), functools.partial(elementwise, op)
    return functools.partial(fits_a_sample, op), functools.partial(as_in_a_sample, op)


def drawable() -> tuple[str, ...]:
    """Return the names of the operations that can be drawn: not those with sub-graphs, complex numbers or a mesh."""
    return tuple(
        op.name
        for op in REGISTRY.values()
        if op.rules.result is None and op.cases.samples is not None and not op.complex and not op.placement
    )


# -- loops and branches


def _values(draw: st.DrawFn, graph: Unfinished, least: int, most: int) -> list[int]:
    return draw(st.lists(st.sampled_from(graph.values()), min_size=least, max_size=most))


def _body(
    draw: st.DrawFn, graph: Unfinished, avals: Sequence[Aval], results: Sequence[Aval], free: int = 0
) -> Subgraph:
    """Draw a sub-graph for inputs of `avals`, with outputs of the avals `results`, and `free` ones of any aval.

    Each of `results` must be among `avals`.
    """
    inner = Unfinished(
        dict(enumerate(avals)), graph.ops, graph.dtypes, graph.continuous, graph.control, graph.depth + 1
    )
    _draw_nodes(draw, inner, 0, _BODY_NODES)
    outputs = [draw(st.sampled_from(inner.where(lambda b, a=a: b is a))) for a in results]  # type: ignore[misc]
    outputs += [draw(st.sampled_from(inner.values())) for _ in range(free)]
    return subgraph(Graph(tuple(range(len(avals))), tuple(avals), tuple(inner.nodes), tuple(outputs)))


def _scan(draw: st.DrawFn, graph: Unfinished) -> None:
    columns = graph.where(_is_column)
    xs: list[int] = draw(st.lists(st.sampled_from(columns), max_size=1)) if columns else []
    length = graph.avals[xs[0]].shape[0] if xs else draw(st.integers(1, _MAX_LENGTH))
    carry = _values(draw, graph, 0 if xs else 1, 2)
    consts = _values(draw, graph, 0, 1)
    slices = [aval(graph.avals[x].shape[1:], graph.avals[x].dtype) for x in xs]
    fixed = [graph.avals[x] for x in (*consts, *carry)]
    free = draw(st.integers(0 if carry else 1, 1))
    body = _body(draw, graph, [*fixed, *slices], fixed[len(consts) :], free)
    graph.add_all("scan", [*consts, *carry, *xs], (body, length, draw(st.booleans()), len(consts), len(carry)))


def _is_column(a: Aval) -> bool:
    return bool(a.shape) and 1 <= a.shape[0] <= _MAX_LENGTH


def _integer(draw: st.DrawFn, graph: Unfinished, least: int, most: int) -> int:
    """Draw an int64 scalar as a value."""
    number = Scalar(draw(st.integers(least, most)), aval((), torch.int64, weak=True))
    return graph.add("full", [number], ((), "cpu"))


def _switch(draw: st.DrawFn, graph: Unfinished) -> None:
    known = graph.where(lambda a: a is aval((), torch.int64))
    chosen = bool(known) and draw(st.booleans())
    index: int = draw(st.sampled_from(known)) if chosen else _integer(draw, graph, 0, 2)
    operands = _values(draw, graph, 1, 2)
    avals = [graph.avals[x] for x in operands]
    results = draw(st.lists(st.sampled_from(avals), min_size=1, max_size=2))
    branches = tuple(_body(draw, graph, avals, results) for _ in range(draw(st.integers(1, 3))))
    graph.add_all("switch", [index, *operands], (branches,))


def _while_loop(draw: st.DrawFn, graph: Unfinished) -> None:
    """Draw a loop whose state begins with a counter, so that it ends."""
    state = _values(draw, graph, 0, 2)
    consts = _values(draw, graph, 0, 1)
    start = _integer(draw, graph, 0, 2)
    avals = [graph.avals[x] for x in (start, *state)]
    fixed = [graph.avals[x] for x in consts]
    weak = aval((), torch.int64, weak=True)
    below: tuple[Operand, ...] = (0, Scalar(draw(st.integers(0, _MAX_LENGTH)), weak))
    test = REGISTRY["lt"].instr((), (avals[0], weak))
    cond = subgraph(Graph(tuple(range(len(avals))), tuple(avals), (Node(test, below, len(avals)),), (len(avals),)))
    moved = _body(draw, graph, [*fixed, *avals], avals[1:]).graph
    count = Node(REGISTRY["add"].instr((), (avals[0], weak)), (len(consts), Scalar(1, weak)), 1 + _last(moved))
    body = Graph(moved.inputs, moved.avals, (*moved.nodes, count), (count.out, *moved.outputs))
    graph.add_all("while_loop", [*consts, start, *state], (cond, subgraph(body), 0, len(consts)))


def _last(graph: Graph) -> int:
    return max([*graph.inputs, *[node.out for node in graph.nodes]])


_LOOPS: dict[str, Callable[[st.DrawFn, Unfinished], None]] = {
    "scan": _scan,
    "switch": _switch,
    "while_loop": _while_loop,
}


# -- graphs as functions


def as_function(graph: Graph) -> Callable[..., tuple[Array, ...]]:
    """Return the function that records `graph` on its arguments and returns a tuple.

    >>> graph = gt.make_graph(lambda x: x + 1)(gt.ones(2))
    >>> as_function(graph)(gt.array([1., 2.]))
    (Array([2., 3.], dtype=float32),)
    """
    return lambda *inputs: tuple(replay(graph, inputs))


@attrs.frozen(eq=False, repr=False)
class Program:
    """A Python function over pytrees whose body is a graph.

    Attributes:
        graph: what it records.
        in_tree: the structure of the tuple of its arguments.
        out_tree: the structure of what it returns.
    """

    graph: Graph
    in_tree: tree.TreeDef
    out_tree: tree.TreeDef

    def __call__(self, *args: Any) -> Any:
        leaves, structure = tree.flatten(args)
        if structure != self.in_tree:
            raise TypeError(f"[program] expected arguments of structure {self.in_tree}, got {structure}.")
        return self.out_tree.unflatten(replay(self.graph, [lift("program", x) for x in leaves]))

    def __repr__(self) -> str:
        return f"<program of {print_graph(self.graph)}>"


@st.composite
def programs(draw: st.DrawFn, max_nodes: int = 8, **options: Any) -> tuple[Program, tuple[Any, ...]]:
    """Draw a Python function over pytrees, and arguments for it.

    Args:
        max_nodes, options: those of `graphs`.

    >>> from hypothesis import given
    >>> @given(programs(max_nodes=4, smooth=True))
    ... def test(program):
    ...     f, args = program
    ...     assert gt.tree.structure(gt.eval_shape(f, *args)) == gt.tree.structure(f(*args))
    >>> test()
    """
    graph = draw(graphs(max_nodes, **options))
    args = tuple(_nested(draw, draw(arguments(graph))))
    result = _nested(draw, range(len(graph.outputs)))
    return Program(graph, tree.structure(args), tree.structure(result)), args


def _nested(draw: st.DrawFn, leaves: Sequence[Any]) -> list[Any]:
    """Draw a list of pytrees that have the given leaves in their order."""
    nested: list[Any] = []
    rest = list(leaves)
    while rest:
        taken = draw(st.integers(1, min(len(rest), len(ascii_lowercase))))
        form = draw(st.sampled_from(["plain", "tuple", "dict"]))
        items, rest = rest[:taken], rest[taken:]
        if form == "plain":
            nested += items
        else:
            nested.append(tuple(items) if form == "tuple" else dict(zip(ascii_lowercase, items, strict=False)))
    return nested
