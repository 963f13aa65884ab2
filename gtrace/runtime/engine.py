"""The straight line's lower half: a recorded program finds its entry, the entry runs, and now and then it compiles.

The engine knows graphs and torch tensors, never Arrays. A program reaches it in one of two ways: `recorded`, with the
exact key the recorder built (one dict lookup when it was seen before), or `prepare`d once from a graph and then called.
Either way there is one `Entry` per `CompileKey`, shared by all who run that program.
"""

from __future__ import annotations

import collections
import statistics
import threading
import traceback
import warnings
from collections.abc import Callable, Container, Hashable, Sequence
from time import perf_counter

import attrs
import torch

from gtrace.config import config
from gtrace.errors import CompileError, CompileWarning, ExecutionError, user_location
from gtrace.events import CompileFailed, CompileFinished, CompileStarted, Detected, Judged, Ran, Recompiling, bus
from gtrace.ir.aval import Aval, contiguous_strides
from gtrace.ir.graph import Graph, Marks
from gtrace.ir.rewrite import components, stretches
from gtrace.runtime import hot
from gtrace.runtime.canonical import canonicalize
from gtrace.runtime.difference import difference
from gtrace.runtime.inductor import startup_seconds
from gtrace.runtime.interpret import Program, interpreter
from gtrace.runtime.pieces import compile_program
from gtrace.runtime.signature import CompileKey, Signature, sign, toolchain

MAX_ROUTES = 4096
"""Recordings remembered; beyond it the older half is forgotten and found again through its canonical form."""

MAX_ENTRIES = 16384
"""Programs remembered; beyond it those that were never compiled and ran once at most are forgotten."""


LEAST_PART = 8
"""Operations that make an independent part of a recording a program of its own."""


@attrs.define(eq=False)
class Entry:
    """One program: its canonical graph, how it runs today, and what that has cost.

    Attributes:
        tier: "interpreted", "compiled", "failed" (the compiler did) or "demoted" (compiled, but slower).
        interpreted_calls, interpreted_seconds, compiled_calls, compiled_seconds: the ledger.
        compile_seconds: spent in the compiler.
        reference: while a compiled program is on trial, its interpreted self, which takes turns with it.
    """

    key: CompileKey
    signature: Signature
    graph: Graph
    program: Program
    tier: str = "interpreted"
    interpreted_calls: int = 0
    interpreted_seconds: float = 0.0
    compiled_calls: int = 0
    compiled_seconds: float = 0.0
    compile_seconds: float = 0.0
    reason: str = ""
    interpreted_samples: collections.deque[float] = attrs.field(factory=lambda: collections.deque(maxlen=hot.SAMPLES))
    compiled_samples: list[float] = attrs.field(factory=list)
    reference: Program | None = None

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


