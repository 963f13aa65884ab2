"""Programs of jitted functions: prepared and compiled, or run as they were captured where sizes are ever new."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.backends.tuned import MIN_OPS
from gtrace.core.ir.graph import Graph, RecordedGraph, Scalar
from gtrace.core.ir.op import Instr
from gtrace.core.passes.user_passes import registered
from gtrace.core.runtime.engine import Engine
from gtrace.core.runtime.first_calls import CALLS, Structure, is_plain
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.routes import Parts, Route, Strides, Target


def captured_route(
    engine: Engine, graph: Graph, strides: Strides, target: Target, donated: Collection[int], wait: float
) -> Route | Parts:
    """Return the route of a captured program, and have its programs compiled.

    A program that differs in its sizes only from others runs as it was captured at first; see `Structure.is_due`.

    Args:
        donated: see `Engine.cut`.
        wait: see `TierController.compile_all`. With infinity each size is prepared and compiled.
    """

    scalars = [x.value for node in graph.nodes for x in node.ins if x.__class__ is Scalar]
    captured = RecordedGraph(graph, list(strides), list(range(len(graph.inputs))), list(range(len(scalars))))

    def prepare(structure: Structure | None, wait: float) -> Route | Parts:
        with contextlib.nullcontext() if structure is None else structure.preparing():
            route = engine.cut(graph, strides, target, donated=donated)
        worth = route.programs
        if isinstance(route, Parts):
            # fusing a part of two operations gains nothing that the neighbouring parts could not
            worth = tuple(program for program in worth if program.ops >= MIN_OPS)
        engine.compile_all(worth, wait, graph)
        if structure is not None:
            structure.learn(captured, scalars, route.programs)
        return route

    if wait == math.inf or registered.passes:
        return prepare(None, wait)
    found = engine.sizes.structure(graph.structure(strides), captured)
    if found.may_open and is_plain():
        has_code = found.has_code
        made = found.open_up(engine, lambda engine: lambda graph, strides: engine.cut(graph, strides, target))
        if made is not None and not has_code:  # further code is left to the policy
            engine.compile_all(made.route.programs, 0.0, graph)
    if found.plan is None or not is_plain() or found.is_due(asked=True):
        return prepare(found, wait)
    instructions = {node.out: node.instr for node in graph.nodes}
    return _CapturedParts(_AsCaptured(engine, found, instructions, captured, scalars, lambda: prepare(found, 0.0)), ())


@attrs.frozen(eq=False)
class _CapturedParts(Parts):
    """The way to the operations of a captured program, and to its programs once it is prepared."""

    @property
    def programs(self) -> tuple[Program, ...]:
        """Those that run, if it is prepared."""
        route = self.calls.route  # type: ignore[attr-defined]
        return () if route is None else tuple(route.programs)

    @property
    def stale(self) -> bool:
        """Whether the engine has forgotten one of them."""
        route = self.calls.route  # type: ignore[attr-defined]
        return route is not None and bool(route.stale)


@attrs.define(eq=False)
class _AsCaptured:
    """Calls of a program that runs as it was captured, until that has happened often enough.

    Attributes:
        instructions: by value.
        scalars: its numbers, in order.
        prepare: prepares it.
        calls: how often it ran as captured.
        route: once it is prepared.
    """

    engine: Engine
    structure: Structure
    instructions: dict[int, Instr]
    program: RecordedGraph
    scalars: list[Any]
    prepare: Callable[[], Route | Parts]
    calls: int = 0
    route: Route | Parts | None = None

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the program."""
        if self.route is None and (self.calls >= CALLS or not is_plain()):
            self.route = self.prepare()
        if self.route is not None:
            return self.engine.call(self.route, tensors)
        self.calls += 1
        sizes = self.engine.sizes
        return sizes.run(self.structure, self.instructions, self.scalars, tensors, lambda: self.program)
