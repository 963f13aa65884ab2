"""Capturing a function: run it on placeholders, keep the program; and replaying a program as ordinary operations."""

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
from gtrace.core.trace.bind import as_input, bind, emit_all, new_pending, placeholder
from gtrace.core.trace.convert import new_tensor
from gtrace.core.trace.force import materialize, settle
from gtrace.core.trace.record import PADDING, Trace, decode, thread


@attrs.frozen(eq=False)
class Captured:
    """The program of a function for inputs of given avals.

    Attributes:
        graph: its inputs are the arguments and then the constants.
        constants: Arrays from outside that the function used.
        result: what the function returned beside its outputs.
        memo: what was made of the program, kept for the next capture of an equal one; None where this is the first.
        token: the only output is that of calls that the function makes for their effect; it has none of its own.
    """

    graph: Graph
    constants: tuple[Array, ...]
    result: Any
    memo: BoundedTable[Any, Any] | None = None
    token: bool = False


MAX_STRETCHES = 512
"""Recordings remembered."""

PLACES = 8
"""Places in a pending list that an operation takes on average, at most, in what is recorded in one go."""


def capture(
    function: Callable[[Sequence[Array]], tuple[Sequence[Array], Any]],
    avals: Sequence[Aval],
    name: str,
    *,
    repeated: bool = False,
    tokens: str = "refused",
    knows: bool = False,
) -> Captured:
    """Run `function` on placeholders of `avals`, in a trace of its own.

    Args:
        function: takes the placeholders; returns the Arrays that are the outputs, and anything to keep as `result`.
        name: what errors call the traced function.
        repeated: whether it is likely to be captured again, so that its program is remembered.
        tokens: what becomes of a function with effects, such as printing, and without outputs: it is "refused", or,
            with "if any", a token is its output; with "always" also that of a function without effects.
        knows: what follows from no placeholder has a value, unless the function around is traced without such.

    Raises:
        ConcretizationError: the function looked at a placeholder's value.
    """
    outer, layout = thread.trace, thread.layout
    trace = Trace(capture=name)
    # before the trace is the current one, so that a signal handler cannot record an input ahead of the placeholders
    trace.place = _place(avals, outer)
    trace.knows = knows and (outer.capture is None or outer.knows)
    inputs = [placeholder(trace, a) for a in avals]
    thread.trace, thread.layout = trace, None  # a region around a function is not part of it
    try:
        if torch.is_grad_enabled() or outer.tape is not None or outer.capture is not None:
            outputs, result = function(inputs)
        else:  # torch.no_grad() around a traced function says nothing of what is computed in it
            outputs, result = torch.enable_grad()(function)(inputs)
        token = not outputs and (bool(trace.effects) or tokens == "always")
        if token or trace.effects:
            outputs = _with_effects(outputs, trace, tokens)
        # an output may come from outside, or be an input: either way it must have a number here
        numbers = [x._number if x._trace is trace else as_input(trace, x) for x in outputs]
        if trace.knows:
            settle(trace, outputs)
    finally:
        thread.trace, thread.layout = outer, layout
        trace.closed = True
    if not repeated or trace.special:  # of rules of the user's, each recording has its own
        program = trace.decode(numbers)
        stretch = Stretch(renumber(program.graph), tuple(program.slots))
    else:
        scalars = tuple([(x.__class__, x) for x in trace.scalars])
        lines = trace.locations or {}
        stretch = _stretch(tuple(trace.flat), scalars, tuple(numbers), tuple(lines), tuple(lines.values()))
    leaves = trace.leaves
    constants = tuple([leaves[slot] for slot in stretch.slots[len(inputs) :]])
    leaves.clear()  # break the cycle: placeholders refer to their trace
    memo = stretch.memo if stretch.captured else None
    stretch.captured = True
    return Captured(stretch.graph, constants, result, memo, token)


def _place(avals: Sequence[Aval], outer: Trace) -> torch.device | None:
    """Return the GPU where a function of such arguments makes new arrays; None where the setting `device` decides.

    Numbers are on the CPU and go anywhere, so they have no say.
    """
    devices = {a.device for a in avals if a.shape or a.device != CPU}
    if not devices:
        return outer.place
    (place, *others) = devices
    return None if others or place == CPU or config.current.device != CPU.type else place


def _with_effects(outputs: Sequence[Array], trace: Trace, tokens: str) -> list[Array]:
    """Return outputs that need the effects of the function being traced; of a function without outputs, a token.

    Raises:
        ArgumentError: the function has no outputs, and its caller knows of no tokens.
    """
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
    """In place of the structure of the outputs, of a function with effects and without outputs."""

    structure: Any

    def unflatten(self, leaves: Iterable[Array]) -> Any:
        """Return what the function returned; its effects are those of the function that it is called in."""
        note_token(*leaves)
        return self.structure.unflatten([])


def note_token(token: Array) -> None:
    """Make the effects of a call those of the function that is being traced; outside of any, have them now."""
    if thread.trace.capture is None:
        materialize(token, "callback")
    else:
        thread.trace.effects.append((token, False))


