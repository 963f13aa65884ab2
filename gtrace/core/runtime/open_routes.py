"""Routes with their sizes left open: they run recordings of sizes that were never prepared by compiled code.

An open route belongs to a structure; `route_finder.py` finds it. A call reads the sizes of its inputs, and checks that
all other integers follow from these as they did in the recordings that were tried. Then the integers of each program
are known, and with them the code for open sizes that the program's family has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.backends.schedule import CallSequence
from gtrace.core.backends.symbolic import Relation, SymbolicProgram, SymbolicSizes
from gtrace.core.base.devices import number_tensor
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import RecordedGraph, Scalar
from gtrace.core.ir.resizing import given_attributes, rebuilt
from gtrace.core.ir.skeleton import mask
from gtrace.core.runtime.open_recordings import OpenRecording
from gtrace.core.runtime.program import Program

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


@attrs.frozen
class Number:
    """What a number must be.

    Attributes:
        value: it is this one; None: it is not always the same.
        relation: the size that it is, or what follows from sizes; None: it is none.
        kind: what it is of that; see `KINDS`.
        slot: that of an equal number.
    """

    value: Any = None
    relation: Relation | None = None
    kind: str = "int"
    slot: int = 0

    def of(self, dims: Sequence[int], numbers: Sequence[Any] = ()) -> Any:
        """Return the number.

        Args:
            dims: the sizes of the inputs.
            numbers: those of the recording, by slot.
        """
        if self.value is not None:
            return self.value
        return numbers[self.slot] if self.relation is None else KINDS[self.kind](self.relation(dims))


KINDS: dict[str, Callable[[int], int | float]] = {
    "int": lambda n: n, "float": float, "inverse": lambda n: 1.0 / n if n else math.nan
}  # fmt: skip
"""What numbers are of integers: a mean divides by the count of elements, or multiplies by its inverse."""


@attrs.frozen(eq=False)
class Reading:
    """Reads the integers of a recording, and checks that they follow from the sizes of its inputs.

    Attributes:
        slots: of the tensors that are inputs.
        lifted: of the numbers that are further inputs, each with its type.
        formulas: what each of these follows from; None: that is not known.
        sizes: of each size of an input what it follows from: itself, other sizes, or nothing.
        attributes: of each operation that has some: its place in the list; all of them, if none varies; a key of those
            that are no integers, if they are more than the structure says; and what the integers follow from.
        numbers: (slot, what it must be) of each number that is not just an input.
        limits: (place of a size, the smallest, the largest), of those that vary by themselves.
        constants: integers that no such size may be equal to.
    """

    slots: tuple[int, ...]
    lifted: tuple[tuple[int, Aval], ...]
    formulas: tuple[Number | None, ...]
    sizes: tuple[Relation, ...]
    attributes: tuple[tuple[int, Any, Any, tuple[Relation, ...]], ...]
    numbers: tuple[tuple[int, Number], ...]
    limits: tuple[tuple[int, int, int], ...]
    constants: frozenset[int]

    def of(self, flat: Any, numbers: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[int] | None:
        """Return the sizes of the inputs; None: something does not follow, or was not tried.

        Args:
            flat: the operations, by place.
            numbers: those of the recording.
            tensors: its inputs, by slot.
        """
        dims = [n for slot in self.slots for n in tensors[slot].shape]
        return dims if self.allows(dims) and self.follows(dims, flat, numbers) else None

    def allows(self, dims: Sequence[int]) -> bool:
        """Whether sizes of the inputs are between those that were tried, and belong together as these do."""
        free = [dims[place] for place, _, _ in self.limits]
        if len(set(free)) < len(free) or not self.constants.isdisjoint(free):
            return False
        if not all(least <= dims[place] <= most for place, least, most in self.limits):
            return False
        return all(relation(dims) == n for relation, n in zip(self.sizes, dims, strict=True))

    def follows(self, dims: Sequence[int], flat: Any, numbers: Sequence[Any]) -> bool:
        """Whether the integers and numbers of a recording follow from the sizes of its inputs; see `of`."""
        for slot, number in self.numbers:
            value = numbers[slot]
            expected = number.of(dims, numbers)
            if value is not expected and exact_key(value) != exact_key(expected):
                return False
        for at, same, rest, relations in self.attributes:
            own = flat[at].params
            if same is not None and same == own:
                continue
            found: list[int] = []
            masked = mask(given_attributes(own), found)
            if [relation(dims) for relation in relations] != found:
                return False
            if rest is not None and exact_key(masked) != rest:
                return False
        return True

    @property
    def is_complete(self) -> bool:
        """Whether all numbers follow from the sizes of the inputs."""
        return None not in self.formulas

    def computes(self, dims: Sequence[int], numbers: Sequence[Any]) -> bool:
        """Whether the numbers of a recording that are inputs are those that follow from the sizes."""
        pairs = zip(self.lifted, self.formulas, strict=True)
        return all(f is not None and exact_key(f.of(dims)) == exact_key(numbers[slot]) for (slot, _), f in pairs)

    def alone(self, dims: Sequence[int], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return what the programs take, for sizes from which all numbers follow."""
        pairs = [(f.of(dims), a) for (_, a), f in zip(self.lifted, self.formulas, strict=True) if f is not None]
        return [*tensors, *[number_tensor(value, a.dtype, a.device) for value, a in pairs]]

    def inputs(self, numbers: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return what the programs take."""
        lifted = [number_tensor(numbers[slot], a.dtype, a.device) for slot, a in self.lifted]
        return [*[tensors[slot] for slot in self.slots], *lifted]


# -- programs


@attrs.frozen(eq=False)
class OpenProgram:
    """A program of a route, with its integers open.

    Attributes:
        program: that of one size.
        inputs, outputs: see `Route`.
        relations: what its integers follow from, each once.
        integers: of each integer its place among these.
        numbers: what its numbers follow from.
    """

    program: Program | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    relations: tuple[Relation, ...] = ()
    integers: tuple[int, ...] = ()
    numbers: tuple[Number, ...] = ()
    _plan: list[OpenRecording] = attrs.field(factory=list)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The program, if there is one."""
        return () if self.program is None else (self.program,)

    def bound(self, dims: Sequence[int], found: list[SymbolicProgram]) -> Run:
        """Return what runs it for these sizes; append the code for open sizes that it has, if any."""
        program = self.program
        if program is None:
            return lambda tensors: [tensors[-1 - k] for k in self.outputs]
        given = [number.of(dims) for number in self.numbers]
        scalars = [Scalar(value, x.aval) for x, value in zip(program.shape.scalars, given, strict=True)]
        values = [relation(dims) for relation in self.relations]
        integers = tuple([values[k] for k in self.integers])
        code = program.family.find(SymbolicSizes(integers, program.shape.dims, tuple(scalars)))
        if code is None or code.symbolic is None:
            run: Run = self._interpreted(integers, given)
        else:
            found.append(code.symbolic)
            run = code.executable.run

        def call(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            inputs = list(tensors)
            results = run([inputs[k] for k in self.inputs])
            return [results[k] if k >= 0 else inputs[-1 - k] for k in self.outputs]

        return call

    def _interpreted(self, integers: Sequence[int], numbers: Sequence[Any]) -> Run:
        program = self.program
        assert program is not None
        if not self._plan:
            slots, places = list(range(len(program.graph.inputs))), list(range(len(numbers)))
            self._plan.append(OpenRecording.of(RecordedGraph(program.graph, list(program.key.strides), slots, places)))

        def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            graph = rebuilt(program.graph, integers, numbers)
            return self._plan[0].run({node.out: node.instr for node in graph.nodes}, numbers, tensors)

        return run


@attrs.frozen(eq=False)
class OpenParts:
    """Programs of a route that are called one after the other.

    Attributes:
        calls: those of one size.
        parts: what runs each.
    """

    calls: CallSequence
    parts: tuple[OpenProgram | OpenParts, ...]

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs that run."""
        return tuple(dict.fromkeys(program for part in self.parts for program in part.programs))

    def bound(self, dims: Sequence[int], found: list[SymbolicProgram]) -> Run:
        """See `OpenProgram.bound`."""
        runs = [part.bound(dims, found) for part in self.parts]
        steps = [attrs.evolve(step, run=run) for step, run in zip(self.calls.steps, runs, strict=True)]
        return attrs.evolve(self.calls, steps=tuple(steps)).run


@attrs.frozen(eq=False)
class OpenRoute:
    """What runs the recordings of a structure by code for open sizes.

    Attributes:
        reading: reads the sizes.
        form: the programs.
        programs: those of the sizes that it was made from.
    """

    reading: Reading
    form: OpenProgram | OpenParts
    programs: tuple[Program, ...]

    def bound(self, dims: Sequence[int]) -> tuple[tuple[SymbolicProgram, ...], Run | None]:
        """Return the code that there is for these sizes, and what runs a recording with it; None: there is none."""
        found: list[SymbolicProgram] = []
        run = self.form.bound(dims, found)
        return tuple(found), run if found else None
