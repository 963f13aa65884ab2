"""Captures a function as a program by running it on placeholders, and replays programs as recorded operations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base.bounded_tables import PER_OPERATION, SMALL, BoundedTable, remembered
from gtrace.core.base.config import config
from gtrace.core.base.devices import CPU
from gtrace.core.base.errors import ArgumentError, message, user_location
from gtrace.core.base.events import Recorded, bus
from gtrace.core.ir.aval import Aval, Bundle
from gtrace.core.ir.edit import renumber
from gtrace.core.ir.graph import MAX_MEMO, Graph, Node, Scalar
from gtrace.core.ir.op import REGISTRY
from gtrace.core.trace.array import Array, wrap
from gtrace.core.trace.array_base import ArrayBase
from gtrace.core.trace.bind import as_input, bind, emit_all, new_pending, overflow, placeholder
from gtrace.core.trace.convert import new_tensor
from gtrace.core.trace.force import materialize, settle
from gtrace.core.trace.record import PADDING, Trace, decode, thread


@attrs.frozen(eq=False)
class Captured:
    """The program of a function for inputs of given avals.

    Attributes:
        graph: its inputs are the arguments, followed by the constants.
        constants: Arrays from outside that the function uses.
        result: what the function returns beside its outputs.
        memo: values derived from the program, kept for the next capture of an equal one; None for the first capture.
        token: the only output is a token for the effects of the function, which has no outputs of its own.
        effects: the function has effects, on which its outputs depend.
        used: the places, among the inputs, of random keys that it uses up, with the setting `debug_key_reuse`.
    """

    graph: Graph
    constants: tuple[Array, ...]
    result: Any
    memo: BoundedTable[Any, Any] | None = None
    token: bool = False
    effects: bool = False
    used: tuple[int, ...] = ()

    def derived(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return `make()`, which follows from the program and `key`, and keep it for equal captures."""
        if self.memo is None:
            return make()
        found = self.memo.get(key)
        if found is None:
            found = make()
            self.memo.remember(key, found)
        return found


MAX_STRETCHES = 512
"""The number of cached recordings."""


def capture(
    function: Callable[[Sequence[Array]], tuple[Sequence[Array], Any]],
    avals: Sequence[Aval],
    name: str,
    *,
    repeated: bool = False,
    tokens: str = "refused",
    knows: bool = False,
    runs: bool = False,
    lines: bool = True,
    given: Sequence[Array] | None = None,
) -> Captured:
    """Run `function` on placeholders of `avals`, in its own trace.

    Args:
        function: takes the placeholders; returns the Arrays that are the outputs, and anything to keep as `result`.
        name: what errors call the traced function.
        repeated: whether it is likely to be captured again, so that its program is remembered.
        tokens: what becomes of a function with effects, such as printing, and without outputs: it is "refused", or,
            with "if any", a token is its output; with "always" also that of a function without effects.
        knows: what follows from no placeholder has a value, unless the function around is traced without such.
        runs: the program runs as it is recorded, and is no part of another one.
        lines: whether the user's line of each operation is noted, which takes about as long as recording it.
        given: the arguments themselves, of a function that may look at their values: it is captured at each call.

    Raises:
        ConcretizationError: the function reads the value of a placeholder.
    """
    outer, layout = thread.trace, thread.layout
    trace = Trace(capture=name, lines=lines)
    trace.runs = runs
    # placeholders first: once the trace is current, a signal handler could record an input ahead of them
    trace.place = _place(avals, outer)
    trace.knows = knows and (outer.capture is None or outer.knows)
    trace.given = given
    inputs = [placeholder(trace, a) for a in avals]
    thread.trace, thread.layout = trace, None  # a region around a function does not include its body
    try:
        if torch.is_grad_enabled() or outer.tape is not None or outer.capture is not None:
            outputs, result = function(inputs)
        else:  # torch.no_grad() around a traced function does not apply to its body
            outputs, result = torch.enable_grad()(function)(inputs)
        token = not outputs and (bool(trace.effects) or tokens == "always")
        if token or trace.effects:
            outputs = _with_effects(outputs, trace, tokens)
        # an output may come from outside or be an input, but needs a number in this trace
        numbers = [x._number if x._trace is trace else as_input(trace, x) for x in outputs]
        if trace.knows:
            settle(trace, outputs)
    finally:
        thread.trace, thread.layout = outer, layout
        trace.closed = True
    if not repeated or trace.special:  # user-defined rules belong to one recording
        program = trace.decode(numbers)
        stretch = Stretch(renumber(program.graph), tuple(program.slots))
    else:
        scalars = tuple([(x.__class__, x) for x in trace.scalars])
        places = trace.locations or {}
        stretch = _stretch(tuple(trace.flat), scalars, tuple(numbers), tuple(places), tuple(places.values()))
    leaves = trace.leaves
    used = [x for x in stretch.slots if any(leaves[x] is key for key in trace.used_keys)] if trace.used_keys else []
    places_used = tuple(map(stretch.slots.index, used))
    constants = tuple([leaves[slot] for slot in stretch.slots[len(inputs) :]])
    leaves.clear()  # break the cycle: placeholders refer to their trace
    memo = stretch.memo if stretch.captured else None
    stretch.captured = True
    return Captured(stretch.graph, constants, result, memo, token, bool(trace.effects), places_used)


