"""Kernels of named calls that save their derivatives work; see `gtrace.core.transform.named`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from gtrace.core.ir.graph import Graph

GRADIENT = "_gradient"
"""What follows the name of a function in that of its derivative."""


@runtime_checkable
class Keeping(Protocol):
    """A kernel that can keep what its derivative needs, so that this does not compute it again."""

    def keeping(self, held: list[Any]) -> Callable[..., Any]:
        """Return the kernel that fills an empty list at each call."""


@runtime_checkable
class Taking(Protocol):
    """A kernel of a derivative that takes what the kernel of the call has kept."""

    def taking(self, held: list[Any]) -> Callable[..., Any]:
        """Return the kernel that empties the list at each call."""


def calls_with_derivatives(graph: Graph) -> Iterator[tuple[int, int]]:
    """Iterate over the named calls whose derivative is called for the same operands: the values of both calls."""
    calls: dict[Any, int] = {}
    for node in graph.nodes:
        if node.op.lowered:
            name, settings, _ = node.params
            call = calls.pop((name.removesuffix(GRADIENT), settings[:-1], node.ins[:-1]), None)
            if call is not None:
                yield call, node.out
            calls[name, settings, node.ins] = node.out
