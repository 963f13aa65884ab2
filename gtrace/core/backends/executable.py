"""Executables: the contract of whatever the engine calls to run a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs
import torch

from gtrace.core.backends.interpreter.interpreter import TensorFunction, interpreter
from gtrace.core.backends.interpreter.result_strides import with_strides
from gtrace.core.ir.aval import place_of
from gtrace.core.ir.graph import Graph

INTERPRETED = "interpreter"
"""The origin, and the identity, of what interprets a program."""


class Calls(Protocol):
    """Calls that an executable makes one after the other; see `gtrace.core.backends.schedule.CallSequence`."""

    def timed(self, report: Callable[[str, str | None, float], None]) -> TensorFunction: ...


@attrs.frozen(eq=False)
class Executable:
    """Something that runs a program.

    Attributes:
        run: input tensors to output tensors, in the order of the graph's.
        origin: its source: "interpreter", "process" (compiled in this one), "worker" or "cache" (an earlier process).
        device: where it runs.
        memory: bytes that it keeps between calls.
        stream: the CUDA stream that it runs on; None: the current one.
        overwrites: whether a call may write over the outputs of the call before.
        calls: the calls that it makes; None: it is one call.
        identity: what an executable of the same code has in another process too; empty: nothing tells that.
    """

    run: TensorFunction
    origin: str
    device: torch.device
    memory: int = 0
    stream: Any = None
    overwrites: bool = False
    calls: Calls | None = None
    identity: str = ""

    @property
    def interprets(self) -> bool:
        """Whether it runs all of the program operation by operation."""
        return self.origin == INTERPRETED

    def owning(self) -> Executable:
        """Return an executable whose outputs no later call overwrites: this one, or one that copies its outputs."""
        if not self.overwrites:
            return self
        run = self.run

        def copied(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return [t.clone() for t in run(tensors)]

        return attrs.evolve(self, run=copied, overwrites=False)


def interpreted(graph: Graph, strides: Sequence[tuple[int, ...]]) -> Executable:
    """Return an executable that interprets a program for these strides.

    Its plan is made at the first call: a program of a new size may run by code for open sizes from the beginning.
    """
    made: TensorFunction | None = None

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal made
        if made is None:
            made = with_strides(interpreter(graph), graph, strides)
        return made(tensors)

    return Executable(run, INTERPRETED, place_of(graph.avals), identity=INTERPRETED)


@attrs.frozen(eq=False)
class Compiled:
    """The result of compiling a request.

    Attributes:
        executable: runs it.
        guards: conditions on the open sizes; the code is valid where all hold. See `gtrace.core.backends.guards`.
    """

    executable: Executable
    guards: tuple[Any, ...] = ()
