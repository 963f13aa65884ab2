"""The straight line's lower half: a recorded program finds its entry, the entry runs, and now and then it compiles.

The engine knows graphs and torch tensors, never Arrays. A program reaches it in one of two ways: `recorded`, with the
exact key the recorder built (one dict lookup when it was seen before), or `prepare`d once from a graph and then called.
Either way there is one `Entry` per `CompileKey`, shared by all who run that program.
"""

from __future__ import annotations

import atexit
import random
from collections.abc import Callable, Container, Hashable, Sequence
from time import perf_counter

import torch

from gtrace.config import config
from gtrace.errors import ExecutionError
from gtrace.events import Ran, bus
from gtrace.ir.aval import contiguous_strides
from gtrace.ir.calls import has_calls
from gtrace.ir.graph import Graph, Marks, skeleton
from gtrace.ir.rewrite import components, stretches
from gtrace.runtime.background import background, beside_worker
from gtrace.runtime.canonical import canonicalize
from gtrace.runtime.entry import Entry, Family, Part, Recording, Route
from gtrace.runtime.general import layout, shape_of
from gtrace.runtime.interpret import interpreter
from gtrace.runtime.pieces import MAX_OPS
from gtrace.runtime.signature import CompileKey, Signature, sign
from gtrace.runtime.tiers import Tiers

MAX_ROUTES = 4096
"""Recordings remembered; beyond it the older half is forgotten and found again through its canonical form."""

MAX_ENTRIES = 16384
"""Programs remembered; beyond it those that were never compiled and ran once at most are forgotten."""

LEAST_PART = 8
"""Operations that make an independent part of a recording a program of its own."""


class Engine(Tiers):
    """The table of programs. There is one, `engine`; tests make their own."""

    def __init__(self) -> None:
        super().__init__()
        self.recordings: dict[Hashable, Recording] = {}
        self._families: dict[Hashable, Family] = {}
        self._changing: dict[Hashable, Container[int]] = {}

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
        key = CompileKey(signature.exact, used, backend, mode)
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
            structure = bones, layouts, key.backend, key.mode
            family = self._families.setdefault(structure, Family(structure, closed))
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
        waits = entry.tier == "interpreted" and self.consider(entry)
        program, compiled = entry.program, entry.tier == "compiled"
        reference = entry.reference
        if reference is not None and entry.waiting is not None:
            program, compiled = reference, False
        start = perf_counter()
        try:
            results = beside_worker(program, tensors) if background.pending else program(tensors)
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
                    self.judge(entry.trial)
        if compiled and config.current.audit and random.random() < config.current.audit:
            results = self.audit(entry, tensors, results)
        if Ran in bus.wanted:
            bus.emit(Ran(str(entry.signature), "compiled" if compiled else "interpreted", seconds))
        return results


engine = Engine()
"""The engine that every Array is forced through."""

atexit.register(engine.save_ledger)
