"""How an entry is to be compiled: for its sizes or for open ones, and what the compiler is given for that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch

from gtrace.errors import CompileError
from gtrace.ir.aval import parse_aval
from gtrace.ir.graph import Scalar
from gtrace.runtime.entry import Entry
from gtrace.runtime.general import General, Relation, open_scalars
from gtrace.runtime.interpret import Program
from gtrace.runtime.pieces import Compiler, compile_program, units
from gtrace.runtime.unit import Maker, Unit, read_relation


@attrs.frozen(eq=False)
class Plan:
    """One way to compile an entry.

    Attributes:
        entry: the program.
        unit: for open sizes: what is compiled; None: it is compiled for its own sizes, perhaps in pieces.
        constants: the scalars that hold for all sizes; None for those that are inputs of `unit`.
        threads: that torch has in the thread that made the plan; others may have fewer for the moment.
    """

    entry: Entry
    unit: Unit | None = None
    constants: tuple[Scalar | None, ...] = ()
    threads: int = attrs.field(factory=torch.get_num_threads)

    def units(self) -> dict[str, Unit]:
        """Return what is to be compiled, by the name under which it is kept."""
        if self.unit is not None:
            return {f"{self.entry.family.name}-{self.unit.name}": self.unit}
        key = self.entry.key
        return {unit.name: unit for unit in units(self.entry.graph, key.strides, key.mode, self.threads)}

    def build(self, make: Maker, kept: str | None) -> Program:
        """Return the program; one for open sizes joins its family.

        Args:
            make: gives the compiled form of a unit.
            kept: the name under which the programs of loops' bodies are kept.

        Raises:
            CompileError: the compiler failed, or its code is not for these sizes.
        """
        entry = self.entry
        if self.unit is None:
            key = entry.key
            program = compile_program(
                entry.graph, key.strides, Compiler(make, key.backend, key.mode, kept, self.threads)
            )
            entry.family.exact.add(entry.dims)
            return program
        assert self.unit.relations is not None
        made = make(self.unit)
        general = General(made.program, self.unit.relations, self.constants, made.conditions)
        if not general.fits(entry.shape):
            raise CompileError("the compiled code depends on the sizes")
        entry.family.general.append(general)
        entry.general = general
        return general.bind(entry.shape)

    def tell(self) -> list[Any]:
        """Return the scalars in the terms of JSON; `read_constants` reads them."""
        return [None if x is None else [x.value, repr(x.aval)] for x in self.constants]


def read_constants(told: Sequence[Any]) -> tuple[Scalar | None, ...]:
    """Return the scalars that `Plan.tell` told of."""
    return tuple(None if x is None else Scalar(x[0], parse_aval(x[1])) for x in told)


def plan(entry: Entry) -> Plan:
    """Return how to compile an entry: for open sizes if others of its family have other ones and that can be done."""
    family = entry.family
    related = None if family.closed or not family.others(entry) else family.relate(entry)
    if related is None:
        family.tried = family.count
        return Plan(entry)
    relations, examples = related
    if any(r.places and n < 2 for r, n in zip(relations, entry.dims, strict=False)):
        return Plan(entry)
    shapes = [entry.shape, *(e.shape for e in examples)]
    columns = list(zip(*(shape.scalars for shape in shapes), strict=True))
    constants = tuple(column[0] if len(set(column)) == 1 else None for column in columns)
    opened = [k for k, x in enumerate(constants) if x is None]
    graph = open_scalars(entry.graph, opened)
    strides = (*entry.key.strides, *[()] * len(opened))
    return Plan(entry, Unit(graph, strides, entry.key.backend, entry.key.mode, relations), constants)


def kept_relations(told: dict[str, Any]) -> tuple[Relation, ...]:
    """Return the relations of a description of an artifact for open sizes."""
    return tuple(read_relation(r) for r in told["unit"]["relations"])
