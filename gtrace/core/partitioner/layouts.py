"""How values of a program are laid out while it is partitioned, and where layouts should go."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from gtrace.core.ir.graph import Graph
from gtrace.core.ir.sharding import Axes, Dims, parse_dims


@attrs.frozen
class ShardingLayout:
    """The layout of a value.

    Attributes:
        dims: the mesh axes that each dimension is split over.
        partial: the mesh axes along which the value is the sum of what the processes hold.
    """

    dims: Dims
    partial: Axes = ()

    @property
    def whole(self) -> bool:
        """Whether each process holds the whole value."""
        return not self.partial and not any(self.dims)


def replicated(ndim: int) -> ShardingLayout:
    """Return the layout of a value that each process holds.

    >>> replicated(2).whole
    True
    """
    return ShardingLayout(((),) * ndim)


def wanted_dims(graph: Graph, inputs: Mapping[int, Dims], outputs: Mapping[int, Dims]) -> dict[int, Dims]:
    """Return the layout in which each value is needed next, for values where that is plain.

    A gradient, for example, is needed in the layout of the parameter that it updates. Each process then receives only
    its own part of a pending sum over processes.

    Args:
        inputs: the layouts of the inputs.
        outputs: the layouts that outputs should have.
    """
    shapes = {v: a.shape for v, a in graph.value_avals().items() if hasattr(a, "shape")}
    expected = dict(inputs)
    for node in graph.nodes:
        if node.op.elementwise:
            alike = [v for v in node.values() if shapes.get(v) == shapes[node.out] and v in expected]
            if alike:
                expected[node.out] = expected[alike[0]]
        elif node.op.placement and node.attributes["spec"] is not None:
            expected[node.out] = parse_dims(node.attributes["spec"])
    wanted = dict(outputs)
    for node in reversed(graph.nodes):
        if node.op.placement and node.attributes["spec"] is not None:
            wanted.setdefault(node.ins[0], parse_dims(node.attributes["spec"]))  # type: ignore[arg-type]
        if not node.op.elementwise:
            continue
        for value in node.values():
            if shapes[value] != shapes[node.out] or value in wanted:
                continue
            beside = [v for v in node.values() if v != value and v in expected and shapes[v] == shapes[value]]
            found = expected[beside[0]] if beside else wanted.get(node.out)
            if found is not None:
                wanted[value] = found
    return wanted