def _place(avals: Sequence[Aval], outer: Trace) -> torch.device | None:
    """Return the GPU on which a function of these arguments makes new arrays; None: the setting `device` decides.

    Numbers are on the CPU and move to other devices, so they do not count.
    """
    devices = {a.device for a in avals if a.shape or a.device != CPU}
    if not devices:
        return outer.place
    (place, *others) = devices
    return None if others or place == CPU or config.current.device != CPU.type else place


def _with_effects(outputs: Sequence[Array], trace: Trace, tokens: str) -> list[Array]:
    """Return outputs that depend on the effects; without outputs a token, or with "refused" an ArgumentError."""
    noted = [token for token, _ in trace.effects]
    after = REGISTRY["after"]
    if outputs:
        return [bind(after, (x, *noted)) for x in outputs]
    if tokens == "refused":
        expected = "a function that returns arrays, where it prints or calls back"
        raise ArgumentError(message("callback", expected, f"nothing from {trace.capture}", "Return a value."))
    if not noted:
        return [wrap(new_tensor([], torch.uint8, CPU))]
    return [bind(after, tuple(noted))]


@attrs.frozen
class NoOutputs:
    """Replaces the output structure of a function that has effects but no outputs."""

    structure: Any

    def unflatten(self, leaves: Iterable[Array]) -> Any:
        """Return the function's result; its effects become those of the calling function."""
        note_token(*leaves)
        return self.structure.unflatten([])


def note_token(token: Array) -> None:
    """Add the effects of a call to the function being traced; outside of any, run them now."""
    if thread.trace.capture is None:
        materialize(token, "callback")
    else:
        thread.trace.effects.append((token, False))


def note_call(name: str, start: int, arguments: Iterable[Array], results: Iterable[Array]) -> None:
    """Note that the operations of the current trace from position `start` on are those of a jitted function."""
    trace = thread.trace
    assert trace.calls is not None
    own = [tuple([x._number for x in arrays if x._trace is trace]) for arrays in (arguments, results)]
    trace.calls.append((name, start, len(trace.flat), own[0], own[1]))


@attrs.define(eq=False)
class Stretch:
    """The recording of one run of a captured function.

    Attributes:
        graph: the program, renumbered.
        slots: the slots of its inputs in the trace.
        captured: whether an earlier capture returned it.
        memo: values derived from the program.
    """

    graph: Graph
    slots: tuple[int, ...]
    captured: bool = False
    memo: BoundedTable[Any, Any] = attrs.field(init=False)

    @memo.default
    def _made_memo(self) -> BoundedTable[Any, Any]:
        return BoundedTable(MAX_MEMO, _weight(self.graph))


def _weight(graph: Graph) -> int:
    """Return the approximate bytes of the cache entry of a recorded program."""
    return SMALL + PER_OPERATION * len(graph.nodes)


