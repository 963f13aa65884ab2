"""One way to compile a program: for its own sizes, or for open ones."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from gtrace.core.backends.executable import Executable
from gtrace.core.backends.interpreter.result_strides import with_strides
from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.schedule import Results, Schedule
from gtrace.core.backends.scheduler import Scheduler
from gtrace.core.backends.symbolic import SymbolicProgram
from gtrace.core.base.errors import CompileError
from gtrace.core.base.mechanisms import OPEN_SIZES
from gtrace.core.ir.edit import lift_scalars
from gtrace.core.ir.graph import Scalar
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.forms import Code
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.worker.purposes import Purpose, note


@attrs.frozen(eq=False)
class Compilation:
    """What is to be compiled for a program.

    Attributes:
        program: the program.
        schedule: the requests, and how the program is made of their compiled form.
        symbolic: for open sizes, the one request; None: for the program's own sizes.
        constants: with open sizes: the scalars that hold for all of them; None for those that are inputs.
    """

    program: Program
    schedule: Schedule
    symbolic: CompileRequest | None = None
    constants: tuple[Scalar | None, ...] = ()

    def names(self) -> Mapping[str, CompileRequest]:
        """Return the requests by the names under which their compiled form is kept. Equal ones have one name."""
        if self.symbolic is not None:
            return {f"{self.program.family.name}-{self.symbolic.name}": self.symbolic}
        return {request.name: request for request in self.schedule.requests}

    def note_purposes(self) -> None:
        """Note what the requests are for, so that the worker can keep their code when this process has ended."""
        if artifacts.store is not None:
            family = self.program.family.name if self.symbolic is not None else ""
            requests = self.schedule.requests if self.symbolic is None else (self.symbolic,)
            program = self.program
            note(requests, Purpose(artifacts.store, family, program.signature, self.constants, program.ledger.spent))

    def in_part(self, results: Results) -> Executable:
        """Return what runs the program for its own sizes; requests without a result are interpreted.

        Args:
            results: of the requests in `names`, or of some of them.
        """
        by_name = {request.name: compiled for request, compiled in results.items()}
        requests = self.schedule.requests
        own = self.schedule.executable({r: by_name[r.name] for r in requests if r.name in by_name})
        if own.calls is None:
            return own
        return attrs.evolve(own, run=with_strides(own.run, self.program.graph, self.program.key.strides))

    def finish(self, results: Results) -> Code:
        """Return the compiled form of the program; one for open sizes joins the family.

        Raises:
            CompileError: the code is not for these sizes.
        """
        program = self.program
        if self.symbolic is None:
            program.family.exact.add(program.dims)
            return Code(self.in_part(results))
        assert self.symbolic.relations is not None
        symbolic = SymbolicProgram(results[self.symbolic], self.symbolic.relations, self.constants)
        executable = symbolic.executable_for(program.shape)
        if executable is None:
            raise CompileError("the compiled code depends on the sizes")
        program.family.symbolic.append(symbolic)
        return Code(executable, symbolic)


def for_own_sizes(program: Program) -> Compilation:
    """Return how to compile a program for its own sizes."""
    return Compilation(program, program.schedule)


def compilation(program: Program) -> Compilation:
    """Return how to compile a program: for open sizes if others of its family have other ones and that can be done."""
    way = _compilation(program)
    way.note_purposes()
    return way


def _compilation(program: Program) -> Compilation:
    family = program.family
    if not OPEN_SIZES.on or (program.short and program.natively):
        return for_own_sizes(program)
    related = None if family.closed or not family.others(program) else family.relate(program)
    if related is None:
        family.tried = family.count
        return for_own_sizes(program)
    relations, examples = related
    if any(r.places and n < 2 for r, n in zip(relations, program.dims, strict=False)):
        return for_own_sizes(program)
    shapes = [program.shape, *(e.shape for e in examples)]
    columns = list(zip(*(shape.scalars for shape in shapes), strict=True))
    OPEN_SIZES.used()
    constants = tuple(
        column[0] if len(set(column)) == 1 and k not in family.varying else None for k, column in enumerate(columns)
    )
    lifted = [k for k, x in enumerate(constants) if x is None]
    graph = lift_scalars(program.graph, [[k] for k in lifted])
    key = program.key
    strides = (*key.strides, *[()] * len(lifted))
    request = CompileRequest(graph, strides, key.backend, key.mode, relations, key.threads)
    schedule = Scheduler(key.backend, key.mode, key.threads).single(request)
    return Compilation(program, schedule, request, constants)
