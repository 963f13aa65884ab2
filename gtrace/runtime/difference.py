"""Why a program had to compile again: the first size, scalar or stride in which it differs from a compiled one."""

from __future__ import annotations

from collections.abc import Sequence

from gtrace.ir.graph import Graph, Scalar

Strides = Sequence[tuple[int, ...]]


def difference(old: Graph, new: Graph, old_strides: Strides, new_strides: Strides) -> str:
    """Return in words how two canonical graphs of one structural signature differ.

    Returns:
        Such as "input 0 dim 0 was 64, now 128"; empty when they do not differ.
    """
    for k, (a, b) in enumerate(zip(old.avals, new.avals, strict=True)):
        for dim, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)):
            if m != n:
                return f"input {k} dim {dim} was {m}, now {n}"
    for k, (x, y) in enumerate(zip(_scalars(old), _scalars(new), strict=True)):
        if x != y:
            return f"scalar {k} was {x!r}, now {y!r}"
    for k, (s, t) in enumerate(zip(old_strides, new_strides, strict=True)):
        if s != t:
            return f"input {k} strides were {s}, now {t}"
    return ""


def _scalars(graph: Graph) -> list[Scalar]:
    return [x for node in graph.nodes for x in node.ins if isinstance(x, Scalar)]
