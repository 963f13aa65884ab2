"""The routes from programs as they were recorded to the programs that run."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import ClassVar, Protocol

import attrs
import torch

from gtrace.engine.derived import Derived
from gtrace.engine.program import Program
from gtrace.ir.aval import Aval


@attrs.frozen
class Route:
    """The way from a program as recorded to the program that runs, and back.

    Attributes:
        program: None when nothing is left to compute.
        inputs: input k of the program is recorded input ``inputs[k]``.
        outputs: recorded output j is output ``outputs[j]`` of the program, or recorded input ``-1 - outputs[j]``.
        straight, direct: the inputs, the outputs, are passed on as they are.
        returns_inputs: whether a recorded output is an input.
        plain: whether the program takes just the inputs and returns just the outputs.
        avals: of the outputs, where they have shardings; None: nothing is sharded.
    """

    program: Program | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    straight: bool = False
    direct: bool = False
    returns_inputs: bool = False
    plain: bool = attrs.field(init=False)
    avals: ClassVar[None] = None

    def __attrs_post_init__(self) -> None:
        plain = self.program is not None and self.straight and self.direct and not self.returns_inputs
        object.__setattr__(self, "plain", plain)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The program that runs, if any."""
        return () if self.program is None else (self.program,)


class Calls(Protocol):
    """Calls of programs that together take and return tensors."""

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...


@attrs.frozen(eq=False)
class Parts:
    """The way from a program as recorded to several programs, each of which is compiled and judged by itself.

    Attributes:
        calls: the calls of these, in order.
        routes: the route of each call.
        avals: of the outputs, where they have shardings; None: nothing is sharded.
    """

    calls: Calls
    routes: tuple[Route | Parts, ...]
    avals: tuple[Aval, ...] | None = None
    plain: ClassVar[bool] = False

    @property
    def programs(self) -> tuple[Program, ...]:
        """The distinct programs that run, in the order of their first calls."""
        return tuple(dict.fromkeys(program for route in self.routes for program in route.programs))


MAX_FORMS = 5
"""How often a program is prepared, each time with more of its scalars as inputs, until all are."""


@attrs.frozen(eq=False)
class Recording:
    """What is known of a program as the recorder describes it.

    Attributes:
        route: to the program, or programs, that run.
        slots: of the tensors that are inputs; None: all of them, in order.
        lifted: the scalars that are further inputs, by slot, with their avals.
        constants: the other scalars, (slot, value), as they were when the route was made.
        forms: how many forms the program has had, this one included: one more after each change of a constant.
        derived: the outputs that are not computed; None: all are.
        updates: whether there may be updates that can be deferred.
    """

    route: Route | Parts
    slots: tuple[int, ...] | None
    lifted: tuple[tuple[int, Aval], ...]
    constants: tuple[tuple[int, bool | int | float | complex], ...]
    forms: int = 1
    derived: Derived | None = None
    updates: bool = False
    open_slots: frozenset[int] = attrs.field(init=False)
    values: tuple[bool | int | float | complex, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "open_slots", frozenset(slot for slot, _ in self.lifted))
        object.__setattr__(self, "values", tuple(x for _, x in self.constants))

    def fits(self, scalars: tuple[bool | int | float | complex, ...]) -> bool:
        """Whether the constants are still what they were, and nobody has asked for what is not computed."""
        if self.derived is not None and not self.derived.holds():
            return False
        if not self.open_slots:
            return scalars == self.values
        return tuple([x for k, x in enumerate(scalars) if k not in self.open_slots]) == self.values

    def opened(self, scalars: tuple[bool | int | float | complex, ...]) -> Container[int]:
        """Return the slots of the scalars that become inputs, as constants have other values now."""
        if self.forms + 1 >= MAX_FORMS:
            return range(len(scalars))
        return self.open_slots | {k for k, x in self.constants if scalars[k] != x}