@remembered(MAX_STRETCHES, lambda stretch: 2 * _weight(stretch.graph))
def _stretch(
    flat: tuple[Any, ...],
    scalars: tuple[tuple[type, Any], ...],
    outputs: tuple[int, ...],
    located: tuple[int, ...],
    lines: tuple[str, ...],
) -> Stretch:
    """Return the program of a trace. Equal recordings from the same lines give the same object.

    The function runs each time, so a cached program always equals the current recording.
    """
    program = decode(flat, [x for _, x in scalars], outputs, dict(zip(located, lines, strict=True)))
    return Stretch(renumber(program.graph), tuple(program.slots))


def located(graph: Graph) -> Iterator[Node]:
    """Iterate over the nodes of `graph`; operations recorded meanwhile get the node's location."""
    if thread.trace.locations is None:
        yield from graph.nodes
        return
    before = thread.origin
    try:
        for node in graph.nodes:
            thread.origin = node.location or before
            yield node
    finally:
        thread.origin = before


@attrs.frozen(eq=False)
class Entries:
    """The list entries of a program, independent of their position in the list.

    Attributes:
        entries: the entries at the beginning of a list, with scalars in the first slots.
        values: indices of entries that are value numbers; the start position is added to them.
        inputs: indices of entries that are inputs, with the input.
        numbers: indices of entries that are scalar codes; twice the number of earlier slots is subtracted from them.
        scalars: the scalars, in order.
        outputs: ("value", index of its entry) or ("input", index of the input), with the aval.
        places: the index of the entry of each operation.
        constants: the scalars, as operands.
        operands: the operands of each operation, numbered in the order inputs, constants, results.
        blank: a dead reference for each operation, in place of references to Arrays. Budgets count references.
    """

    entries: list[Any]
    values: tuple[int, ...]
    inputs: tuple[tuple[int, int], ...]
    numbers: tuple[int, ...]
    scalars: tuple[Any, ...]
    outputs: tuple[tuple[str, int, Aval], ...]
    places: tuple[int, ...]
    constants: tuple[Scalar, ...]
    operands: tuple[tuple[int, ...], ...]
    blank: tuple[weakref.ref[ArrayBase], ...]

    def record(self, trace: Trace, inputs: Sequence[Array], nodes: Sequence[Node]) -> list[Array] | None:
        """Append the entries; return the outputs, or None if another recording came in between.

        Args:
            nodes: the operations with their lines. Equal programs may differ in their lines, so entries have none.
        """
        numbers = [x._number if x._trace is trace else as_input(trace, x) for x in inputs]
        slots, flat = trace.scalars, trace.flat
        slots += self.scalars
        before = 2 * (len(slots) - len(self.scalars))
        start = len(flat)
        entries = self.entries.copy()
        for k in self.values:
            entries[k] += start
        for k, which in self.inputs:
            entries[k] = numbers[which]
        if before:
            for k in self.numbers:
                entries[k] -= before
        flat += entries
        end = len(flat)
        if end - len(entries) != start:
            # a signal handler or finalizer recorded an operation, so the value numbers in the entries are wrong
            flat[end - len(entries) : end] = (PADDING,) * len(entries)
            return None
        if trace.locations is not None:
            here = thread.origin or user_location()
            trace.locations.update(
                [(start + k, node.location or here) for k, node in zip(self.places, nodes, strict=True)]
            )
        results: dict[int, Array] = {}
        if trace.tape is None:
            trace.refs += self.blank
        else:
            results = self._tape(trace, start, inputs, nodes)
        out = []
        for kind, what, a in self.outputs:
            if kind == "input":
                out.append(inputs[what])
                continue
            x = results.get(what)
            if x is None:
                x = results[what] = new_pending(trace, a, start + what)
                trace.refs.append(weakref.ref(x))
            out.append(x)
        return out

    def _tape(self, trace: Trace, start: int, inputs: Sequence[Array], nodes: Sequence[Node]) -> dict[int, Array]:
        """Add the operations to the tape of the surrounding gradient; return the results by index of their entries."""
        values: list[Any] = [*inputs, *self.constants]
        first = len(values)
        entries = []
        for place, node, operands in zip(self.places, nodes, self.operands, strict=True):
            instr = node.instr
            x = new_pending(trace, instr.aval, start + place)
            entries.append((instr, tuple([values[k] for k in operands]), x))
            values.append(x)
        results = values[first:]
        trace.refs += [weakref.ref(x) for x in results]
        assert trace.tape is not None
        trace.tape += entries
        return dict(zip(self.places, results, strict=True))


