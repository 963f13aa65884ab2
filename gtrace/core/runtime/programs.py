"""The table of programs: one for each key, in families. When there are too many, some are forgotten."""

from __future__ import annotations

import weakref
from collections.abc import Hashable

from gtrace.core.backends.backend import find_backend
from gtrace.core.backends.executable import interpreted
from gtrace.core.backends.inductor.refused import uncompilable
from gtrace.core.backends.symbolic import SymbolicSizes
from gtrace.core.backends.tuned import MAX_OPS
from gtrace.core.base.allocator import keep_freed_memory
from gtrace.core.base.bounded_tables import PART, PER_OPERATION, SMALL, BoundedTable, spread
from gtrace.core.ir.aval import layout
from gtrace.core.ir.edit import renumber
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.signature import CompileKey, Signature
from gtrace.core.passes.canonical import Canonical, canonicalize
from gtrace.core.passes.subgraph_calls import called_operators, has_calls
from gtrace.core.runtime.forms import FormEvent, Forms
from gtrace.core.runtime.program import Family, Program
from gtrace.core.runtime.program_ledger import Ledger

MAX_PROGRAMS = 16384
"""Programs remembered, and as many recordings and canonical forms; others are made anew when they are needed."""

PROGRAM = 4000
"""Bytes of a program, beside its operations."""

PER_ENTRY = 150
"""Bytes of an operation in a recording or a canonical form, whose program has the rest."""


class CanonicalForms(BoundedTable[Hashable, Canonical]):
    """Canonical forms, by graphs whose values are numbered in order: equal stretches of programs share them."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit, lambda found: SMALL + PER_ENTRY * len(found.graph.nodes))

    def of(self, graph: Graph) -> Canonical:
        """Return the canonical form of a graph, with its lines if it has any."""
        plain = renumber(graph)
        key = plain.avals, tuple([(node.instr, node.ins) for node in plain.nodes]), plain.outputs
        found = self.get(key)
        if found is None or (plain.has_lines and not found.graph.has_lines):
            found = canonicalize(plain)
            self.remember(key, found)
        return found


class ProgramTable(BoundedTable[CompileKey, Program]):
    """The programs of an engine, by what their compiled form depends on."""

    def __init__(self) -> None:
        super().__init__(MAX_PROGRAMS, lambda program: PROGRAM + PER_OPERATION * program.ops)
        # a family lives as long as its programs
        self._families: weakref.WeakValueDictionary[Hashable, Family] = weakref.WeakValueDictionary()

    def enter(self, program: Program) -> Program:
        """Add a program; returns that of its key, which another thread may have added."""
        found = self.get(program.key)
        if found is None:
            program.join(self._families.setdefault(program.family.key, program.family))
            self.remember(program.key, program)
            found = program
        return found

    def drop(self, program: Program) -> None:
        """Forget a program."""
        if self.pop(program.key, None) is not None:
            program.forget()

    def shrink(self) -> None:
        """Forget an eighth of the programs: those that ran, and were compiled, for less time than others."""
        drawn = [program for key in spread(self, PART // 2) if (program := self.get(key)) is not None]
        drawn.sort(key=lambda program: program.ledger.seconds + program.ledger.compile_seconds)
        for program in drawn[: -(-len(drawn) // 2)]:
            self.drop(program)


def new_program(
    key: CompileKey,
    signature: Signature,
    graph: Graph,
    skeleton: Hashable,
    shape: SymbolicSizes,
    left_out: frozenset[str],
) -> Program:
    """Return a program that is interpreted, in a family of its own.

    Args:
        skeleton, shape: what `shape_of` returns for the graph.
        left_out: operators of torch that the compiler was found to have no code for.
    """
    keep_freed_memory()
    orders = tuple(layout(a.shape, stride) for a, stride in zip(graph.avals, key.strides, strict=True))
    closed = ""
    if None in orders:
        closed = "its inputs are not dense"
    elif not find_backend(key.backend).open_sizes:
        closed = f"backend {key.backend} is given one size at a time"
    layouts = key.strides if None in orders else orders
    missing = called_operators(graph) & left_out
    reason = uncompilable(graph) if key.backend == "inductor" else ""
    reason = reason or ", ".join(f"the compiler has no code for {name}" for name in sorted(missing))
    whole = not closed and bool(reason or has_calls(graph) or len(graph.nodes) > MAX_OPS)
    if has_calls(graph):
        closed = closed or "it has loops or branches"
    elif len(graph.nodes) > MAX_OPS:
        closed = closed or f"it has more than {MAX_OPS} operations"
    closed = closed or (f"parts of it are interpreted: {reason}" if reason else "")
    family = Family((skeleton, layouts, key.backend, key.mode, key.threads), closed, whole)
    ledger = Ledger()
    forms = Forms(interpreted(graph, key.strides), ledger)
    made = Program(key, signature, graph, shape, family, ledger, forms, left_out=missing)
    if reason and not made.schedule.requests:
        forms.change(FormEvent.KEPT, reason=reason)
    return made
