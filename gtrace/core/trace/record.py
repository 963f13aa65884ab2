"""The recorder: a growing program as a flat list.

The list of a `Trace` holds an entry for each value, in order of appearance. An entry is a `Leaf` and the slot of its
tensor, or an `Instr` and its operands. The number of a value is the index at which its entry begins. An operand is such
a number or, if negative, the slot of a Python scalar (see `scalar_operand_code`). The list is the graph, and as a tuple
it is the exact key of the program in the engine. Recording an operation appends to this list, and stores a weak
reference to the Array of the result. It costs nothing else.

One ``+=`` appends an entry, and the next statement reads its number from the length of the list. Between the two,
CPython runs nothing else: no signal handler, no finalizer, no other thread. A later exception leaves an unused entry.
Tensors and scalars are appended in the same way, before the entries that name their slots. So interrupted recording
leaves a correct program, also if the interrupting code records or forces.

Each thread has one pending trace. Functions are captured into their own traces, whose inputs are placeholders.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from gtrace.core.base.config import Config, config
from gtrace.core.base.events import Recorded, bus
from gtrace.core.base.exact_keys import ExactComplex
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Node, Operand, RecordedGraph, Region, Scalar
from gtrace.core.ir.op import Instr, Leaf
from gtrace.core.ir.sharding import parse_mesh, print_dims
from gtrace.core.trace.array_base import ArrayBase
from gtrace.core.trace.segmentation import SEARCHED, LoopSegmentation

TapeEntry = tuple[Instr, tuple[Any, ...], Any]
"""An instruction, its operands, and the Array of its result."""


class Trace:
    """A program being recorded.

    Attributes:
        flat: the program; see the module.
        refs: weak references to the Arrays of the results.
        leaves: the input tensors by slot; in a captured trace, Arrays.
        scalars: the Python scalars among the operands, by slot.
        numbers: the number of each input, by the identity of its value.
        tape: the (instr, operands, result) that a surrounding gradient has recorded; None outside gradients.
        limit: operations with this number or a higher one call `gtrace.core.trace.bind.on_recorded`.
        capture: the description of the function being captured; None for the pending program of a thread.
        runs: the program runs as it is recorded, and is no part of another one.
        place: the GPU of the arguments of a captured function, where it makes new arrays; None: where the setting says.
        knows: somebody may look at values of a captured function that follow from no placeholder, as under `vmap`.
        given: what the placeholders of a captured function stand for, where it may look at them; None: it may not.
        locations: the user's line of each operation, by its number; None where it is not needed.
        used_keys: the random keys that are used up, with the setting `debug_key_reuse`.
        closed: no operation may be added any more.
        marks: where regions begin, see `gtrace.core.ir.graph.Marks`.
        held: bytes of the input tensors.
        allowed: the value of `held` at which it is checked again; see `check_held_bytes`.
        full: it must run before more is recorded.
        effects: the results of calls made for their effect, and whether their order counts.
        special: instructions with a user-defined derivative rule, by the number of their result.
        calls: calls of jitted functions, where somebody wants to know of them: name, the positions in `flat` before and
            after, and the numbers of the arguments and results.
        main: None: libraries of JAX compare it.
    """

    main = None

    __slots__ = (
        "flat",
        "refs",
        "leaves",
        "scalars",
        "numbers",
        "tape",
        "limit",
        "capture",
        "runs",
        "place",
        "knows",
        "given",
        "used_keys",
        "closed",
        "held",
        "allowed",
        "full",
        "marks",
        "special",
        "effects",
        "locations",
        "calls",
        "__weakref__",
    )

    def __init__(self, tape: list[TapeEntry] | None = None, capture: str | None = None, lines: bool = True) -> None:
        self.flat: list[Any] = []
        self.refs: list[weakref.ref[ArrayBase]] = []
        self.leaves: list[Any] = []
        self.scalars: list[bool | int | float | complex] = []
        self.numbers: dict[int, int] = {}
        self.tape = tape
        self.capture = capture
        self.runs = capture is None
        self.place: Any = None
        self.knows = False
        self.given: Sequence[ArrayBase] | None = None
        self.used_keys: tuple[ArrayBase, ...] = ()
        self.closed = False
        self.held = 0
        self.full = False
        self.marks: tuple[tuple[int, Region | None], ...] = ()
        self.special: dict[int, Instr] = {}
        self.calls: list[tuple[str, int, int, tuple[int, ...], tuple[int, ...]]] | None = None
        self.effects: list[tuple[Any, bool]] = []
        self.locations: dict[int, str] | None = None if capture is None or not lines else {}
        self.set_limit()

    def set_limit(self) -> None:
        """Set `limit` and `allowed` from the settings; `limit` is 0 if every operation must call `on_recorded`."""
        settings = config.process if config.blocks() is None else config.current
        if settings.debug_nans and self.locations is None:
            self.locations = {}
        watched = self.locations is not None or settings.eager or Recorded in bus.wanted
        self.limit = 0 if watched else min(settings.max_pending, SEARCHED)
        self.allowed = settings.max_pending_bytes

    def check_held_bytes(self) -> None:
        """End the trace if it alone keeps more input bytes alive than allowed."""
        most = config.current.max_pending_bytes
        # the list, the loop and the argument each hold one reference
        kept = sum(tensor.nbytes for tensor in self.leaves if sys.getrefcount(tensor) <= 3)
        if kept >= most:
            self.full = True
            self.limit = min(self.limit, 1)
        else:
            self.allowed = self.held + most - kept

    def region(self, number: int) -> Region | None:
        """Return the region of a value."""
        k = bisect.bisect_right([start for start, _ in self.marks], number)
        return self.marks[k - 1][1] if k else None

    def leaf(self, value: Any, kind: Leaf) -> int:
        """Return the number of an input, a tensor or an Array; add it at its first use."""
        number = self.numbers.get(id(value))
        if number is None:
            leaves, flat = self.leaves, self.flat
            leaves += (value,)
            slot = len(leaves) - 1
            flat += (kind, slot)
            number = len(flat) - 2
            self.numbers[id(value)] = number
        return number

    def scalar(self, operand: Scalar) -> int:
        """Add a scalar operand and return its code in an instruction."""
        # recorded scalars are compared, and two NaNs in tuples are equal only if they are one object
        value = operand.value
        if value.__class__ is complex:
            value = ExactComplex(value)
        elif value != value:
            value = math.nan
        scalars = self.scalars
        scalars += (value,)
        slot = len(scalars) - 1
        return scalar_operand_code(slot, value)

    def decode(self, outputs: Sequence[int]) -> RecordedGraph:
        """Return the program so far, with `outputs`.

        It is safe while another thread records: it decodes the entries that were complete at the call.
        """
        return decode(self.flat, self.scalars, outputs, self.locations, self.special)

    def structure(self, outputs: Sequence[int]) -> Hashable:
        """Return what programs that differ from this one in sizes only share with it, as a key."""
        return tuple([x if x.__class__ is int else x.structure for x in self.flat]), tuple(outputs)

    def inputs(self, program: RecordedGraph) -> list[Any]:
        """Return the inputs of the program, in the order of its graph."""
        return [self.leaves[slot] for slot in program.slots]


class _Settled:
    """Stands for the trace of an Array that has its value, with some attributes of `Trace`."""

    __slots__ = ()

    capture = main = None
    flat = ()


SETTLED = _Settled()


class Donation(Trace):
    """Replaces the trace of a donated Array, which has no value any more, like a placeholder.

    Args:
        call: the call that got the Array, and its line.
    """

    __slots__ = ()

    def __init__(self, call: str) -> None:
        super().__init__(capture=call)
        self.closed = True


def scalar_operand_code(slot: int, value: bool | int | float | complex) -> int:
    """Return the code of a scalar operand in an instruction. It combines its slot and the sign of a zero.

    Programs with -0.0 and 0.0 differ, although the two compare equal.
    """
    # an `ExactComplex` itself compares the signs of its zeros
    negative_zero = value == 0 and math.copysign(1.0, value) < 0  # type: ignore[arg-type]
    return -2 - 2 * slot if negative_zero else -1 - 2 * slot


@attrs.frozen(eq=False)
class Padding:
    """An entry of length one that `decode` skips."""

    @property
    def structure(self) -> Padding:
        """Itself: it has no sizes."""
        return self


PADDING = Padding()


def decode(
    flat: Sequence[Any],
    scalars: Sequence[bool | int | float | complex],
    outputs: Sequence[int],
    locations: dict[int, str] | None = None,
    special: Mapping[int, Instr] | None = None,
) -> RecordedGraph:
    """Return the graph of a flat list; see `Trace.decode`."""
    inputs: list[int] = []
    avals: list[Aval] = []
    strides: list[tuple[int, ...]] = []
    slots: list[int] = []
    nodes: list[Node] = []
    scalar_slots: list[int] = []
    size = len(flat)
    at = 0
    while at < size:
        record = flat[at]
        if record.__class__ is Instr:
            number = at
            at += 1 + len(record.ins)
            operands: list[Operand] = list(flat[number + 1 : at])
            for k, x in enumerate(operands):
                if x < 0:  # type: ignore[operator]
                    slot = (-1 - x) >> 1  # type: ignore[operator]
                    scalar_slots.append(slot)
                    operands[k] = Scalar(scalars[slot], record.ins[k])
            if special and number in special:
                record = special[number]
            nodes.append(Node(record, tuple(operands), number, locations.get(number) if locations else None))
        elif record.__class__ is Leaf:
            inputs.append(at)
            avals.append(record.aval)
            strides.append(record.strides)
            slots.append(flat[at + 1])
            at += 2
        else:
            at += 1
    return RecordedGraph(Graph(tuple(inputs), tuple(avals), tuple(nodes), tuple(outputs)), strides, slots, scalar_slots)


_marks = itertools.count()
_FIRST_MARK = -(1 << 32)  # below the numbers of gradient inputs

followers: dict[int, tuple[int, Callable[[Any], bool]]] = {}
"""The running gradients: the mark of the thread, and a function that tells whether the gradient follows an Array."""


def followed(x: Any) -> bool:
    """Whether a gradient of this thread follows an Array."""
    return any(follows(x) for mark, follows in list(followers.values()) if mark == thread.mark)


Where = tuple[int, ...] | None
"""The layout that a signal asks for: (axis,): split along it; (): the same on each process; None: any."""


@attrs.frozen
class RegionLayout:
    """The layout over processes of results in a region.

    Attributes:
        mesh: the text of a mesh with one axis.
        forward, backward: the layouts of results and of their cotangents.
    """

    mesh: str
    forward: Where
    backward: Where

    def specs(self, shape: tuple[int, ...]) -> tuple[str, str | None, str | None] | None:
        """Return the attributes of the operation that lays out an array of this shape; None if no layout is asked for.

        A dimension with fewer elements than processes is not split.
        """
        (name,), (parts,) = parse_mesh(self.mesh).axis_names, parse_mesh(self.mesh).sizes

        def text(where: Where) -> str | None:
            if where is None or (where and (where[0] >= len(shape) or shape[where[0]] < parts)):
                return None
            return print_dims(tuple((name,) if k in where else () for k in range(len(shape))))

        forward, backward = text(self.forward), text(self.backward)
        return None if forward is None and backward is None else (self.mesh, forward, backward)


class _Thread(threading.local):
    """The recording state of each thread.

    Attributes:
        region: the region being recorded.
        layout: the layout of recorded results; None: it follows from their operands.
        regions: the open regions: the name of each, with the surrounding region and layout.
        segmentation: the current loop, if it is a loop that reads no value.
        origin: the line of operations that a derivative or replay records for another one; None: the user's line.
        mark: the number, below -1, of Arrays that a gradient of this thread may follow.
        axes: the name and size of each named axis around what is being captured, the innermost last.
        batched_axis: the name of the axis that is being batched; None outside of that, and for an axis without a name.
        in_rule: a rule of an operation runs, for which integers are int64 whatever the settings are.
        walking: a tape is being walked backwards.
        linear: a linear function of tangents is being transposed, see `gtrace.core.transform.custom`.
        stand_ins: what a rule uses in place of placeholders of a trace that is over, by their identity.
        deferred: names of calls whose tangents are put off, see `gtrace.core.transform.jvp.linearize`; None: none may.
    """

    def __init__(self) -> None:
        self.mark = _FIRST_MARK - next(_marks)
        self.trace = Trace()
        self.segmentation = LoopSegmentation()
        self.region: Region | None = None
        self.layout: RegionLayout | None = None
        self.regions: list[tuple[str, Region | None, RegionLayout | None]] = []
        self.origin: str | None = None
        self.axes: tuple[tuple[str, int], ...] = ()
        self.batched_axis: str | None = None
        self.in_rule = False
        self.walking = False
        self.linear = False
        self.stand_ins: dict[int, ArrayBase] = {}
        self.deferred: list[str] | None = None

    def begin(self) -> Trace:
        """Start another pending trace, with the tape and region of the one before."""
        trace = Trace(self.trace.tape)
        region = self.region
        if region is not None:
            trace.marks = ((0, region),)
        self.trace = trace
        self._narrow_limit()
        return trace

    def set_limit(self) -> None:
        """Set the limit of the current trace from the settings. A region with a layout handles every operation."""
        self.trace.set_limit()
        self._narrow_limit()

    def _narrow_limit(self) -> None:
        self.trace.limit = 0 if self.layout is not None else min(self.trace.limit, self.segmentation.place())

    def in_gradient(self) -> bool:
        """Whether operations of a gradient are being recorded. A cut there would take its backward pass apart."""
        return self.trace.tape is not None or self.walking

    def lay_out(self, layout: RegionLayout | None) -> None:
        """Continue with another layout."""
        if layout != self.layout:
            self.layout = layout
            self.set_limit()

    def switch(self, region: Region | None) -> None:
        """Continue in another region."""
        if region != self.region:
            self.region = region
            self.trace.marks += ((len(self.trace.flat), region),)


thread = _Thread()
"""The state of the thread: its pending trace, and whether a rule is running in it."""


@contextlib.contextmanager
def thread_has(**state: Any) -> Iterator[None]:
    """Within the block, the recording state of this thread has these values."""
    own = vars(thread)
    before = {name: own[name] for name in state}
    try:
        own.update(state)  # one call each: an interrupt comes before or after it
        yield
    finally:
        own.update(before)


def _config_changed(_: Config) -> None:
    thread.set_limit()


config.watch(_config_changed)
bus.watch(lambda: thread.set_limit())
