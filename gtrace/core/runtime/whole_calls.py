"""The calls of the programs that a recording became, which are believed once they agreed with the recording."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence

import attrs
import torch

from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.interpreter.reference import reference
from gtrace.core.backends.interpreter.result_strides import with_strides
from gtrace.core.backends.interpreter.run_errors import REFUSALS, refuse
from gtrace.core.base.config import config
from gtrace.core.base.torch_modes import deterministic_algorithms
from gtrace.core.ir.graph import Graph, print_graph
from gtrace.core.passes.named_calls import has_named_calls
from gtrace.core.passes.subgraph_calls import has_loops
from gtrace.core.runtime.agreement import KERNELS_WORSE, WORSE
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.routes import Parts, Route, Strides
from gtrace.core.runtime.trials import as_text, operations_seconds
from gtrace.core.runtime.worker.sharing import sharing

FIRST_LOOK = 8
"""Calls of a recording after a comparison until somebody looks whether the next one is due."""

COMPARING, AT_ONCE = 6, 0.02
"""Calls of a recording that run as recorded before one is compared, if a call is expected to take more than so many
seconds and not all is compiled yet. A comparison takes as long as some calls, and what is interpreted gains little: the
recording may not be called that often."""


@attrs.define(eq=False, slots=False)
class Whole:
    """The calls of the programs that a recording became, which are believed once they agreed with the recording.

    Attributes:
        form: calls the programs.
        route: to the programs.
        graph: the recording.
        strides: of its inputs.
        donated: the places of the inputs that may be written over.
        compare: makes a call and compares it.
        calls: made between two looks at what is due, more each time; 0: it was not compared yet.
        left: those of them that are still to come.
        audited: seconds of the programs when it was compared.
        audit_seconds: that a comparison takes.
        wrong: whether the programs gave other results.
        early: calls that are still to run as recorded before one is compared.
    """

    form: TensorFunction
    route: Route | Parts
    graph: Graph
    strides: Strides
    donated: frozenset[int]
    compare: Callable[[Whole, Sequence[torch.Tensor]], list[torch.Tensor]]
    calls: int = 0
    left: int = 0
    audited: float = 0.0
    audit_seconds: float = 0.0
    wrong: bool = False
    early: int = attrs.field(init=False)

    @early.default
    def _calls_before(self) -> int:
        # a loop may take any time; what writes over its inputs takes less memory than the recording
        if self.donated or has_loops(self.graph) or operations_seconds(self.graph) <= AT_ONCE:
            return 0
        return COMPARING

    @functools.cached_property
    def programs(self) -> tuple[Program, ...]:
        """The programs."""
        return self.route.programs

    @property
    def key(self) -> Hashable:
        """What equal ones have in common."""
        return self.graph, self.programs, tuple(map(tuple, self.strides)), self.donated

    @property
    def name(self) -> str:
        """What events have for it."""
        return f"{hash(self.graph) & (1 << 64) - 1:x}"

    def as_text(self) -> str:
        """Return it in words that are equal in each process."""
        text = print_graph(self.graph)
        programs = [as_text(program) for program in self.programs]
        return f"recording {text} {self.strides} {sorted(self.donated)} {programs}"

    @functools.cached_property
    def reference(self) -> TensorFunction:
        """What the calls must agree with: the recording, operation by operation."""
        return with_strides(reference(self.graph), self.graph, self.strides)

    @functools.cached_property
    def worse(self) -> float:
        """How many times the recording's error theirs may be: many times only if there are kernels of torch."""
        called = any(_has_operators(program.graph) for program in self.programs)
        return KERNELS_WORSE if called or has_named_calls(self.graph) else WORSE

    @property
    def seconds(self) -> float:
        """Seconds of all calls of the programs so far."""
        return sum(program.ledger.seconds for program in self.programs)

    def agree(self, seconds: float, since: float = 0.0) -> None:
        """Note that it agreed.

        Args:
            seconds: that a comparison takes.
            since: seconds that the programs are taken to have run after it.
        """
        self.calls = self.left = FIRST_LOOK
        self.early = 0
        self.audited, self.audit_seconds = self.seconds - since, seconds

    def _audit_due(self) -> bool:
        """Whether it is to be compared; asked after `FIRST_LOOK` calls, twice as many, and so on."""
        seconds = max(self.audit_seconds, sum(program.ledger.audit_seconds for program in self.programs))
        if not self.calls or (self.seconds - self.audited) * config.current.audit > seconds:
            return True
        self.left, self.calls = self.calls, 2 * self.calls
        return False

    def disagree(self) -> None:
        """Run the reference from now on."""
        self.wrong = True

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the recording. In the deterministic mode it runs operation by operation."""
        if config.current.deterministic:
            with deterministic_algorithms():
                return self._as_recorded(tensors)
        if self.wrong:
            return self._as_recorded(tensors)
        if config.current.audit == 1.0:
            return self.compare(self, tensors)
        if self.early and self._may_wait:
            self.early -= 1
            return self._as_recorded(tensors)
        if self.left <= 0 and self._audit_due():
            return self.compare(self, tensors)
        self.left -= 1
        return self.form(tensors)

    @property
    def _may_wait(self) -> bool:
        """Whether a call may run as recorded: something is not compiled yet, and may be.

        If nothing ever is, all calls have the same bits.
        """
        return config.current.auto_compile and not all(program.forms.compiled for program in self.programs)

    def _as_recorded(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        try:
            with sharing.alone():
                return self.reference(tensors)
        except REFUSALS as error:
            refuse("a program", error)


def _has_operators(graph: Graph) -> bool:
    """Whether a graph calls operators of torch."""
    return any("overload" in node.op.params for node in graph.nodes)
