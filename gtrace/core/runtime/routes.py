"""The routes from programs as they were recorded to the programs that run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Protocol

import attrs
import torch

from gtrace.core.backends.schedule import CallSequence, Step
from gtrace.core.ir.aval import Aval, contiguous_strides, layout
from gtrace.core.ir.graph import Graph, Marks, RecordedGraph
from gtrace.core.passes.channels_last import predicted_strides
from gtrace.core.passes.user_passes import Passes
from gtrace.core.runtime.lifted_scalars import ScalarInputs, Scalars
from gtrace.core.runtime.program import Program

Strides = Sequence[tuple[int, ...]]
"""The strides of the inputs of a graph."""


@attrs.frozen
class Target:
    """What a program is compiled by, and for."""

    backend: str = "inductor"
    mode: str = "default"


DEFAULT = Target()


class RecordedTrace(Protocol):
    """What a thread has recorded; see `gtrace.core.trace.record.Trace`."""

    flat: list[Any]
    scalars: list[bool | int | float | complex]
    leaves: list[Any]
    marks: Marks

    def decode(self, outputs: Sequence[int]) -> RecordedGraph: ...

    def structure(self, outputs: Sequence[int]) -> Hashable: ...


@attrs.frozen(eq=False)
class New:
    """A recorded program that is to be prepared.

    Attributes:
        scalars: its numbers.
        marks: its regions.
        passes: the user's.
    """

    program: RecordedGraph
    scalars: Scalars
    marks: Marks
    passes: Passes


class Calls(Protocol):
    """Calls of programs that together take and return tensors."""

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...


@attrs.frozen
class Route:
    """The way from a program as recorded to the program that runs, and back.

    Attributes:
        program: None when nothing is left to compute.
        inputs: input k of the program is recorded input ``inputs[k]``.
        outputs: recorded output j is output ``outputs[j]`` of the program, or recorded input ``-1 - outputs[j]``.
        straight, direct: the inputs, the outputs, are passed on as they are.
        returns_inputs: whether a recorded output is an input.
        whole: runs the route, and compares it with what was recorded; None: the program is just that.
        plain: whether the program takes just the inputs and returns just the outputs.
        avals: of the outputs, where they have shardings; None: nothing is sharded.
    """

    program: Program | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    straight: bool = False
    direct: bool = False
    returns_inputs: bool = False
    whole: Calls | None = None
    plain: bool = attrs.field(init=False)
    avals: ClassVar[None] = None

    def __attrs_post_init__(self) -> None:
        plain = self.program is not None and self.straight and self.direct and not self.returns_inputs
        plain = plain and self.whole is None
        object.__setattr__(self, "plain", plain)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The program that runs, if any."""
        return () if self.program is None else (self.program,)

    @property
    def stale(self) -> bool:
        """Whether the engine has forgotten the program."""
        return self.program is not None and self.program.forgotten


@attrs.frozen(eq=False)
class Parts:
    """The way from a program as recorded to several programs, each of which is compiled and judged by itself.

    Attributes:
        calls: the calls of these, in order.
        routes: the route of each call.
        avals: of the outputs, where they have shardings; None: nothing is sharded.
        whole: runs the calls, and compares them with what was recorded; None: that cannot be compared.
    """

    calls: Calls
    routes: tuple[Route | Parts, ...]
    avals: tuple[Aval, ...] | None = None
    whole: Calls | None = None
    plain: ClassVar[bool] = False

    @property
    def programs(self) -> tuple[Program, ...]:
        """The distinct programs that run, in the order of their first calls."""
        return tuple(dict.fromkeys(program for route in self.routes for program in route.programs))

    @property
    def stale(self) -> bool:
        """Whether the engine has forgotten one of the programs."""
        return any(route.stale for route in self.routes)


def sequence(
    graph: Graph,
    strides: Strides,
    parts: Sequence[Graph],
    route: Callable[[int, Strides], Route | Parts],
    call: Callable[[Route | Parts, Sequence[torch.Tensor]], list[torch.Tensor]],
) -> Parts:
    """Return the calls of the parts of a graph.

    Args:
        route: gives the route of part k for inputs of these strides.
        call: runs a route.
    """
    predicted = predicted_strides(graph, strides)
    known = predicted | dict(zip(graph.inputs, strides, strict=True))
    steps, routes = [], []
    for k, part in enumerate(parts):
        own = [known.get(v, contiguous_strides(a.shape)) for v, a in zip(part.inputs, part.avals, strict=True)]
        way = route(k, own)
        first = {value: place for place, value in reversed(list(enumerate(part.outputs)))}
        steps.append(Step(functools.partial(call, way), part.inputs, tuple(first.items())))
        routes.append(way)
    kinds = graph.value_avals() if predicted else {}
    orders = {value: _order(kinds[value].shape, own) for value, own in predicted.items()}
    return Parts(CallSequence(tuple(steps), graph.inputs, graph.outputs, orders), tuple(routes))


def _order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    found = layout(shape, strides)
    assert found is not None, "predicted values are dense"
    return found


@attrs.frozen(eq=False)
class Recording:
    """What is known of a program as the recorder describes it.

    Attributes:
        route: to the program, or programs, that run.
        slots: of the tensors that are inputs; None: all of them, in order.
        scalars: which scalars are further inputs.
        operations: how many were recorded.
    """

    route: Route | Parts
    slots: tuple[int, ...] | None
    scalars: ScalarInputs
    operations: int = 0

    def fits(self, scalars: Scalars) -> bool:
        """Whether the scalars have values that it was made for."""
        return self.scalars.fits(scalars)
