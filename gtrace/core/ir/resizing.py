"""Graphs with other integers: the sizes of inputs, those in attributes, and what follows from them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from gtrace.core.ir.aval import Aval, aval, contiguous_strides, layout
from gtrace.core.ir.graph import Graph, Node, Scalar
from gtrace.core.ir.skeleton import mask


class NotOpenError(Exception):
    """A graph has no counterpart at other sizes, or it is another program there."""


def integers_of(graph: Graph) -> list[int]:
    """Return the integers of a graph: the sizes of its inputs, then those of attributes."""
    found = [n for a in graph.avals for n in a.shape]
    for node in graph.nodes:
        mask(given_attributes(node.instr.params), found)
    return found


def given_attributes(params: Any) -> tuple[Any, ...]:
    """Return attributes without sub-graphs that follow from the others and the types."""
    return tuple([value for value in params if not getattr(value, "deferred", False)])


def rebuilt(graph: Graph, integers: Sequence[int], numbers: Sequence[Any]) -> Graph:
    """Return a graph with other integers and numbers; its types follow from them.

    Raises:
        NotOpenError: an operation has sub-graphs with other integers, or would be of another kind.
    """
    left, values = iter(integers), iter(numbers)
    avals = tuple([_resized(a, left) for a in graph.avals])
    kinds: dict[int, Any] = dict(zip(graph.inputs, avals, strict=True))
    nodes = []
    for node in graph.nodes:
        own = node.instr.plain or node.instr
        ins = tuple([attrs.evolve(x, value=next(values)) if x.__class__ is Scalar else x for x in node.ins])
        operands = tuple([x.aval if isinstance(x, Scalar) else kinds[x] for x in ins])
        params = tuple([_refilled(value, left, operands) for value in own.params])
        instr = own.op.instr(params, operands)
        if instr.structure is not own.structure:
            raise NotOpenError(f"{own} would be {instr}")
        kinds[node.out] = instr.aval
        nodes.append(Node(instr, ins, node.out))
    return Graph(graph.inputs, avals, tuple(nodes), graph.outputs)


def _resized(a: Aval, integers: Iterator[int]) -> Aval:
    return aval(tuple([next(integers) for _ in a.shape]), a.dtype, a.device, a.weak)


def _refilled(value: Any, integers: Iterator[int], operands: tuple[Aval, ...]) -> Any:
    kind = value.__class__
    if kind is int:
        return next(integers)
    if kind is tuple:
        return tuple([_refilled(x, integers, operands) for x in value])
    if getattr(value, "deferred", False):
        if value.retyped is None:
            raise NotOpenError(f"nobody knows {value} for other sizes")
        return value.retyped(operands)
    if hasattr(value, "skeleton"):
        own = value.skeleton[1]
        if tuple(itertools.islice(integers, len(own))) != tuple(own):
            raise NotOpenError("a sub-graph has sizes that vary")
    return value


def strides_like(shape: tuple[int, ...], like: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a shape whose axes lie in the order of another one.

    >>> strides_like((4, 7), (2, 3), (1, 2))
    (1, 4)
    """
    axes = layout(like, strides)
    if axes is None:
        raise NotOpenError("an input is not dense")
    dense = contiguous_strides(tuple([shape[k] for k in axes]))
    return tuple([dense[axes.index(k)] for k in range(len(shape))])