@attrs.define(eq=False)
class Stretch:
    """What one run of a captured function recorded.

    Attributes:
        graph: the program, renumbered.
        slots: of its inputs, in the trace.
        captured: whether a capture returned it already.
        memo: what was made of the program.
    """

    graph: Graph
    slots: tuple[int, ...]
    captured: bool = False
    memo: BoundedTable[Any, Any] = attrs.field(init=False)

    @memo.default
    def _made_memo(self) -> BoundedTable[Any, Any]:
        return BoundedTable(MAX_MEMO, _weight(self.graph))


def _weight(graph: Graph) -> int:
    """Return the bytes, about, of what is remembered of a program that was recorded."""
    return SMALL + PER_OPERATION * len(graph.nodes)


@remembered(MAX_STRETCHES, lambda stretch: 2 * _weight(stretch.graph))
def _stretch(
    flat: tuple[Any, ...],
    scalars: tuple[tuple[type, Any], ...],
    outputs: tuple[int, ...],
    located: tuple[int, ...],
    lines: tuple[str, ...],
) -> Stretch:
    """Return the program that a trace holds: the same object for equal recordings from the same lines.

    The function has run each time, so that a recording is only ever taken for one that it equals.
    """
    program = decode(flat, [x for _, x in scalars], outputs, dict(zip(located, lines, strict=True)))
    return Stretch(renumber(program.graph), tuple(program.slots))


def located(graph: Graph) -> Iterator[Node]:
    """Iterate over the nodes of `graph`; what is recorded meanwhile has the location of the node."""
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
class Template:
    """The entries of a program in a pending list, but for where they stand there.

    Attributes:
        entries: as they would be at the beginning of a list, with scalars in the first slots.
        values: the places of entries to which the place of the first is added.
        inputs: the places of entries that are inputs, and which.
        numbers: the places of entries that are codes of scalars, from which twice the number of slots before is taken.
        scalars: the scalars, in order.
        outputs: ("value", its place in the entries) or ("input", which one), with the aval.
        places: the place of each operation in the entries.
        constants: the scalars, as operands.
        operands: of each operation, by number: first come the inputs, then the constants, then the results.
        blank: references to nothing, one for each operation, in place of those to Arrays: budgets count them.
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
        """Append the entries; returns the outputs, or None if something else was recorded in between.

        Args:
            nodes: the operations, of which the template has all but the lines: equal programs may differ in these.
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
            # a signal handler or finalizer recorded something: the value numbers in the entries are wrong here
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
        """Note the operations on the tape of the gradient around them; returns the results, by place in the entries."""
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


_templates: BoundedTable[int, tuple[Graph, Template | None]] = BoundedTable(
    MAX_STRETCHES, lambda known: _weight(known[0])
)
"""By identity of the program, which is kept: to compare equal programs takes longer than recording them."""


def _template(graph: Graph) -> Template | None:
    """Return the template of a program; None if it has rules of the user's, which are called each time."""
    known = _templates.get(id(graph))
    if known is None:
        known = graph, _made_template(graph)
        _templates.remember(id(graph), known)
    return known[1]


@remembered(MAX_STRETCHES, lambda made: SMALL if made is None else SMALL + PER_OPERATION * len(made.places))
def _made_template(graph: Graph) -> Template | None:
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
    return Template(
        entries=entries,
        values=tuple(kinds["value"]),
        inputs=tuple(kinds["input"]),
        numbers=tuple(kinds["scalar"]),
        scalars=tuple(trace.scalars),
        outputs=tuple((*where[value], table[value]) for value in graph.outputs),
        places=tuple(places),
        constants=tuple(constants),
        operands=tuple(operands),
        blank=(_GONE,) * len(graph.nodes),
    )


class _Gone:
    """What is referred to by a reference to nothing."""


_GONE: Any = weakref.ref(_Gone())


def room(trace: Trace, operations: int) -> bool:
    """Whether so many operations can be recorded in one go: nothing is to be done for each but to note its line."""
    if trace.capture is not None:
        return thread.layout is None and Recorded not in bus.wanted
    if len(trace.flat) + PLACES * operations < trace.limit:
        return True
    segmentation = thread.segmentation
    # the limit is where operations are counted next; up to here nothing comes of that
    most = min(config.current.max_pending, segmentation.search)
    counted = trace.limit and not trace.full and not segmentation.period
    return bool(counted) and len(trace.refs) + 2 * operations < most


def replay(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Record the operations of `graph` on `inputs` in the current trace; returns its outputs."""
    trace = thread.trace
    if len(graph.nodes) > 1 and room(trace, len(graph.nodes)):
        template = _template(graph)
        if template is not None and [x.aval for x in inputs] == list(graph.avals):
            results = template.record(trace, inputs, graph.nodes)
            if results is not None:
                return results
    env: dict[int, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for node in located(graph):
        if node.op.projection:
            env[node.out] = env[node.ins[0]][node.params[0]]  # type: ignore[index]
            continue
        if node.instr.aval.__class__ is Bundle:
            env[node.out] = emit_all(node.instr, [env[x] for x in node.ins])  # type: ignore[index]
            continue
        operands: list[Array | Scalar] = [env[x] if isinstance(x, int) else x for x in node.ins]
        env[node.out] = bind(node.op, operands, node.params)
    return [env[value] for value in graph.outputs]
