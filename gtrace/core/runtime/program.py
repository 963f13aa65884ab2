"""What the engine keeps of a program: its graph, its forms, its ledger, how it is compiled, and its family."""

from __future__ import annotations

import functools
from collections.abc import Hashable

import attrs
import torch

from gtrace.core.backends.cost_model import saved_beside_libraries
from gtrace.core.backends.executable import Executable
from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.interpreter.matmul import takes_library
from gtrace.core.backends.interpreter.reference import reference
from gtrace.core.backends.interpreter.result_strides import with_strides
from gtrace.core.backends.request import CompileRequest, digest
from gtrace.core.backends.schedule import Loop, NativeLoop, Schedule
from gtrace.core.backends.scheduler import Scheduler
from gtrace.core.backends.symbolic import Relation, SymbolicProgram, SymbolicSizes, fit
from gtrace.core.backends.toolchain import toolchain
from gtrace.core.base.config import config
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.signature import CompileKey, Signature
from gtrace.core.passes.subgraph_calls import called_operators, communicates, count_operations, has_calls, has_effects
from gtrace.core.runtime.cache.manifest import Verdict, VerdictKind
from gtrace.core.runtime.forms import Code, FormEvent, Forms, State, Trial
from gtrace.core.runtime.policy import AFTER_LOSS, native_seconds
from gtrace.core.runtime.program_ledger import Ledger

MAX_EXAMPLES = 8
"""Members of a family that relations are fitted to."""

OWN_SIZES = 2
"""Programs of one structure that the C++ compiler alone compiles, each for its sizes, before Inductor compiles one for
open sizes: a loop over data has its batches and the last one, which is shorter."""


@attrs.define(eq=False)
class Family:
    """The programs of one structure, which differ in integers and scalars only, for inputs of one layout.

    Attributes:
        key: the structure, the layouts, the backend and the mode.
        closed: why nothing is compiled for open sizes; empty: it may be.
        whole: whether that is because it is compiled as a whole: parts of it may have open sizes.
        members: the latest of each combination of input sizes.
        symbolic: programs for open sizes.
        calls, seconds: interpreting its members, since something was last compiled.
        exact: the input sizes of programs that were compiled for just these.
        trials: the running trial of each program for open sizes that has one.
        count: members ever added.
        tried: `count` when relations were last looked for and not found.
        warned: whether the user was warned that further sizes are interpreted.
        known: how the integers of its members follow from the sizes of their inputs; None: that was not tried.
        varying: the places of numbers that differ between sizes, though perhaps not between its members.
        many: whether it has so many sizes that none is compiled for its own sake.
        latest: the member for which the worker was asked last; see `is_busy`.
        asked: members that are to be compiled when it is not busy, the newest last: whether it is hot, and by which
            line.
        lost: whether it is closed because its code for open sizes was slower, or wrong.
    """

    key: Hashable
    closed: str = ""
    whole: bool = False
    members: list[Program] = attrs.field(factory=list)
    symbolic: list[SymbolicProgram] = attrs.field(factory=list)
    calls: int = 0
    seconds: float = 0.0
    exact: set[tuple[int, ...]] = attrs.field(factory=set)
    trials: dict[SymbolicProgram, Trial] = attrs.field(factory=dict)
    count: int = 0
    tried: int = 0
    warned: bool = False
    known: tuple[Relation, ...] | None = None
    varying: frozenset[int] = frozenset()
    many: bool = False
    latest: Program | None = None
    asked: dict[Program, tuple[bool, str]] = attrs.field(factory=dict)
    lost: bool = False
    _name: str = ""

    @property
    def name(self) -> str:
        """A digest of the structure, and of what compiled programs depend on beside it."""
        if not self._name:
            self._name = digest(repr(self.key), *(f"{k}: {v}" for k, v in toolchain().items()))
        return self._name

    def add(self, program: Program) -> None:
        """Add a member."""
        self.count += 1
        self.members = [*[m for m in self.members if m.dims != program.dims][1 - MAX_EXAMPLES :], program]

    def remove(self, program: Program) -> None:
        """Forget a member."""
        self.members = [m for m in self.members if m is not program]
        self.asked.pop(program, None)
        if self.latest is program:
            self.latest = None

    def spend(self, seconds: float) -> None:
        """Note an interpreted call of a size that was never prepared."""
        self.calls += 1
        self.seconds += seconds

    def close(self, verdict: Verdict) -> None:
        """Compile nothing for open sizes from now on."""
        self.closed = f"for open sizes it was {verdict}"
        self.lost = verdict.kind is not VerdictKind.FAILED

    def meet_many(self) -> None:
        """Note that it has many sizes; see `many`."""
        self.many = True

    def learn(self, relations: tuple[Relation, ...] | None, varying: frozenset[int]) -> None:
        """Note how its integers follow from sizes, or None if they follow no rule, and which numbers vary."""
        self.known, self.varying = relations, varying

    @property
    def versions(self) -> int:
        """How many compiled programs it has, for open sizes or for single ones."""
        return len(self.exact) + len(self.symbolic)

    @property
    def is_busy(self) -> bool:
        """Whether the worker is at one of its members, for open sizes or for its own: others wait for that."""
        return self.latest is not None and self.latest.forms.is_requested

    @property
    def is_tried(self) -> bool:
        """Whether relations were not found lately. They are looked for again when it has twice as many members."""
        return self.count < 2 * self.tried

    def others(self, program: Program) -> list[Program]:
        """Return the members with other sizes, the newest first."""
        return [m for m in reversed(self.members) if m.dims != program.dims]

    def find(self, shape: SymbolicSizes) -> Code | None:
        """Return code for `shape`, made of a program for open sizes."""
        for symbolic in list(self.symbolic):
            executable = symbolic.executable_for(shape)
            if executable is not None:
                return Code(executable, symbolic)
        return None

    def relate(self, program: Program) -> tuple[tuple[Relation, ...], list[Program]] | None:
        """Return relations that hold for a program and many other members, and these members; None if no other fits.

        Members may be different programs that happen to have one structure. One that does not fit the newer ones
        is left out.
        """
        chosen, own = self.others(program), program.shape
        if self.known is not None and all(r(own.sizes) == n for r, n in zip(self.known, own.sizes, strict=True)):
            return (self.known, chosen) if chosen else None
        relations = fit([own.sizes, *(m.shape.sizes for m in chosen)], own.dims) if chosen else 0
        if isinstance(relations, tuple):
            return relations, chosen
        others, chosen = chosen, []
        for other in others:
            found = fit([own.sizes, *(m.shape.sizes for m in chosen), other.shape.sizes], own.dims)
            if isinstance(found, tuple):
                chosen.append(other)
                relations = found
        # through two points a rule of some kind leads: of many members more must follow it
        return (relations, chosen) if isinstance(relations, tuple) and len(chosen) > (len(others) > 3) else None


