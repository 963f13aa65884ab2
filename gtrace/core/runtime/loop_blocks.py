"""Has the long loops of interpreted programs go on in blocks of steps, which are programs too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from gtrace.core.backends.executable import Executable
from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.long_loops import Blocks
from gtrace.core.base.bounded_tables import SMALL, BoundedTable
from gtrace.core.base.config import Config
from gtrace.core.base.mechanisms import LOOPS_IN_BLOCKS
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.signature import CompileKey
from gtrace.core.runtime.comparisons import Comparisons
from gtrace.core.runtime.forms import State
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.programs import MAX_PROGRAMS
from gtrace.core.runtime.routes import Parts, Route, Strides, Target
from gtrace.core.runtime.worker.sharing import threads, untimed


class LoopBlocks:
    """Makes the blocks.

    Args:
        cut: returns the route of a program for inputs of these strides.
        call: calls a route.
    """

    def __init__(
        self,
        cut: Callable[[Graph, Strides, Target, Any], Route | Parts],
        call: Callable[[Route | Parts, Sequence[torch.Tensor]], list[torch.Tensor]],
        comparisons: Comparisons,
    ) -> None:
        self._cut, self._call, self._comparisons = cut, call, comparisons
        self._routes: BoundedTable[Hashable, Route | Parts] = BoundedTable(
            MAX_PROGRAMS, SMALL, stale=lambda route: route.stale
        )

    def of(self, program: Program, executable: Executable, settings: Config) -> Blocks | None:
        """Return how the long loops of a call go on; None: step by step.

        They go on in blocks while the program is interpreted because it is new. If it has a verdict, or a trial needs
        the time of its steps, or only a number of calls decides, they do not.
        """
        if not (LOOPS_IN_BLOCKS.on and program.has_calls) or executable is not program.forms.interpreted:
            return None
        if program.forms.state not in (State.INTERPRETED, State.REQUESTED) or program.communicates:
            return None
        if settings.compile or not settings.auto_compile or settings.hot_threshold is not None:
            return None
        return Blocks(functools.partial(self._prepare, program.key), lambda: program.awaits_native_loops)

    def _prepare(self, key: CompileKey, graph: Graph, strides: Strides) -> TensorFunction:
        """Return what runs a block of a loop in the program of this key."""
        target = Target(key.backend, key.mode)
        name = graph, tuple(strides), target, key.threads
        route = self._routes.get(name)
        if route is None:
            with threads(key.threads):
                route = self._cut(graph, strides, target, ())
            self._routes.remember(name, route)
        call = functools.partial(self._comparisons.separately, functools.partial(self._call, route))

        def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            with threads(key.threads), untimed():
                return call(tensors)

        return run
