"""The inputs of a call that is compared, and the memory that comparing it may take."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs
import torch

from gtrace.core.backends.interpreter.reference import working_bytes
from gtrace.core.backends.runs import run
from gtrace.core.base.allocator import free_memory
from gtrace.core.base.spill import Kept, Spill
from gtrace.core.ir.aval import place_of
from gtrace.core.ir.graph import Graph

LEAST_MEMORY = 1 << 25
"""Bytes that a comparison may keep in memory, whatever the program takes."""

MEMORY_SHARE = 0.1
"""The fraction of what a program takes that comparing it may keep in memory beside; the rest lies in a file."""

LARGE = 1 << 28
"""Bytes that a program takes, from which on somebody looks how much memory is free."""

OPERATION = 4
"""An operation takes so many times the bytes of its operands and results: with copies in float64, and in between."""


@attrs.frozen(eq=False)
class Taken:
    """The inputs of a call that is compared.

    Attributes:
        given: the inputs; None for those that it may write over.
        copies: of all of them, made before the call.
        spill: keeps the copies, and what is computed to compare the call.
    """

    given: tuple[torch.Tensor | None, ...]
    copies: list[Kept]
    spill: Spill

    def overwritten(self) -> str:
        """Restore the inputs that the call should not have written over; returns the first, in words."""
        problem = ""
        for k, (x, kept) in enumerate(zip(self.given, self.copies, strict=True)):
            if x is None or torch.equal(x, copy := kept.get()):
                continue
            if not bool(((x == copy) | ((x != x) & (copy != copy))).all()):  # NaN are equal here
                # of places that share memory the first
                one = tuple(slice(1) if step == 0 else slice(None) for step in x.stride())
                x[one].copy_(copy[one])
                problem = problem or f"input {k} was written over"
        return problem

    def again(self) -> list[torch.Tensor]:
        """Return the inputs of another such call: those that it may write over as copies."""
        pairs = zip(self.given, self.copies, strict=True)
        return [kept.get().clone() if x is None else x for x, kept in pairs]

    def copied(self) -> list[torch.Tensor]:
        """Return the copies."""
        return [kept.get() for kept in self.copies]


def taken(graph: Graph, tensors: Sequence[torch.Tensor], donated: Collection[int]) -> Taken:
    """Return the inputs of a call that is about to be made.

    Args:
        graph: what the call computes.
        donated: the places of those that it may write over.
    """
    given = tuple(None if k in donated else x for k, x in enumerate(tensors))
    run.strayed = False
    needed = working_bytes(graph)[0]
    limit = max(LEAST_MEMORY, MEMORY_SHARE * needed)
    if needed > LARGE:
        limit = min(limit, max(free_memory(place_of(graph.avals)) / 2, 0))
    spill = Spill(limit, returns=place_of(graph.avals).type == "cpu")
    return Taken(given, [spill.keep(x.clone()) for x in tensors], spill)


def fits(graph: Graph) -> bool:
    """Whether there is memory for one operation of a program at a time, in float64."""
    whole, operation = working_bytes(graph)
    return whole <= LARGE or OPERATION * operation <= free_memory(place_of(graph.avals))