class Engine:
    """The table of programs. There is one, `engine`; tests make their own."""

    def __init__(self) -> None:
        self.recordings: dict[Hashable, Recording] = {}
        self.entries: dict[CompileKey, Entry] = {}
        self.cost = hot.CostModel(startup=startup_seconds())
        self.compiles = 0
        self._families: dict[tuple[str, str, str], Entry] = {}
        self._ledger = threading.Lock()
        self._compiling = threading.RLock()

    def recorded(
        self,
        key: Hashable,
        scalars: tuple[bool | int | float, ...],
        decode: Callable[[Container[int]], tuple[Graph, Sequence[tuple[int, ...]]]],
        tensors: Sequence[torch.Tensor],
        marks: Marks = (),
    ) -> list[torch.Tensor]:
        """Run the program with exact key `key`, which says all but the values of its `scalars`, on `tensors`.

        Args:
            decode: from the scalars that are to be inputs to the graph, with these as last inputs, and the strides.
            marks: the regions of the program.
        """
        recording = self.recordings.get(key)
        if recording is None or not recording.fits(scalars):
            recording = self._recording(key, recording, scalars, decode, marks)
        if recording.holes:
            numbers = [torch.tensor(scalars[k], dtype=a.dtype, device=a.device) for k, a in recording.holes.items()]
            tensors = [*tensors, *numbers]
        if recording.route is not None:
            return self.call(recording.route, tensors)
        env = dict(zip(recording.inputs, tensors, strict=True))
        given = set(recording.inputs)
        for part in recording.parts:
            # a part is made for dense values of the parts before it, however those laid them out
            values = [env[v] if v in given else env[v].contiguous() for v in part.ins]
            env.update(zip(part.outs, self.call(part.route, values), strict=True))
        return [env[v] for v in recording.outputs]

    def _recording(
        self,
        key: Hashable,
        known: Recording | None,
        scalars: tuple[bool | int | float, ...],
        decode: Callable[[Container[int]], tuple[Graph, Sequence[tuple[int, ...]]]],
        marks: Marks,
    ) -> Recording:
        """Return the recording of a program that is new, or whose constants have changed.

        A scalar is a constant of the program until its value changes: then it becomes an input. The second time that
        happens all of them do, so that a program has three forms at most.
        """
        holes: Container[int] = ()
        if known is not None:
            holes = known.changed(scalars) if not known.holes else range(len(scalars))
        graph, strides = decode(holes)
        opened = [k for k in range(len(scalars)) if k in holes]
        avals = graph.avals[len(graph.avals) - len(opened) :]
        parts = self._parts(graph, strides, marks)
        made = Recording(
            self.prepare(graph, strides) if parts is None else None,
            parts or (),
            graph.inputs,
            graph.outputs,
            dict(zip(opened, avals, strict=True)),
            tuple((k, x) for k, x in enumerate(scalars) if k not in holes),
        )
        if len(self.recordings) >= MAX_ROUTES:
            for old in list(self.recordings)[: MAX_ROUTES // 2]:
                self.recordings.pop(old, None)
        self.recordings[key] = made
        return made

    def _parts(self, graph: Graph, strides: Sequence[tuple[int, ...]], marks: Marks) -> tuple[Part, ...] | None:
        """Return the parts of a program, each hot, or not, by itself; None if it is one.

        Regions with a mode are parts and are compiled at once, with it. What else is independent is taken apart too.
        """
        regions = stretches(graph, marks) if any(r is not None and r.mode for _, r in marks) else [(graph, None)]
        pieces = [
            (piece, region)
            for whole, region in regions
            for piece in (components(whole, LEAST_PART) if region is None else [whole])
        ]
        if len(pieces) == 1 and pieces[0][1] is None:
            return None
        known = dict(zip(graph.inputs, strides, strict=True))
        parts = []
        for piece, region in pieces:
            own = [known.get(v, contiguous_strides(a.shape)) for v, a in zip(piece.inputs, piece.avals, strict=True)]
            outs = tuple(dict.fromkeys(piece.outputs))
            single = Graph(piece.inputs, piece.avals, piece.nodes, outs)
            mode = "default" if region is None or region.mode is None else region.mode
            route = self.prepare(single, own, mode=mode)
            if region is not None and route.entry is not None:
                self.compile(route.entry)
            parts.append(Part(route, piece.inputs, outs))
        return tuple(parts)

    def prepare(
        self, graph: Graph, strides: Sequence[tuple[int, ...]], backend: str = "inductor", mode: str = "default"
    ) -> Route:
        """Return the route of `graph`, called with inputs of these strides, to its entry."""
        canonical = canonicalize(graph)
        if not canonical.graph.nodes:
            return Route(None, (), canonical.outputs)
        signature = sign(canonical.graph)
        used = tuple(tuple(strides[k]) for k in canonical.inputs)
        key = CompileKey(signature.exact, used, backend, mode, toolchain())
        entry = self.entries.get(key)
        if entry is None:
            if len(self.entries) >= MAX_ENTRIES:
                for old, candidate in list(self.entries.items()):
                    if candidate.tier == "interpreted" and candidate.calls <= 1:
                        self.entries.pop(old, None)
            new = Entry(key, signature, canonical.graph, interpreter(canonical.graph))
            entry = self.entries.setdefault(key, new)
        straight = canonical.inputs == tuple(range(len(graph.inputs)))
        direct = canonical.outputs == tuple(range(len(canonical.graph.outputs)))
        return Route(entry, canonical.inputs, canonical.outputs, straight, direct)

    def call(self, route: Route, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run a route on the recorded inputs; returns the recorded outputs.

        Raises:
            ExecutionError: torch refused an operation because of the values.
        """
        entry = route.entry
        if entry is None:
            return [tensors[-1 - k] for k in route.outputs]
        results = self.run(entry, tensors if route.straight else [tensors[k] for k in route.inputs])
        return results if route.direct else [results[k] if k >= 0 else tensors[-1 - k] for k in route.outputs]

    def run(self, entry: Entry, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run an entry on its inputs, in its current tier, and keep the ledger."""
        if entry.tier == "interpreted":
            self._consider(entry)
        program, compiled = entry.program, entry.tier == "compiled"
        reference = entry.reference
        if reference is not None and len(entry.interpreted_samples) < len(entry.compiled_samples):
            program, compiled = reference, False
        start = perf_counter()
        try:
            results = program(tensors)
        except (RuntimeError, IndexError) as error:
            if isinstance(error, ExecutionError):
                raise
            reason = str(error).strip().split("\n")[0]
            raise ExecutionError(
                f"[program {entry.signature}] expected values that its operations take, got a refusal from torch:"
                f" {reason}. GT_EAGER=1 shows the operation and the line."
            ) from error
        seconds = perf_counter() - start
        with self._ledger:
            if compiled:
                entry.compiled_calls += 1
                entry.compiled_seconds += seconds
                if entry.reference is not None:
                    entry.compiled_samples.append(seconds)
                    self._judge(entry)
            else:
                entry.interpreted_calls += 1
                entry.interpreted_seconds += seconds
                entry.interpreted_samples.append(seconds)
        if Ran in bus.wanted:
            bus.emit(Ran(str(entry.signature), "compiled" if compiled else "interpreted", seconds))
        return results

    def _consider(self, entry: Entry) -> None:
        settings = config.current
        ops = len(entry.graph.nodes)
        policy = hot.Policy(settings.auto_compile, settings.compile, settings.hot_threshold, settings.min_seq)
        # the call about to happen counts: from the threshold-th repetition on a program is hot
        history = hot.History(ops, entry.interpreted_calls + 1, entry.interpreted_seconds)
        if hot.decide(history, policy, self.cost.predict(ops)) is not hot.Decision.COMPILE:
            return
        if Detected in bus.wanted and not settings.compile:
            names = tuple(node.op.name for node in entry.graph.nodes)
            bus.emit(Detected(str(entry.signature), names, entry.interpreted_calls + 1, entry.interpreted_seconds))
        self.compile(entry)

    def compile(self, entry: Entry) -> None:
        """Compile an entry now, in this thread, unless it was tried before. A failure warns once and is final."""
        with self._compiling:
            if entry.tier != "interpreted":
                return
            ops = len(entry.graph.nodes)
            family = entry.signature.structural, entry.key.backend, entry.key.mode
            sibling = self._families.get(family)
            if sibling is not None and Recompiling in bus.wanted:
                change = difference(sibling.graph, entry.graph, sibling.key.strides, entry.key.strides)
                bus.emit(Recompiling(str(entry.signature), change))
            bus.emit(CompileStarted(str(entry.signature), ops))
            start = perf_counter()
            try:
                program = compile_program(entry.graph, entry.key.strides, entry.key.backend, entry.key.mode)
            except CompileError as error:
                entry.compile_seconds = perf_counter() - start
                entry.reason = str(error)
                entry.tier = "failed"
                bus.emit(CompileFailed(str(entry.signature), entry.reason, traceback.format_exc()))
                _warn(
                    f"compiling {entry.signature} failed, interpreting instead: {entry.reason}"
                    " (GT_DEBUG_COMPILE=2 for the traceback)"
                )
                return
            entry.compile_seconds = perf_counter() - start
            self.cost.learn(ops, entry.compile_seconds)
            self.compiles += 1
            self.adopt(entry, program)
            self._families[family] = entry
            bus.emit(CompileFinished(str(entry.signature), entry.compile_seconds))

    def adopt(self, entry: Entry, program: Program) -> None:
        """Run `entry` as the compiled `program` from now on.

        If it was interpreted before, the two take turns until enough calls of each were timed: the machine may be
        busier now than it was then, so that only times taken side by side say which is faster.
        """
        if entry.interpreted_samples:
            entry.reference = entry.program
            entry.interpreted_samples.clear()
        entry.program = program
        entry.tier = "compiled"

    def _judge(self, entry: Entry) -> None:
        """Compare tiers once enough calls were timed; a compiled program that is slower is interpreted again."""
        speedup = hot.judge(entry.interpreted_samples, entry.compiled_samples)
        if speedup is None:
            return
        reference, entry.reference = entry.reference, None
        before = statistics.median(entry.interpreted_samples)
        if speedup < 1.0:
            assert reference is not None
            entry.program = reference
            entry.tier = "demoted"
            entry.reason = f"compiled {before / speedup * 1e3:.2f} ms, interpreted {before * 1e3:.2f} ms"
        bus.emit(Judged(str(entry.signature), before, before / speedup, speedup < 1.0))


def _warn(text: str) -> None:
    name, _, line = user_location().rpartition(":")
    warnings.warn_explicit(text, CompileWarning, name, int(line))


engine = Engine()
"""The engine that every Array is forced through."""
