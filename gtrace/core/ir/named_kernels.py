"""Kernels of named calls that save their derivatives work; see `gtrace.core.transform.named`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from gtrace.core.ir.graph import Graph

GRADIENT = "_gradient"
"""What follows the name of a function in that of its derivative."""


@runtime_checkable
class Paired(Protocol):
    """A kernel of a derivative that can take from the call itself what that has computed."""

    def pair(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return kernels of the call, which keeps something, and of its derivative, which takes that, for one run."""


def calls_with_derivatives(graph: Graph) -> Iterator[tuple[int, int]]:
    """Iterate over the named calls whose derivative is called for the same operands: the values of both calls."""
    calls: dict[Any, int] = {}
    for node in graph.nodes:
        if node.op.lowered:
            name, settings = node.attributes["name"], node.attributes["settings"]
            call = calls.pop((name.removesuffix(GRADIENT), settings[:-1], node.ins[:-1]), None)
            if call is not None:
                yield call, node.out
            calls[name, settings, node.ins] = node.out
