"""The strides in which a program returns its results: those of its arguments, so that the next call runs it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.ir.aval import contiguous_strides, layout
from gtrace.core.ir.graph import Graph

Strides = tuple[int, ...]


def carried_strides(graph: Graph, strides: Sequence[Strides]) -> tuple[tuple[int, int], ...]:
    """Return which results have the strides of which input: (place of the result, place of the input).

    Those are results computed element by element from an input of their type, as new parameters are from parameters and
    moments from moments: from the nearest such input. torch would choose by all operands: moments that begin row by row
    take on the order of gradients that are views, and the next step would be another program. What no such input goes
    into may go into such a result, as moments that begin with zeros go into new parameters: it has the same strides.

    Args:
        graph: a program.
        strides: of each input.

    >>> graph = gt.make_graph(lambda m, g: (0.9 * m + g.T, g.T, m.sum()))(gt.ones((2, 3)), gt.ones((3, 2)))
    >>> carried_strides(graph, [(3, 1), (2, 1)])
    ((0, 0),)
    """
    kinds = graph.value_avals()
    if all(len(kinds[value].shape) < 2 for value in graph.outputs):  # there is one order of one axis
        return ()
    nearest: dict[int, tuple[int, int]] = {}  # by value: how far the input is, and its place
    for place, (value, kind, stride) in enumerate(zip(graph.inputs, graph.avals, strides, strict=True)):
        if len(kind.shape) > 1 and layout(kind.shape, stride) is not None:
            nearest[value] = (0, place)
    if not nearest:
        return ()
    inputs = set(nearest)
    for node in graph.nodes:
        if node.op.elementwise:
            kind = node.instr.aval
            found = [
                (nearest[value][0] + 1, nearest[value][1])
                for value in node.values()
                if value in nearest and (kinds[value].shape, kinds[value].dtype) == (kind.shape, kind.dtype)
            ]
            if found:
                nearest[node.out] = min(found, key=lambda way: way[0])
    forward = set(nearest)
    made = {node.out for node in graph.nodes if node.op.elementwise}
    for node in reversed(graph.nodes):
        if node.op.elementwise and node.out in nearest:
            distance, place = nearest[node.out]
            for value in made.intersection(node.values()) - forward:
                alike = (kinds[value].shape, kinds[value].dtype) == (graph.avals[place].shape, graph.avals[place].dtype)
                if alike and (value not in nearest or distance + 1 < nearest[value][0]):
                    nearest[value] = (distance + 1, place)
    return tuple(
        (place, nearest[value][1])
        for place, value in enumerate(graph.outputs)
        if value in nearest and value not in inputs
    )


def in_rows(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor row by row, with the strides that follow from its shape: itself, a view or a copy.

    Axes of size 1 may have any stride in torch. Its convolutions choose the order of their results by them, where
    compiled code for open sizes does not foresee it.
    """
    x = x.contiguous()
    if 1 not in x.shape:
        return x
    strides = contiguous_strides(tuple(x.shape))
    return x if x.stride() == strides else x.as_strided(x.shape, strides)


def in_one_form(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or a view of it, whose strides follow from the order of its axes: those of size 1 are outermost.

    Kernels give such axes one stride or another, and inputs with other strides would be another program's.
    """
    if x.is_contiguous():
        return in_rows(x)
    strides = tuple([x.numel() if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True)])
    return x if x.stride() == strides else x.as_strided(x.shape, strides)


def in_order(x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Return a tensor with its axes, from the outermost to the innermost, in this order: itself, or a copy."""
    if list(order) == list(range(len(order))):
        return in_rows(x)
    inverse = sorted(range(len(order)), key=lambda k: order[k])
    return x.permute(*order).contiguous().permute(inverse)


def with_strides(run: TensorFunction, graph: Graph, strides: Sequence[Strides]) -> TensorFunction:
    """Return what runs a program, with its results in the strides that `carried_strides` says.

    Args:
        run: runs `graph` for inputs of these strides.
    """
    order = ordering(graph, strides)
    return run if order is None else lambda tensors: order(run(tensors))


def ordering(graph: Graph, strides: Sequence[Strides]) -> Callable[[list[torch.Tensor]], list[torch.Tensor]] | None:
    """Return what gives the results of a program the strides that `carried_strides` says; None if it says nothing.

    Args:
        strides: of each input.
    """
    wanted = []
    for place, source in carried_strides(graph, strides):
        axes = layout(graph.avals[source].shape, strides[source])
        assert axes is not None
        wanted.append((place, tuple(strides[source]), axes))

    def ordered(results: list[torch.Tensor]) -> list[torch.Tensor]:
        for place, stride, axes in wanted:
            if results[place].stride() != stride:
                results[place] = in_order(results[place], axes)
        return results

    return ordered if wanted else None
