"""The engine: finds the program of what was recorded, runs it, and has it compiled when that pays.

The engine knows graphs and torch tensors, never Arrays. A program reaches it in one of two ways. A recorded one comes
with the exact key that the recorder built; a known key is one lookup. A graph is prepared once (`prepare`), and called
from then on. Either way there is one `Program` for a `CompileKey`, and all who run that program share it.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable, Collection, Hashable, Sequence
from time import perf_counter
from typing import Any

import attrs
import torch
from torch import get_num_threads

from gtrace.core.backends.interpreter.interpreter import Owned
from gtrace.core.backends.interpreter.run_errors import REFUSALS, refuse
from gtrace.core.backends.scheduler import Scheduler
from gtrace.core.backends.symbolic import SymbolicSizes, shape_of
from gtrace.core.base.bounded_tables import SMALL, BoundedTable
from gtrace.core.base.config import config
from gtrace.core.base.events import Canonicalized, Ran, bus
from gtrace.core.base.mechanisms import LIFTED_SCALARS, REPEATED_PARTS
from gtrace.core.base.torch_internals import profiler_enabled
from gtrace.core.base.torch_modes import no_modes, quiet, without_modes
from gtrace.core.ir.aliasing import given_away
from gtrace.core.ir.graph import Graph, skeleton
from gtrace.core.ir.signature import CompileKey, Signature, sign
from gtrace.core.partitioner.partition import find_meshes, has_placements
from gtrace.core.passes.draws import has_draws
from gtrace.core.passes.repeats import cut_repeats
from gtrace.core.passes.split import components, grouped_components, split_regions
from gtrace.core.passes.user_passes import Passes, registered, rewritten
from gtrace.core.passes.whole_program import SIMPLIFIED, is_divided, spelled_out
from gtrace.core.runtime.comparisons import Comparisons, obstacle
from gtrace.core.runtime.first_calls import NewSizes
from gtrace.core.runtime.instruments import Instrument
from gtrace.core.runtime.lifted_scalars import Groups, changed_since, scalar_inputs
from gtrace.core.runtime.loop_blocks import LoopBlocks
from gtrace.core.runtime.measurements import save_ledger
from gtrace.core.runtime.observed_calls import ObservedCalls
from gtrace.core.runtime.open_parts import Cuts
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.programs import MAX_PROGRAMS, PER_ENTRY, CanonicalForms, ProgramTable, new_program
from gtrace.core.runtime.routes import DEFAULT, New, Parts, RecordedTrace, Recording, Route, Strides, Target, sequence
from gtrace.core.runtime.sharded import AgreedCalls, Gathers, localize, placed
from gtrace.core.runtime.tier_controller import TierController
from gtrace.core.runtime.worker.client import worker

LEAST_PART = 8
"""Operations, at least, of an independent part of a recording that becomes a program of its own."""


class Engine:
    """The table of programs. There is one, `engine`; tests make their own.

    Attributes:
        recordings: by exact key.
        programs: by what their compiled form depends on.
        forms: canonical forms.
        tiering, comparisons: move programs between tiers, and compare their calls with what was recorded.
        cuts: where programs are cut whose sizes vary.
        gathers: makes whole arrays of parts.
        observed: makes calls about which there is something to decide, or which somebody measures or watches.
    """

    def __init__(self) -> None:
        self.recordings: BoundedTable[Hashable, Recording] = BoundedTable(
            MAX_PROGRAMS, lambda found: SMALL + PER_ENTRY * found.operations, lambda found: found.route.stale
        )
        self.programs = ProgramTable()
        self.tiering = TierController(self.programs)
        self.comparisons = Comparisons(self.tiering.judging)
        blocks = LoopBlocks(self.cut, self._call, self.comparisons)
        self.observed = ObservedCalls(self.tiering, self.comparisons, blocks)
        self.sizes = NewSizes(self)
        self.forms = CanonicalForms(MAX_PROGRAMS)
        self.cuts = Cuts(MAX_PROGRAMS)
        self.gathers = Gathers(self.cut, self._call)
        # by hashes of skeletons, by place in the program: the slots of equal programs may differ
        self._changing: BoundedTable[int, Groups] = BoundedTable(MAX_PROGRAMS, lambda groups: SMALL * (1 + len(groups)))

    def recorded(self, trace: RecordedTrace, numbers: Sequence[int]) -> list[Any]:
        """Run a recorded program.

        Args:
            numbers: of its outputs.
        """
        if quiet():  # `without_modes`, written out, as in `call`
            return self._recorded(trace, numbers)
        with no_modes():
            return self._recorded(trace, numbers)

    def _recorded(self, trace: RecordedTrace, numbers: Sequence[int]) -> list[Any]:
        passes, marks, scalars = registered.passes, trace.marks, tuple(trace.scalars)
        tensors: Sequence[torch.Tensor] = trace.leaves
        key = tuple(trace.flat), tuple(numbers), marks, passes  # all but the values of the scalars
        recording = self.recordings.get(key)
        if recording is None or not recording.fits(scalars):
            if recording is None and not marks and not passes:
                found, program = self.sizes.find(key, trace, numbers)
                if program is None:
                    return self.sizes.run(found, trace.flat, scalars, tensors, functools.partial(trace.decode, numbers))
                with found.preparing():
                    recording = self._recording(key, None, New(program, scalars, marks, passes))
                found.learn(program, scalars, recording.route.programs)
            else:
                recording = self._recording(key, recording, New(trace.decode(numbers), scalars, marks, passes))
        if recording.slots is not None:
            tensors = [tensors[slot] for slot in recording.slots]
        if recording.scalars.lifted:
            tensors = [*tensors, *recording.scalars.tensors(scalars)]
        route = recording.route
        results = self._call(route, tensors)
        return results if route.avals is None else placed(results, route.avals)

    def _recording(self, key: Hashable, known: Recording | None, new: New) -> Recording:
        """Return the recording of a program that is new, or whose constants have changed, for other sizes too."""
        program, scalars = new.program, new.scalars
        graph, slots = program.graph, program.scalar_slots
        groups: Groups = {}
        if slots:
            structure = hash((skeleton(graph)[0], len(slots)))
            groups = {slots[place]: name for place, name in self._changing.get(structure, groups).items()}
            if known is not None:
                groups = known.scalars.changed(scalars)
            elif (before := self.sizes.numbers_before(key)) not in (None, scalars):
                groups = changed_since(before, scalars, slots, groups)
            if not LIFTED_SCALARS.on:
                groups = {}
            elif groups:
                LIFTED_SCALARS.used()
                places = {place: groups[slot] for place, slot in enumerate(slots) if slot in groups}
                self._changing.remember(structure, places)
        forms = 1 if known is None else known.scalars.forms + 1
        graph, inputs = scalar_inputs(graph, slots, scalars, groups, forms)
        strides = [*program.strides, *[()] * len(inputs.lifted)]
        route = self.route_recorded(graph, strides, new)
        reordered = program.slots != list(range(len(program.slots)))
        made = Recording(route, tuple(program.slots) if reordered else None, inputs, len(graph.nodes))
        self.recordings.remember(key, made)
        return made

    def route_recorded(self, graph: Graph, strides: Strides, new: New) -> Route | Parts:
        """Return the route of a recorded program, of which independent parts may be of several processes."""
        if all(a.sharding is None for a in graph.avals) and not has_placements(graph):
            return self._parts(graph, strides, new)
        groups = grouped_components(graph, find_meshes)

        def route(k: int, strides: Strides) -> Route | Parts:
            meshes, part = groups[k]
            if not meshes:
                return self._parts(part, strides, new)
            return self.cut(part, strides, passes=new.passes)

        if len(groups) == 1:
            return route(0, strides)
        parts = self._sequence(graph, strides, [part for _, part in groups], route)
        avals = graph.value_avals()
        for (_, part), way in zip(groups, parts.routes, strict=True):
            avals.update(zip(part.outputs, way.avals or (), strict=False))
        return attrs.evolve(parts, avals=tuple(avals[value] for value in graph.outputs))

    def _parts(self, graph: Graph, strides: Strides, new: New) -> Route | Parts:
        """Return the route of a recorded program. Its independent parts are programs that get hot by themselves.

        A region with a mode is a program, compiled at once in that mode.
        """
        moded = any(region is not None and region.mode for _, region in new.marks)
        regions = split_regions(graph, new.marks) if moded else [(graph, None)]
        parts = [
            (part, region)
            for whole, region in regions
            for part in (components(whole, LEAST_PART) if region is None else [whole])
        ]
        if len(parts) == 1 and parts[0][1] is None:
            return self.cut(graph, strides, passes=new.passes)

        def route(k: int, strides: Strides) -> Route | Parts:
            part, region = parts[k]
            if region is None:
                return self.cut(part, strides, passes=new.passes)
            found = self.prepare(part, strides, Target(mode=region.mode or "default"), new.passes)
            if found.program is not None:
                self.compile(found.program)
            return found

        return self._sequence(graph, strides, [part for part, _ in parts], route)

    @without_modes
    def cut(
        self,
        graph: Graph,
        strides: Strides,
        target: Target = DEFAULT,
        passes: Passes | None = None,
        donated: Collection[int] = (),
    ) -> Route | Parts:
        """Return the route of `graph` to the programs that it is divided into where structure repeats.

        Each program gets hot, is compiled and is judged by itself. For the arguments and errors see `prepare`.

        Args:
            donated: the places of the inputs that may be written over. Nobody else may have their memory in a call.
        """
        start = perf_counter()
        graph = rewritten(graph, registered.passes if passes is None else passes)
        route = self._cut(graph, strides, target, donated)
        if Canonicalized in bus.wanted:
            signatures = tuple(program.signature.exact for program in route.programs)
            bus.emit(Canonicalized(len(graph.nodes), signatures, perf_counter() - start))
        return route

    def _cut(self, graph: Graph, strides: Strides, target: Target, donated: Collection[int]) -> Route | Parts:
        if find_meshes(graph):
            return self._sharded(graph, strides, target)
        recorded, graph = spelled_out(graph), SIMPLIFIED.run(graph)
        if is_divided(graph) or has_draws(graph):
            threads, left_out = get_num_threads(), self.tiering.left_out
            scheduler = Scheduler(target.backend, target.mode, threads, left_out, alone=config.current.native)
            *draws, rest = scheduler.draws_apart(graph)
            divided = cut_repeats(rest) if REPEATED_PARTS.on and is_divided(rest) else [rest]
            if len(divided) > 1:
                REPEATED_PARTS.used()
            parts = [*draws, *[one for part in divided for one in scheduler.cut(part)]]
            if len(parts) > 1:
                alone = bool(obstacle(recorded))
                away = given_away(graph, [part.inputs for part in parts], {graph.inputs[k] for k in donated})

                def route(k: int, strides: Strides) -> Route | Parts:
                    places = [place for place, value in enumerate(parts[k].inputs) if value in away[k]]
                    return self._divided(parts[k], strides, target, places, parts[k] if alone else None)

                made = self._sequence(graph, strides, parts, route)
                return self._compared(made, recorded, strides, donated)
        return self._divided(graph, strides, target, donated, recorded)

    def _divided(
        self, graph: Graph, strides: Strides, target: Target, donated: Collection[int], recorded: Graph | None
    ) -> Route | Parts:
        """Return the route of a program. If it comes in several sizes, and has none open, that leads to its parts."""
        made = self._route(graph, strides, target, donated, recorded)
        cut, other = self.cuts.of(made.program, self.tiering.left_out)
        if cut is None:
            return made
        if other is not None:  # its parts show what varies
            self._divided(other.graph, other.key.strides, target, (), None)
        whole, parts = cut.of(graph, self.forms.of(graph))
        divided = self._sequence(whole, strides, parts, lambda k, own: self._route(parts[k], own, target))
        if made.program is not None and not made.program.ledger.calls:
            self.programs.drop(made.program)
        if recorded is None or made.whole is None:
            return divided
        return self._compared(divided, recorded, strides, donated)

    def _sharded(self, graph: Graph, strides: Strides, target: Target) -> Parts:
        """Return the route of a program of several processes to the programs of this one."""
        made = localize(graph)
        inner = self.cut(made.graph, strides, target, ())
        return Parts(AgreedCalls.of(graph, functools.partial(self._call, inner), made), (inner,), made.avals)

    def _sequence(
        self, graph: Graph, strides: Strides, parts: Sequence[Graph], route: Callable[[int, Strides], Route | Parts]
    ) -> Parts:
        return sequence(graph, strides, parts, route, self._call)

    @without_modes
    def prepare(
        self,
        graph: Graph,
        strides: Strides,
        target: Target = DEFAULT,
        passes: Passes | None = None,
    ) -> Route:
        """Return the route of `graph`, called with inputs of these strides, to one program. Nothing in it is sharded.

        Args:
            passes: the user's, which rewrite the graph first; None: those registered now.

        Raises:
            GraphError: one of them raised, or broke a rule.
        """
        graph = spelled_out(rewritten(graph, registered.passes if passes is None else passes))
        return self._route(graph, strides, target, recorded=graph)

    def _route(
        self,
        graph: Graph,
        strides: Strides,
        target: Target,
        donated: Collection[int] = (),
        recorded: Graph | None = None,
    ) -> Route:
        canonical = self.forms.of(graph)

        def checked(made: Route) -> Route:
            if recorded is None or not canonical.is_rewritten(recorded):
                return made
            return self._compared(made, recorded, strides, donated)

        if not canonical.graph.nodes:
            return checked(Route(None, (), canonical.outputs))
        skeleton_key, shape = shape_of(canonical.graph)
        signature = sign(canonical.graph, skeleton_key)
        used = tuple(tuple(strides[k]) for k in canonical.inputs)
        returned = {-1 - k for k in canonical.outputs if k < 0}  # these keep their values
        away = tuple(k for k, place in enumerate(canonical.inputs) if place in donated and place not in returned)
        key = CompileKey(signature.exact, used, target.backend, target.mode, get_num_threads(), away)
        program = self.programs.get(key)
        if program is None:
            program = self._add(key, signature, canonical.graph, skeleton_key, shape)
        elif canonical.graph.has_lines and not program.graph.has_lines:
            program.take_lines(canonical.graph)
        straight = canonical.inputs == tuple(range(len(graph.inputs)))
        direct = canonical.outputs == tuple(range(len(canonical.graph.outputs)))
        returns_inputs = min(canonical.outputs, default=0) < 0
        return checked(Route(program, canonical.inputs, canonical.outputs, straight, direct, returns_inputs))

    def _compared(self, made: Any, recorded: Graph, strides: Strides, donated: Collection[int]) -> Any:
        run = functools.partial(self._call_form, made)
        return attrs.evolve(made, whole=self.comparisons.whole(recorded, strides, donated, run, made))

    def _add(
        self, key: CompileKey, signature: Signature, graph: Graph, skeleton_key: Hashable, shape: SymbolicSizes
    ) -> Program:
        """Return the program of a key that has none yet; `skeleton_key` and `shape` are what `shape_of` returns."""
        made = self.comparisons.recalled(new_program(key, signature, graph, skeleton_key, shape, self.tiering.left_out))
        with self.tiering.lock:
            return self.programs.enter(made)

    def compile(self, program: Program) -> None:
        """Compile a program now, in this thread; see `TierController.compile`. In deterministic mode none is."""
        if not config.current.deterministic:
            self.tiering.compile(program)

    def compile_all(self, programs: Sequence[Program], wait: float, graph: Graph | None = None) -> None:
        """Have programs compiled, and wait for it; see `TierController.compile_all`. In deterministic mode none is."""
        if not config.current.deterministic:
            self.tiering.compile_all(programs, wait, graph)

    def call(self, route: Route | Parts, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run a route on the recorded inputs; returns the recorded outputs.

        Raises:
            ExecutionError: torch refused an operation because of the values.
            OutOfMemoryError: there was no memory for it.
        """
        if quiet():  # `without_modes` and `_call`, written out: every call of a jitted function passes here
            if route.plain and route.program.key.threads == get_num_threads():  # type: ignore[union-attr]
                return self.run(route.program, tensors)  # type: ignore[arg-type, union-attr]
            return self._call(route, tensors)
        with no_modes():
            return self._call(route, tensors)

    def _call(self, route: Route | Parts, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if route.plain and route.program.key.threads == get_num_threads():  # type: ignore[union-attr]
            return self.run(route.program, tensors)  # type: ignore[arg-type, union-attr]
        if route.whole is not None:
            return route.whole.run(tensors)
        return self._call_form(route, tensors)

    def _call_form(self, route: Route | Parts, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the programs of a route, whatever was recorded."""
        if isinstance(route, Parts):
            return route.calls.run(tensors)
        program = route.program
        if program is None:
            return [tensors[-1 - k] for k in route.outputs]
        if program.key.threads != get_num_threads():
            program = self._with_threads(program, get_num_threads())
        given = list(tensors) if route.returns_inputs else tensors
        if not route.straight:
            chosen = [tensors[k] for k in route.inputs]
            if isinstance(tensors, Owned):
                chosen = Owned(chosen)
                tensors.clear()
            tensors = chosen
        results = self.run(program, tensors)
        return results if route.direct else [results[k] if k >= 0 else given[-1 - k] for k in route.outputs]

    def _with_threads(self, program: Program, threads: int) -> Program:
        """Return the same program for another number of threads.

        Code for more threads than torch has now would take cores that the user wants for something else. In a forked
        process OpenMP has none of its parent's threads, and the code would wait for them forever.
        """
        key = attrs.evolve(program.key, threads=threads)
        other = self.programs.get(key)
        return other or self._add(key, program.signature, program.graph, *shape_of(program.graph))

    def run(self, program: Program, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run a program on its inputs, in its present form, and add its time to the ledger."""
        settings = config.process if config.blocks() is None else config.current
        forms, ledger = program.forms, program.ledger
        if (
            not (forms.at_rest or ledger.settled is settings)
            or self.observed.instrument is not None
            or worker.pending
            or settings.deterministic
            or settings.audit == 1.0
            or profiler_enabled()
            or Ran in bus.wanted
        ):
            return self.observed.make(program, tensors, settings)
        # nothing is decided, measured or watched; numbers need no lock
        executable = forms.executable
        start = 0.0 if ledger.untimed else perf_counter()
        try:
            results = executable.run(tensors)
        except REFUSALS as error:
            refuse(f"program {program.signature}", error)
        if not start:
            ledger.ran_untimed(executable is forms.compiled)
            return results
        ledger.ran(perf_counter() - start, executable is forms.compiled)
        if ledger.audit_due(settings.audit):
            forms.doubt(forms.agreed)
        rival = forms.rival
        if rival is not None and ledger.usual > rival.seconds:
            self.tiering.judging.review(program)
        return results

    def install(self, instrument: Instrument | None) -> None:
        """Have each call of a program run through an instrument from now on; None: through none."""
        self.observed.instrument = instrument

    def save_ledger(self) -> None:
        """Add what this process has measured to the ledger of the store."""
        save_ledger(list(self.programs.values()))


engine = Engine()
"""The engine that every Array is forced through."""

atexit.register(engine.save_ledger)
if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=engine.tiering.forked)
