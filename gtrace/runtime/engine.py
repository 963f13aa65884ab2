"""The straight line's lower half: a recorded program finds its entry, the entry runs, and now and then it compiles.

The engine knows graphs and torch tensors, never Arrays. A program reaches it in one of two ways: `recorded`, with the
exact key the recorder built (one dict lookup when it was seen before), or `prepare`d once from a graph and then called.
Either way there is one `Entry` per `CompileKey`, shared by all who run that program.
"""

from __future__ import annotations

import statistics
import threading
import traceback
import warnings
from collections.abc import Callable, Container, Hashable, Sequence
from time import perf_counter

import torch

from gtrace.config import config
from gtrace.errors import CompileError, CompileWarning, ExecutionError, user_location
from gtrace.events import CompileFailed, CompileFinished, CompileStarted, Detected, Judged, Ran, Recompiling, bus
from gtrace.ir.aval import contiguous_strides
from gtrace.ir.calls import has_calls
from gtrace.ir.graph import Graph, Marks, skeleton
from gtrace.ir.rewrite import components, stretches
from gtrace.runtime import hot
from gtrace.runtime.canonical import canonicalize
from gtrace.runtime.difference import difference
from gtrace.runtime.entry import Entry, Family, Part, Recording, Route, Trial
from gtrace.runtime.general import General, layout, open_scalars, shape_of
from gtrace.runtime.inductor import compile_general, startup_seconds
from gtrace.runtime.interpret import Program, interpreter
from gtrace.runtime.pieces import MAX_OPS, compile_program
from gtrace.runtime.signature import CompileKey, Signature, sign, toolchain

MAX_ROUTES = 4096
"""Recordings remembered; beyond it the older half is forgotten and found again through its canonical form."""

MAX_ENTRIES = 16384
"""Programs remembered; beyond it those that were never compiled and ran once at most are forgotten."""


MAX_VERSIONS = 8
"""Programs of one structure that are compiled for different sizes of their inputs."""

LEAST_PART = 8
"""Operations that make an independent part of a recording a program of its own."""


