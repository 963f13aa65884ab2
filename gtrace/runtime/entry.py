"""What the engine keeps of a program: how it runs today, what that has cost, and its family; and the ways to it."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Hashable

import attrs

from gtrace.config import Config
from gtrace.ir.aval import Aval
from gtrace.ir.graph import Graph
from gtrace.runtime import hot
from gtrace.runtime.general import General, Relation, Shape, fit
from gtrace.runtime.interpret import Program
from gtrace.runtime.signature import CompileKey, Signature
from gtrace.runtime.toolchain import toolchain
from gtrace.runtime.unit import digest

MAX_EXAMPLES = 8
"""Members of a family that relations are fitted to."""


@attrs.define(eq=False)
class Trial:
    """A compiled program timed beside its interpreted self: a call of the one, then a call of the other.

    Attributes:
        entries: those that run it.
        pairs: (interpreted, compiled) seconds of two calls with the same sizes.
    """

    entries: list[Entry] = attrs.field(factory=list)
    pairs: list[tuple[float, float]] = attrs.field(factory=list)


@attrs.define(eq=False)
class Family:
    """The programs of one structure, which differ in integers and scalars only, for inputs of one layout.

    Attributes:
        key: the structure, the layouts, the backend and the mode.
        closed: why nothing is compiled for open sizes; empty: it may be.
        members: the latest of each combination of input sizes.
        general: programs for open sizes.
        calls, seconds: interpreting its members, since something was last compiled.
        exact: the input sizes of programs that were compiled for just these.
        trials: the trial of each general program that is on one.
        tried: members there were when no relations could be found.
        warned: whether the user was told that sizes are interpreted.
        requested: whether the worker is compiling a general program.
    """

    key: Hashable
    closed: str = ""
    members: list[Entry] = attrs.field(factory=list)
    general: list[General] = attrs.field(factory=list)
    calls: int = 0
    seconds: float = 0.0
    exact: set[tuple[int, ...]] = attrs.field(factory=set)
    trials: dict[General, Trial] = attrs.field(factory=dict)
    count: int = 0
    tried: int = 0
    warned: bool = False
    requested: bool = False
    _name: str = ""

    @property
    def name(self) -> str:
        """A digest of the structure, and of what compiled programs depend on beside it."""
        if not self._name:
            self._name = digest(repr(self.key), *(f"{k}: {v}" for k, v in toolchain().items()))
        return self._name

    def add(self, entry: Entry) -> None:
        """Add a member."""
        self.count += 1
        self.members = [*[e for e in self.members if e.dims != entry.dims][1 - MAX_EXAMPLES :], entry]

    def others(self, entry: Entry) -> list[Entry]:
        """Return the members with other sizes, the newest first."""
        return [e for e in reversed(self.members) if e.dims != entry.dims]

    def find(self, shape: Shape) -> General | None:
        """Return a general program that fits."""
        return next((g for g in self.general if g.fits(shape)), None)

    def relate(self, entry: Entry) -> tuple[tuple[Relation, ...], list[Entry]] | None:
        """Return relations that hold of an entry and of as many others as possible, and these; None if of no other.

        Members may be different programs that happen to have one structure: those that fit in with newer ones count.
        """
        chosen: list[Entry] = []
        relations: tuple[Relation, ...] | int = 0
        for other in self.others(entry):
            found = fit([entry.shape.sizes, *(e.shape.sizes for e in chosen), other.shape.sizes], entry.shape.dims)
            if isinstance(found, tuple):
                chosen.append(other)
                relations = found
        return (relations, chosen) if isinstance(relations, tuple) else None


@attrs.define(eq=False)
class Entry:
    """One program: its canonical graph, how it runs today, and what that has cost.

    Attributes:
        tier: "interpreted", "compiled", "failed" (the compiler did) or "demoted" (compiled, but slower).
        interpreted_calls, interpreted_seconds, compiled_calls, compiled_seconds: the ledger.
        compile_seconds: spent in the compiler.
        reason: why it is failed or demoted, or stays interpreted whatever it costs.
        shape: what tells it from the others of its family.
        general: the program for open sizes that it runs.
        seen: general programs of the family that it was compared with.
        reference: while a compiled program is on trial, its interpreted self, which takes turns with it.
        trial: that trial.
        waiting: the seconds of a compiled call that an interpreted one is to be set beside.
        requested: whether the worker is compiling it.
        looked: whether it was looked for among what earlier processes compiled.
        origin: of the compiled program: "process", "worker" or "cache".
        audited: its interpreted self, for audits.
        patience: seconds of interpreting below which, under `settings`, it is known to wait.
    """

    key: CompileKey
    signature: Signature
    graph: Graph
    program: Program
    shape: Shape
    family: Family
    tier: str = "interpreted"
    interpreted_calls: int = 0
    interpreted_seconds: float = 0.0
    compiled_calls: int = 0
    compiled_seconds: float = 0.0
    compile_seconds: float = 0.0
    reason: str = ""
    interpreted_samples: collections.deque[float] = attrs.field(factory=lambda: collections.deque(maxlen=hot.SAMPLES))
    general: General | None = None
    seen: int = 0
    reference: Program | None = None
    trial: Trial | None = None
    waiting: float | None = None
    requested: bool = False
    looked: bool = False
    origin: str = ""
    audited: Program | None = None
    settings: Config | None = None
    patience: float = 0.0

    @property
    def dims(self) -> tuple[int, ...]:
        """The sizes of its inputs."""
        return self.shape.sizes[: self.shape.dims]

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """The sizes that its compiled program leaves open, such as "input 0 dim 0"."""
        if self.general is None:
            return ()
        names = [f"input {k} dim {dim}" for k, a in enumerate(self.graph.avals) for dim in range(len(a.shape))]
        return tuple(name for name, relation in zip(names, self.general.relations, strict=False) if relation.places)

    @property
    def calls(self) -> int:
        return self.interpreted_calls + self.compiled_calls

    @property
    def saved_seconds(self) -> float | None:
        """Interpreted minus compiled time of the compiled calls; None if it was never interpreted."""
        if not self.interpreted_samples:
            return None
        return self.compiled_calls * statistics.median(self.interpreted_samples) - self.compiled_seconds

    @property
    def break_even_calls(self) -> int | None:
        """Compiled calls after which the compile is paid back; None if unknown, or if it never is."""
        if not self.interpreted_samples or not self.compiled_calls:
            return None
        gain = statistics.median(self.interpreted_samples) - self.compiled_seconds / self.compiled_calls
        return int(self.compile_seconds / gain) + 1 if gain > 0 else None


@attrs.frozen
class Route:
    """The way from a program as recorded to its entry and back.

    Attributes:
        entry: None when nothing is left to compute.
        inputs: entry input k is recorded input ``inputs[k]``.
        outputs: recorded output j is entry output ``outputs[j]``, or recorded input ``-1 - outputs[j]``.
        straight, direct: the inputs, the outputs, are passed on as they are.
    """

    entry: Entry | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    straight: bool = False
    direct: bool = False


@attrs.frozen(eq=False)
class Part:
    """A part of a recorded program: its route, and the values it takes and gives."""

    route: Route
    ins: tuple[int, ...]
    outs: tuple[int, ...]


@attrs.frozen(eq=False)
class Recording:
    """What is known of a program as the recorder describes it.

    Attributes:
        route: to its program; None if it falls into several.
        parts: these, in the order in which they run.
        inputs, outputs: the values that the whole takes and gives.
        holes: the scalars that are inputs, by their place among all, with their avals.
        constants: the other scalars, (place, value), as they were when the route was made.
    """

    route: Route | None
    parts: tuple[Part, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    holes: dict[int, Aval]
    constants: tuple[tuple[int, bool | int | float], ...]
    values: tuple[bool | int | float, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(x for _, x in self.constants))

    def fits(self, scalars: tuple[bool | int | float, ...]) -> bool:
        """Whether the constants are still what they were."""
        if not self.holes:
            return scalars == self.values
        return tuple([x for k, x in enumerate(scalars) if k not in self.holes]) == self.values

    def changed(self, scalars: tuple[bool | int | float, ...]) -> set[int]:
        """Return the constants that have another value now."""
        return {k for k, x in self.constants if scalars[k] != x}