@attrs.frozen(eq=False)
class RunPlan:
    """How a program is compiled.

    Attributes:
        schedule: what is to be compiled of it for its own sizes, and the calls that run it then.
        native: whether the C++ compiler alone compiles all that is to be compiled: that takes no Inductor.
        short: whether that is native functions, and there are no loops.
        native_loops: whether its loops are native functions, and there are some.
    """

    schedule: Schedule
    native: bool
    short: bool
    native_loops: bool


@attrs.define(eq=False, slots=False)  # with slots, cached properties bring a `__getattr__`, which slows each read down
class Program:
    """One program: its canonical graph, what runs it today, and what that has cost.

    Attributes:
        shape: what distinguishes it from the others of its family.
        ledger: its calls and their seconds.
        forms: what runs it.
        left_out: operators of torch that are interpreted, because the compiler has no code for them.
        alone: whether the C++ compiler alone compiles it, if it is short.
        native_lost: whether the code of the C++ compiler alone was slower, or wrong.
        forgotten: whether the engine has forgotten it: who runs it has kept it, and others make it anew.
    """

    key: CompileKey
    signature: Signature
    graph: Graph
    shape: SymbolicSizes
    family: Family
    ledger: Ledger
    forms: Forms
    left_out: frozenset[str] = frozenset()
    alone: bool = attrs.field(factory=lambda: config.current.native)
    native_lost: bool = False
    forgotten: bool = False
    _plan: RunPlan | None = None

    # -- what it is

    def take_lines(self, graph: Graph) -> None:
        """Know the user's lines from now on: the graph is the same, with lines."""
        self.graph = graph

    def join(self, family: Family) -> None:
        """Become a member of a family."""
        self.family = family
        family.add(self)

    def forget(self) -> None:
        """Leave the family: the engine has forgotten the program."""
        self.forgotten = True
        self.family.remove(self)

    @functools.cached_property
    def communicates(self) -> bool:
        """Whether it has collectives."""
        return communicates(self.graph)

    @functools.cached_property
    def has_calls(self) -> bool:
        """Whether it has loops or branches."""
        return has_calls(self.graph)

    @functools.cached_property
    def operators(self) -> frozenset[str]:
        """The operators of torch that it calls by name, those in the bodies of loops and branches included."""
        return called_operators(self.graph)

    @functools.cached_property
    def ops(self) -> int:
        """Its operations, those in the bodies of loops and branches included."""
        return count_operations(self.graph)

    @property
    def structure(self) -> tuple[str, str, str, int]:
        """What it has in common with the programs that differ from it in sizes and scalars only."""
        return self.signature.structural, self.key.backend, self.key.mode, self.key.threads

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.forms.interpreted.device

    @property
    def dims(self) -> tuple[int, ...]:
        """The sizes of its inputs."""
        return self.shape.sizes[: self.shape.dims]

    # -- what runs it

    @property
    def tier(self) -> str:
        """How it runs: "interpreted", "compiled", "failed" (the compiler did) or "demoted" (compiled, but slower)."""
        return self.forms.tier

    @functools.cached_property
    def reference(self) -> TensorFunction:
        """What each of its forms must agree with: `graph`, operation by operation. It writes over no input."""
        return with_strides(reference(self.graph), self.graph, self.key.strides)

    @property
    def as_recorded(self) -> Executable:
        """What runs it in the deterministic mode: its reference."""
        return attrs.evolve(self.forms.interpreted, run=self.reference)

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """The sizes that its compiled program leaves open, such as "input 0 dim 0"."""
        symbolic = self.forms.symbolic
        if symbolic is None:
            return ()
        names = [f"input {k} dim {dim}" for k, a in enumerate(self.graph.avals) for dim in range(len(a.shape))]
        return tuple(name for name, relation in zip(names, symbolic.relations, strict=False) if relation.places)

    # -- how it is compiled

    @property
    def plan(self) -> RunPlan:
        """How it is compiled, as long as nothing is left out or to Inductor."""
        if self._plan is None:
            key = self.key
            scheduler = Scheduler(key.backend, key.mode, key.threads, self.left_out, self.alone)
            schedule = scheduler.schedule(self.graph, key.strides, key.donated)
            native = bool(schedule.requests) and all(request.native for request in schedule.requests)
            loops = [call.what for call in schedule.calls if isinstance(call.what, Loop | NativeLoop)]
            native_loops = bool(loops) and all(isinstance(loop, NativeLoop) for loop in loops)
            self._plan = RunPlan(schedule, native, native and not self.has_calls, native and native_loops)
        return self._plan

    @property
    def schedule(self) -> Schedule:
        """See `RunPlan`."""
        return self.plan.schedule

    @property
    def native(self) -> bool:
        """See `RunPlan`."""
        return self.plan.native

    @property
    def short(self) -> bool:
        """See `RunPlan`."""
        return self.plan.short

    @property
    def any_length(self) -> bool:
        """Whether nothing of it is compiled but native loops, whose code is for any number of steps."""
        return self.plan.native_loops and not any(isinstance(call.what, CompileRequest) for call in self.schedule.calls)

    @functools.cached_property
    def can_begin_anew(self) -> bool:
        """Whether an interpreted call may be ended, and made by native code: that takes little, and nobody notices."""
        return self.plan.native_loops and not self.communicates and not has_effects(self.graph)

    @property
    def awaits_native_loops(self) -> bool:
        """Whether the C++ compiler is at it, and a call that began before is made again by its code."""
        return self.forms.state is State.REQUESTED and self.can_begin_anew

    @property
    def natively(self) -> bool:
        """Whether the next compile takes no Inductor: short programs are compiled so for few sizes."""
        if not self.short:
            return self.native
        own = self.family.exact
        return not self.family.many and (len(own) < OWN_SIZES or self.dims in own)

    @property
    def native_seconds(self) -> float:
        """What the C++ compiler should take for it."""
        return native_seconds(count_operations(request.graph) for request in self.schedule.requests)

    def leave_out(self, operators: frozenset[str]) -> None:
        """Have further operators interpreted."""
        self.left_out |= operators
        self._plan = None

    def leave_to_inductor(self, lost: bool) -> bool:
        """Have Inductor compile a short program, once it is hot again; returns whether it is one.

        Args:
            lost: whether its native code was slower, or wrong; it may have none after all.
        """
        if not self.alone or not self.short:
            return False
        self.alone, self._plan, self.native_lost = False, None, lost
        self.forms.change(FormEvent.LEFT_TO_INDUCTOR)
        return True

    @property
    def won(self) -> float:
        """The fraction of an interpreted call that compiling is expected to save."""
        share = self.ledger.library_share
        won = 1.0 if share is None else (1.0 - share) * self._beside_libraries
        return min(won, AFTER_LOSS) if self.lost and not self.natively else won

    @property
    def lost(self) -> bool:
        """Whether a compiled form was slower or wrong, its own or the family's: little is expected of Inductor then."""
        return self.native_lost or self.family.lost

    @functools.cached_property
    def _beside_libraries(self) -> float:
        return saved_beside_libraries(self.graph)

    @property
    def unmeasured(self) -> bool:
        """Whether it has products that compiling cannot make faster, and nobody knows what they take."""
        if self.ledger.library_share is not None or self.device.type != "cpu" or self.native:
            return False
        return any(takes_library(node.instr) for node in self.graph.nodes)