_known_entries: BoundedTable[int, tuple[Graph, Entries | None]] = BoundedTable(
    MAX_STRETCHES, lambda known: _weight(known[0])
)
"""By identity of the program, which is kept alive: comparing equal programs takes longer than recording them."""


def _entries(graph: Graph) -> Entries | None:
    """Return the entries of a program; None if it has user-defined rules, which must run each time."""
    known = _known_entries.get(id(graph))
    if known is None:
        known = graph, _made_entries(graph)
        _known_entries.remember(id(graph), known)
    return known[1]


@remembered(MAX_STRETCHES, lambda made: SMALL if made is None else SMALL + PER_OPERATION * len(made.places))
def _made_entries(graph: Graph) -> Entries | None:
    entries: list[Any] = []
    kinds: dict[str, list[Any]] = {"value": [], "input": [], "scalar": []}
    places: list[int] = []
    constants: list[Scalar] = []
    operands = []
    where: dict[int, tuple[str, int]] = {value: ("input", k) for k, value in enumerate(graph.inputs)}
    number = {value: k for k, value in enumerate(graph.inputs)}
    first = len(number) + sum(isinstance(x, Scalar) for node in graph.nodes for x in node.ins)
    trace = Trace(capture="replay")
    for node in graph.nodes:
        if node.instr.plain is not None or node.op.effect:
            return None
        start = len(entries)
        entries.append(node.instr)
        given = []
        for x in node.ins:
            if isinstance(x, int):
                kind, what = where[x]
                given.append(number[x])
            else:
                kind, what = "scalar", trace.scalar(x)
                given.append(len(graph.inputs) + len(constants))
                constants.append(x)
            kinds[kind].append((len(entries), what) if kind == "input" else len(entries))
            entries.append(what)
        where[node.out] = "value", start
        number[node.out] = first + len(places)
        places.append(start)
        operands.append(tuple(given))
    table = graph.value_avals()
    return Entries(
        entries=entries,
        values=tuple(kinds["value"]),
        inputs=tuple(kinds["input"]),
        numbers=tuple(kinds["scalar"]),
        scalars=tuple(trace.scalars),
        outputs=tuple((*where[value], table[value]) for value in graph.outputs),
        places=tuple(places),
        constants=tuple(constants),
        operands=tuple(operands),
        blank=(GONE,) * len(graph.nodes),
    )


class _Gone:
    """The referent of dead references."""


GONE: Any = weakref.ref(_Gone())
"""A dead reference, for results that nobody holds."""


def room(trace: Trace, operations: int) -> bool:
    """Whether this many operations may be appended at once: none needs handling, except that its line is noted.

    A trace may get longer than its limit by that. So what is recorded does not depend on where traces are cut.
    """
    if trace.capture is not None:
        return thread.layout is None and Recorded not in bus.wanted
    return trace.limit > 0 and operations <= config.current.max_pending


def replay(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Record the operations of `graph` on `inputs` in the current trace; return its outputs."""
    trace = thread.trace
    if len(graph.nodes) > 1 and room(trace, len(graph.nodes)):
        entries = _entries(graph)
        if entries is not None and [x.aval for x in inputs] == list(graph.avals):
            results = entries.record(trace, inputs, graph.nodes)
            if results is not None:
                if trace.capture is None and len(trace.flat) > trace.limit:
                    overflow(trace, len(trace.flat) - 1)
                return results
    env: dict[int, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for node in located(graph):
        if node.op.projection:
            env[node.out] = env[node.ins[0]][node.instr.index]  # type: ignore[index]
            continue
        if node.instr.aval.__class__ is Bundle:
            env[node.out] = emit_all(node.instr, [env[x] for x in node.ins])  # type: ignore[index]
            continue
        operands: list[Array | Scalar] = [env[x] if isinstance(x, int) else x for x in node.ins]
        env[node.out] = bind(node.op, operands, node.params)
    return [env[value] for value in graph.outputs]