class Engine:
    """The table of programs. There is one, `engine`; tests make their own."""

    def __init__(self) -> None:
        self.recordings: dict[Hashable, Recording] = {}
        self.entries: dict[CompileKey, Entry] = {}
        self.cost = hot.CostModel(startup=startup_seconds())
        self.compiles = 0
        self._families: dict[Hashable, Family] = {}
        self._latest: dict[tuple[str, str, str], Entry] = {}
        self._changing: dict[Hashable, Container[int]] = {}
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

        A scalar is a constant of the program until its value changes: then it becomes an input, for other sizes of the
        inputs too. The second time that happens all of them do, so that a program has three forms at most.
        """
        graph, strides = decode(())
        if scalars:
            bones, _ = skeleton(graph)
            holes: Container[int] = self._changing.get(bones, ())
            if known is not None:
                holes = known.changed(scalars) if not known.holes else range(len(scalars))
                if len(self._changing) >= MAX_ROUTES:
                    self._changing.clear()
                self._changing[bones] = holes
            if holes:
                graph, strides = decode(holes)
        else:
            holes = ()
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
            entry = self._add(key, signature, canonical.graph)
        straight = canonical.inputs == tuple(range(len(graph.inputs)))
        direct = canonical.outputs == tuple(range(len(canonical.graph.outputs)))
        return Route(entry, canonical.inputs, canonical.outputs, straight, direct)

    def _add(self, key: CompileKey, signature: Signature, graph: Graph) -> Entry:
        """Return the entry of a program that has none yet."""
        with self._ledger:
            if len(self.entries) >= MAX_ENTRIES:
                for old, candidate in list(self.entries.items()):
                    if candidate.tier == "interpreted" and candidate.calls <= 1:
                        self.entries.pop(old, None)
                kept = {id(candidate.family) for candidate in self.entries.values()}
                self._families = {k: family for k, family in self._families.items() if id(family) in kept}
            bones, shape = shape_of(graph)
            orders = tuple(layout(a.shape, stride) for a, stride in zip(graph.avals, key.strides, strict=True))
            closed = ""
            if None in orders:
                closed = "its inputs are not dense"
            elif has_calls(graph):
                closed = "it has loops or branches"
            elif len(graph.nodes) > MAX_OPS:
                closed = f"it has more than {MAX_OPS} operations"
            elif key.backend != "inductor":
                closed = f"backend {key.backend} is given one size at a time"
            layouts = key.strides if None in orders else orders
            family = self._families.setdefault((bones, layouts, key.backend, key.mode), Family(closed))
            entry = self.entries.setdefault(key, Entry(key, signature, graph, interpreter(graph), shape, family))
            family.add(entry)
            return entry

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
        waits = entry.tier == "interpreted" and self._consider(entry)
        program, compiled = entry.program, entry.tier == "compiled"
        reference = entry.reference
        if reference is not None and entry.waiting is not None:
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
                    entry.waiting = seconds
            else:
                entry.interpreted_calls += 1
                entry.interpreted_seconds += seconds
                entry.interpreted_samples.append(seconds)
                if waits:
                    entry.family.calls += 1
                    entry.family.seconds += seconds
                elif entry.waiting is not None and entry.trial is not None:
                    entry.trial.pairs.append((seconds, entry.waiting))
                    entry.waiting = None
                    self._judge(entry.trial)
        if Ran in bus.wanted:
            bus.emit(Ran(str(entry.signature), "compiled" if compiled else "interpreted", seconds))
        return results

    def _consider(self, entry: Entry) -> bool:
        """Compile an entry whose interpretation has cost as much as compiling it should; whether it is to wait."""
        settings = config.current
        policy = hot.Policy(settings.auto_compile, settings.compile, settings.hot_threshold, settings.min_seq)
        family, ops = entry.family, len(entry.graph.nodes)
        expected = self.cost.predict(ops)
        # the call about to happen counts: from the threshold-th repetition on a program is hot
        own = hot.decide(hot.History(ops, entry.interpreted_calls + 1, entry.interpreted_seconds), policy, expected)
        if own is hot.Decision.NEVER or entry.reason:
            return False
        if entry.seen != len(family.general):
            entry.seen = len(family.general)
            if self._join(entry):
                return False
        calls, seconds = entry.interpreted_calls + 1, entry.interpreted_seconds
        if own is hot.Decision.WAIT:
            # each size may be rare, and all together frequent
            if family.closed or family.tried == family.count or not family.others(entry):
                return True
            calls, seconds = family.calls + 1, family.seconds
            if hot.decide(hot.History(ops, calls, seconds), policy, expected) is not hot.Decision.COMPILE:
                return True
            if family.relate(entry) is None:
                family.tried = family.count
                return True
        if Detected in bus.wanted and not settings.compile:
            names = tuple(node.op.name for node in entry.graph.nodes)
            bus.emit(Detected(str(entry.signature), names, calls, seconds))
        self.compile(entry)
        return False

    def compile(self, entry: Entry) -> None:
        """Compile an entry now, in this thread, unless it was tried before. A failure warns once and is final.

        If others of its family have other sizes, the program is compiled for all of them, and later ones run it too.
        """
        with self._compiling:
            if entry.tier != "interpreted" or entry.reason or self._join(entry) or self._refuse(entry):
                return
            ops = len(entry.graph.nodes)
            family = entry.family
            structure = entry.signature.structural, entry.key.backend, entry.key.mode
            latest = self._latest.get(structure)
            if latest is not None and Recompiling in bus.wanted:
                change = difference(latest.graph, entry.graph, latest.key.strides, entry.key.strides)
                bus.emit(Recompiling(str(entry.signature), change))
            bus.emit(CompileStarted(str(entry.signature), ops))
            start = perf_counter()
            try:
                program = self._generalize(entry)
                if program is None:
                    family.exact.add(entry.dims)
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
            family.calls, family.seconds = 0, 0.0
            self._latest[structure] = entry
            self.adopt(entry, program)
            bus.emit(CompileFinished(str(entry.signature), entry.compile_seconds))

    def _join(self, entry: Entry) -> bool:
        """Let an entry run a general program of its family, if one fits."""
        general = entry.family.find(entry.shape)
        if general is None:
            return False
        entry.general = general
        self.adopt(entry, general.bind(entry.shape))
        return True

    def _refuse(self, entry: Entry) -> bool:
        """Let an entry stay interpreted if it computes nothing or would be one version too many."""
        family = entry.family
        others = family.others(entry)
        if 0 in entry.dims and others:
            entry.reason = "a size is 0: there is nothing to compute"
            return True
        if len(family.exact) + len(family.general) < MAX_VERSIONS or entry.dims in family.exact or not others:
            return False
        change = difference(others[0].graph, entry.graph, (), ())
        why = f" ({family.closed})" if family.closed else ""
        entry.reason = f"compiled for {MAX_VERSIONS} other sizes already"
        if not family.warned:
            family.warned = True
            _warn(
                f"program {entry.signature} was compiled for {MAX_VERSIONS} sizes, none of which fits: {change}. It"
                f" could not be compiled for every size{why}, and is interpreted for further ones. Pad that dimension"
                " to a few sizes, or make the integers that follow from it simple functions of it."
            )
        return True

    def _generalize(self, entry: Entry) -> Program | None:
        """Return a program compiled for open sizes, bound to an entry; None if there is nothing to open, or no way.

        Raises:
            CompileError: the compiler failed.
        """
        family = entry.family
        if family.closed or not family.others(entry):
            return None
        related = family.relate(entry)
        if related is None:
            family.tried = family.count
            return None
        relations, examples = related
        if any(r.places and n < 2 for r, n in zip(relations, entry.dims, strict=False)):
            return None
        shapes = [entry.shape, *(e.shape for e in examples)]
        columns = list(zip(*(shape.scalars for shape in shapes), strict=True))
        constants = tuple(column[0] if len(set(column)) == 1 else None for column in columns)
        opened = [k for k, x in enumerate(constants) if x is None]
        graph = open_scalars(entry.graph, opened)
        strides = (*entry.key.strides, *[()] * len(opened))
        try:
            program, holds = compile_general(graph, strides, entry.key.mode, relations)
        except CompileError as error:
            # it may well compile for one size
            family.closed = str(error)
            bus.emit(CompileFailed(str(entry.signature), f"for open sizes: {family.closed}", traceback.format_exc()))
            return None
        general = General(program, relations, constants, holds)
        if not general.fits(entry.shape):
            family.closed = "its code depends on the sizes"
            return None
        family.general.append(general)
        if entry.interpreted_samples:
            family.trials[general] = Trial()
        entry.general = general
        return general.bind(entry.shape)

    def adopt(self, entry: Entry, program: Program) -> None:
        """Run `entry` as the compiled `program` from now on.

        If it was interpreted before, the two take turns until enough calls of each were timed: the machine may be
        busier now than it was then, so that only times taken side by side say which is faster. Programs that share
        compiled code are judged together.
        """
        trial = Trial() if entry.interpreted_samples else None
        if entry.general is not None:
            trial = entry.family.trials.get(entry.general)
        if trial is not None:
            trial.entries.append(entry)
            entry.trial, entry.reference = trial, entry.program
            entry.interpreted_samples.clear()
        entry.program = program
        entry.tier = "compiled"

    def _judge(self, trial: Trial) -> None:
        """Compare tiers once enough calls were timed; a compiled program that is slower is interpreted again."""
        speedup = hot.judge(trial.pairs)
        if speedup is None:
            return
        before = statistics.median(interpreted for interpreted, _ in trial.pairs)
        for entry in trial.entries:
            reference, entry.reference, entry.trial, entry.waiting = entry.reference, None, None, None
            if speedup < 1.0:
                assert reference is not None
                entry.program, entry.tier = reference, "demoted"
                entry.reason = f"compiled {before / speedup * 1e3:.2f} ms, interpreted {before * 1e3:.2f} ms"
        first = trial.entries[0]
        if first.general is not None:
            first.family.trials.pop(first.general)
            if speedup < 1.0:
                first.family.general.remove(first.general)
                first.family.closed = f"for open sizes it is slower: {first.reason}"
        bus.emit(Judged(str(first.signature), before, before / speedup, speedup < 1.0))


def _warn(text: str) -> None:
    name, _, line = user_location().rpartition(":")
    warnings.warn_explicit(text, CompileWarning, name, int(line))


engine = Engine()
"""The engine that every Array is forced through."""
