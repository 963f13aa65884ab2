"""What the engine keeps of a program: what runs it today, what that has cost, and its family."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable, Hashable
from typing import Any

import attrs
import torch

from gtrace.core.backends.cost_model import saved_beside_libraries
from gtrace.core.backends.executable import Executable, interpreted
from gtrace.core.backends.interpreter.matmul import takes_library
from gtrace.core.backends.request import digest
from gtrace.core.backends.schedule import Schedule
from gtrace.core.backends.scheduler import Scheduler
from gtrace.core.backends.symbolic import Relation, Sizes, SymbolicProgram, fit
from gtrace.core.backends.toolchain import toolchain
from gtrace.core.base.config import Config, config
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.signature import CompileKey, Signature
from gtrace.core.passes.subgraph_calls import called_operators, communicates, count_operations, has_calls, has_effects
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.policy import SAMPLES, TRIAL_SHARE, native_seconds, review_due

MAX_EXAMPLES = 8
"""Members of a family that relations are fitted to."""

TIMED, KNOWN_CALLS, SHORT_SECONDS = 8, 1000, 2e-5
"""Of a program that has run so often and takes less than so long, one call in `TIMED` is timed, the others like it."""


@attrs.define(eq=False)
class Trial:
    """The timing of a compiled program against its interpreted form, in alternating calls.

    Attributes:
        programs: those that run it.
        pairs: (interpreted, compiled) seconds of two calls with the same sizes.
        expected: for programs that were not interpreted before: the seconds that an interpreted call should take.
            These calls are spread out, so that they cost little. None: every other call is interpreted.
        review: whether the program was judged before.
    """

    programs: list[Program] = attrs.field(factory=list)
    pairs: list[tuple[float, float]] = attrs.field(factory=list)
    expected: float | None = None
    review: bool = False

    def due(self, compiled_seconds: float) -> bool:
        """Whether the next call is to be interpreted.

        Args:
            compiled_seconds: of all compiled calls of the program.
        """
        if self.expected is None:
            return True
        interpreted = self.pairs[-1][0] if self.pairs else self.expected
        return interpreted * (len(self.pairs) + 1) <= TRIAL_SHARE * compiled_seconds


@attrs.frozen(eq=False)
class Rival:
    """The form of a program that lost the last trial, and what that trial found.

    Attributes:
        seconds: of its calls then, the median.
        trial: seconds that the trial took.
        spent: seconds that the program had run when it ended.
    """

    executable: Executable
    seconds: float
    trial: float
    spent: float


@attrs.define(eq=False)
class Family:
    """The programs of one structure, which differ in integers and scalars only, for inputs of one layout.

    Attributes:
        key: the structure, the layouts, the backend and the mode.
        closed: why nothing is compiled for open sizes; empty: it may be.
        members: the latest of each combination of input sizes.
        symbolic: programs for open sizes.
        calls, seconds: interpreting its members, since something was last compiled.
        exact: the input sizes of programs that were compiled for just these.
        trials: the running trial of each program for open sizes that has one.
        count: members ever added.
        tried: `count` when relations were last looked for and not found.
        warned: whether the user was warned that further sizes are interpreted.
        many: whether it has so many sizes that none is compiled for its own sake.
        requested: whether the worker is compiling one for open sizes.
    """

    key: Hashable
    closed: str = ""
    members: list[Program] = attrs.field(factory=list)
    symbolic: list[SymbolicProgram] = attrs.field(factory=list)
    calls: int = 0
    seconds: float = 0.0
    exact: set[tuple[int, ...]] = attrs.field(factory=set)
    trials: dict[SymbolicProgram, Trial] = attrs.field(factory=dict)
    count: int = 0
    tried: int = 0
    warned: bool = False
    requested: bool = False
    many: bool = False
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

    def others(self, program: Program) -> list[Program]:
        """Return the members with other sizes, the newest first."""
        return [m for m in reversed(self.members) if m.dims != program.dims]

    def find(self, shape: Sizes) -> tuple[SymbolicProgram, Executable] | None:
        """Return a program for open sizes that can run `shape`, and its executable for it."""
        for symbolic in list(self.symbolic):
            executable = symbolic.executable_for(shape)
            if executable is not None:
                return symbolic, executable
        return None

    def relate(self, program: Program) -> tuple[tuple[Relation, ...], list[Program]] | None:
        """Return relations that hold for a program and many other members, and these members; None if no other fits.

        Members may be different programs that happen to have one structure. One that does not fit the newer ones
        is left out.
        """
        chosen: list[Program] = []
        relations: tuple[Relation, ...] | int = 0
        own = program.shape
        for other in self.others(program):
            found = fit([own.sizes, *(m.shape.sizes for m in chosen), other.shape.sizes], own.dims)
            if isinstance(found, tuple):
                chosen.append(other)
                relations = found
        return (relations, chosen) if isinstance(relations, tuple) else None


Instrument = Callable[["Program", Executable], Executable]


OWN_SIZES = 2
"""Programs of one structure that the C++ compiler alone compiles, each for its sizes, before Inductor compiles one for
open sizes: a loop over data has its batches and the last one, which is shorter."""

PARTIAL_CALLS = 4
"""Timed calls of code for parts of a program before it may be given up: one may have been disturbed."""


@attrs.define(eq=False)
class Partial:
    """What runs a program while the worker compiles the rest of it.

    Attributes:
        executable: the compiled code that there is; what is missing is interpreted.
        usual: seconds of an interpreted call when the worker is idle; 0: unknown.
        calls: how many of its calls were timed, without the first, which touches code and memory for the first time.
    """

    executable: Executable
    usual: float
    calls: int = -1


@attrs.define(eq=False, slots=False)  # with slots, cached properties bring a `__getattr__`, which slows each read down
class Program:
    """One program: its canonical graph, what runs it today, and what that has cost.

    Attributes:
        executable: what runs it.
        shape: what distinguishes it from the others of its family.
        tier: "interpreted", "compiled", "failed" (the compiler did) or "demoted" (compiled, but slower).
        interpreted_calls, interpreted_seconds, compiled_calls, compiled_seconds: the ledger.
        compile_seconds: spent in the compiler.
        reason: why it is failed or demoted, or stays interpreted whatever it costs.
        symbolic: the program for open sizes that it runs.
        seen: how many of the family's programs for open sizes it was compared with.
        reference: while a compiled program is on trial, its interpreted form, which takes turns with it.
        trial: that trial.
        waiting: the seconds of the last compiled call, until an interpreted one is timed for comparison.
        rival: what lost the last trial, and may win the next one.
        requested: whether the worker is compiling it.
        partial: what runs it meanwhile, once the worker has compiled some of it.
        looked: whether the store was searched for it.
        origin: of the compiled program: "process", "worker" or "cache"; empty: it was never compiled.
        patience: under `settings`, it is not considered again before this many seconds of interpreting.
        usual: seconds of a call in its tier when the worker is idle; 0: unknown.
        library_share: the fraction of an interpreted call that compiling cannot shorten; None: not measured.
        instrument: returns what to run in place of an executable, to measure something; None: nothing is measured.
        earlier: seconds that earlier processes spent interpreting it.
        left_out: operators of torch that are interpreted, because the compiler has no code for them.
        alone: whether the C++ compiler alone compiles it, if it is short.
        settled: the settings under which it is never compiled by itself, because it is too short or nothing is.
        skipped: calls, after the last timed one, that are not timed; their time is in the ledger after the next one.
        untimed: those of them that are still to come.
        forgotten: whether the engine has forgotten it: who runs it has kept it, and others make it anew.
    """

    key: CompileKey
    signature: Signature
    graph: Graph
    executable: Executable
    shape: Sizes
    family: Family
    tier: str = "interpreted"
    interpreted_calls: int = 0
    interpreted_seconds: float = 0.0
    compiled_calls: int = 0
    compiled_seconds: float = 0.0
    compile_seconds: float = 0.0
    reason: str = ""
    interpreted_samples: collections.deque[float] = attrs.field(factory=lambda: collections.deque(maxlen=SAMPLES))
    symbolic: SymbolicProgram | None = None
    seen: int = 0
    reference: Executable | None = None
    trial: Trial | None = None
    waiting: float | None = None
    rival: Rival | None = None
    requested: bool = False
    partial: Partial | None = None
    looked: bool = False
    origin: str = ""
    settings: Config | None = None
    patience: float = 0.0
    usual: float = 0.0
    library_share: float | None = None
    instrument: Instrument | None = None
    earlier: float = 0.0
    left_out: frozenset[str] = frozenset()
    alone: bool = attrs.field(factory=lambda: config.current.native)
    settled: Config | None = None
    skipped: int = 0
    untimed: int = 0
    forgotten: bool = False

    @functools.cached_property
    def communicates(self) -> bool:
        """Whether it has collectives."""
        return communicates(self.graph)

    @functools.cached_property
    def repeatable(self) -> bool:
        """Whether it may run once more, for an audit: other processes and Python functions would notice."""
        return not self.communicates and not has_effects(self.graph)

    @functools.cached_property
    def reinterpreted(self) -> Executable:
        """Its interpreted form, also when it is compiled: for audits and the deterministic mode."""
        return interpreted(self.graph, self.key.strides)

    @functools.cached_property
    def schedule(self) -> Schedule:
        """What is to be compiled of it for its own sizes, and the calls that run it then."""
        key = self.key
        made = Scheduler(key.backend, key.mode, key.threads, self.left_out, self.alone).schedule(
            self.graph, key.strides, key.donated
        )
        threads, *found = artifacts.earlier(self.signature).loops.split() or [""]
        loops = made.contested if found else ()
        if threads == str(key.threads) and len(found) == len(loops):
            for loop, faster in zip(loops, found, strict=True):
                if faster != "-" and loop.choice.first is None:
                    loop.choice.first = faster == "native"
        return made

    @property
    def loops_found(self) -> str:
        """Which form of its loops was faster, as the ledger has it; empty if none was compiled."""
        loops = self.schedule.contested if self.tier == "compiled" and has_calls(self.graph) else ()
        words = [
            ("native" if v.first else "interpreted") if v.lasting else "-" for v in (loop.choice for loop in loops)
        ]
        return " ".join([str(self.key.threads), *words]) if words else ""

    def leave_out(self, operators: frozenset[str]) -> None:
        """Have further operators interpreted."""
        self.left_out |= operators
        self._plan_again()

    def leave_to_inductor(self) -> bool:
        """Have Inductor compile a short program, once it is hot again; returns whether it is one.

        It has no native code after all, or that was slower than interpreting it.
        """
        if not self.alone or not self.short:
            return False
        self.alone = False
        self.tier, self.reason, self.rival, self.settings = "interpreted", "", None, None
        self._plan_again()
        return True

    def _plan_again(self) -> None:
        for name in ("schedule", "native", "short"):
            with contextlib.suppress(AttributeError):
                delattr(self, name)

    @functools.cached_property
    def operators(self) -> frozenset[str]:
        """The operators of torch that it calls by name, those in the bodies of loops and branches included."""
        return called_operators(self.graph)

    @functools.cached_property
    def ops(self) -> int:
        """Its operations, those in the bodies of loops and branches included."""
        return count_operations(self.graph)

    @functools.cached_property
    def native(self) -> bool:
        """Whether all that is to be compiled of it is compiled by the C++ compiler alone: that takes no Inductor."""
        requests = self.schedule.requests
        return bool(requests) and all(request.native for request in requests)

    @functools.cached_property
    def short(self) -> bool:
        """Whether it has no loops, and what is compiled of it is native functions."""
        return self.native and not has_calls(self.graph)

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

    @property
    def structure(self) -> tuple[str, str, str, int]:
        """What it has in common with the programs that differ from it in sizes and scalars only."""
        return self.signature.structural, self.key.backend, self.key.mode, self.key.threads

    @property
    def won(self) -> float:
        """The fraction of an interpreted call that compiling is expected to save."""
        return 1.0 if self.library_share is None else (1.0 - self.library_share) * self._beside_libraries

    @functools.cached_property
    def _beside_libraries(self) -> float:
        return saved_beside_libraries(self.graph)

    @property
    def unmeasured(self) -> bool:
        """Whether it has products that compiling cannot make faster, and nobody knows what they take."""
        if self.library_share is not None or self.device.type != "cpu" or self.trial is not None or self.native:
            return False
        return any(takes_library(node.instr) for node in self.graph.nodes)

    def next_form(self, deterministic: bool) -> tuple[Executable, bool]:
        """Return what runs the next call, and whether that is its compiled form."""
        compiled = self.tier == "compiled"
        if deterministic:
            return (self.reinterpreted if compiled else self.executable), False
        if self.reference is not None and self.waiting is not None:
            return self.reference, False
        if self.partial is not None and not compiled:
            return self.partial.executable, False
        return self.executable, compiled

    def count(self, seconds: float, compiled: bool, untimed: int = 0) -> None:
        """Add a call to the ledger, and the time of others before it that were counted but not timed."""
        total = seconds + untimed * self.usual
        if compiled:
            self.compiled_calls += 1
            self.compiled_seconds += total
        else:
            self.interpreted_calls += 1
            self.interpreted_seconds += total
            self.interpreted_samples.append(seconds)

    def took(self, seconds: float) -> None:
        """Note what an undisturbed call took. Code for parts of it is given up if that makes it slower."""
        partial = self.partial
        if partial is not None:
            partial.calls += 1
            if not partial.calls:
                return
        # fast calls count more: slow ones may have been disturbed by something else
        usual = self.usual
        if not usual:
            self.usual = seconds
        elif seconds < usual:
            self.usual = usual + 0.5 * (seconds - usual)
        else:
            self.usual = usual + 0.1 * min(seconds - usual, 0.2 * usual)
        if partial is not None and partial.calls >= PARTIAL_CALLS and 0.0 < partial.usual < self.usual:
            self.partial, self.usual = None, partial.usual

    def ran(self, seconds: float, compiled: bool) -> None:
        """Note a call at rest, and how many after it need not be timed; see `TIMED`."""
        self.took(seconds)
        self.count(seconds, compiled, self.skipped)
        short = self.usual < SHORT_SECONDS and self.calls >= KNOWN_CALLS
        self.skipped = self.untimed = TIMED - 1 if short else 0

    def count_untimed(self, compiled: bool) -> None:
        """Add a call at rest that was not timed to the ledger."""
        left = self.untimed
        self.untimed = left - 1 if left > 0 else 0  # other threads may have come first
        if compiled:
            self.compiled_calls += 1
        else:
            self.interpreted_calls += 1

    @property
    def seconds(self) -> float:
        """What it has run, in all its forms."""
        return self.interpreted_seconds + self.compiled_seconds

    @property
    def review_due(self) -> bool:
        """Whether the form that lost the last trial may be the faster one by now."""
        rival = self.rival
        if rival is None or self.usual <= rival.seconds:
            return False
        return review_due(self.usual, rival.seconds, self.seconds - rival.spent, rival.trial)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.executable.device

    @property
    def dims(self) -> tuple[int, ...]:
        """The sizes of its inputs."""
        return self.shape.sizes[: self.shape.dims]

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """The sizes that its compiled program leaves open, such as "input 0 dim 0"."""
        if self.symbolic is None:
            return ()
        names = [f"input {k} dim {dim}" for k, a in enumerate(self.graph.avals) for dim in range(len(a.shape))]
        return tuple(name for name, relation in zip(names, self.symbolic.relations, strict=False) if relation.places)

    def figures(self) -> dict[str, Any]:
        """Return what the program has cost, by the names that statistics and the ledger on disk share."""
        return {
            "tier": self.tier,
            "interpreted_calls": self.interpreted_calls,
            "interpreted_seconds": self.interpreted_seconds,
            "compiled_calls": self.compiled_calls,
            "compiled_seconds": self.compiled_seconds,
            "compile_seconds": self.compile_seconds,
        }

    @property
    def calls(self) -> int:
        return self.interpreted_calls + self.compiled_calls

    @property
    def interpreted_call(self) -> float | None:
        """Seconds of an undisturbed interpreted call; None if there was none.

        A quarter of those that were timed took less. Beside other programs on the same cores the threads of a torch
        operation wait for one another, and an interpreted call may take a hundred times as long.
        """
        samples = sorted(self.interpreted_samples)
        return samples[len(samples) // 4] if samples else None

    @property
    def saved_seconds(self) -> float | None:
        """Interpreted minus compiled time of the compiled calls; None if it was never interpreted."""
        call = self.interpreted_call
        return None if call is None else self.compiled_calls * call - self.compiled_seconds

    @property
    def break_even_calls(self) -> int | None:
        """Compiled calls after which the compile is paid back; None if unknown, or if it never is."""
        call = self.interpreted_call
        if call is None or not self.compiled_calls:
            return None
        gain = call - self.compiled_seconds / self.compiled_calls
        return int(self.compile_seconds / gain) + 1 if gain > 0 else None
