"""The recorder: a program under construction, as a flat list of ints.

A `Trace` numbers its values 0, 1, 2, ... in order of appearance: inputs, scalars and results alike. Its list holds, for
each value, a code of `gtrace.ir.op.CODES`, followed, for a result, by the numbers of its operands. The list is the
graph, and as a tuple it is the exact key under which the engine knows the program. Appending to it, and remembering by
a weak reference which Array stands for each result, is all that recording an operation costs.

There is one pending trace per thread. Functions are captured into traces of their own, whose inputs are placeholders.
"""

from __future__ import annotations

import bisect
import math
import sys
import threading
import weakref
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gtrace.config import Config, config
from gtrace.events import Recorded, bus
from gtrace.ir.aval import Aval
from gtrace.ir.graph import Graph, Node, Operand, Region, Scalar
from gtrace.ir.op import CODES, Instr, Leaf, literal_code
from gtrace.trace.rhythm import Rhythm

if TYPE_CHECKING:
    from gtrace.trace.array import Array

TapeEntry = tuple[Instr, tuple[Any, ...], "Array"]


class Trace:
    """A program being recorded.

    Attributes:
        flat: the program, see the module.
        refs: for each value, a weak reference to its Array, or None for inputs and scalars.
        leaves: the input tensors (a captured trace: Arrays), in order of appearance.
        scalars: the scalar operands, in order of appearance.
        numbers: the number of each input, by the identity of its value.
        tape: what a surrounding gradient has recorded so far, (instr, operands, result); None outside gradients.
        limit: from this many values on, each operation is shown to `gtrace.trace.array.attend`.
        capture: the description of the function being captured; None for the pending program of a thread.
        locations: the user's line of each operation, by its number; None where nobody will ask.
        closed: no operation may be added any more.
        marks: where regions begin, see `gtrace.ir.graph.Marks`.
        held: bytes of the input tensors.
        allowed: how large `held` may become before it is looked at again, see `weigh`.
        full: it is to run before more is recorded.
        special: the instructions that carry a derivative rule of the user's, by the number of their result.
    """

    __slots__ = (
        "flat",
        "refs",
        "leaves",
        "scalars",
        "numbers",
        "tape",
        "limit",
        "capture",
        "closed",
        "held",
        "allowed",
        "full",
        "marks",
        "special",
        "locations",
        "__weakref__",
    )

    def __init__(self, tape: list[TapeEntry] | None = None, capture: str | None = None) -> None:
        self.flat: list[int] = []
        self.refs: list[weakref.ref[Array] | None] = []
        self.leaves: list[Any] = []
        self.scalars: list[bool | int | float] = []
        self.numbers: dict[int, int] = {}
        self.tape = tape
        self.capture = capture
        self.closed = False
        self.held = 0
        self.full = False
        self.marks: list[tuple[int, Region | None]] = []
        self.special: dict[int, Instr] = {}
        self.locations: dict[int, str] | None = None if capture is None else {}
        self.set_limit()

    def set_limit(self) -> None:
        """Read from the settings when operations need attention: from the first on, if somebody watches."""
        settings = config.current
        if settings.debug_nans and self.locations is None:
            self.locations = {}
        watched = self.locations is not None or settings.eager or Recorded in bus.wanted
        self.limit = 0 if watched else settings.max_pending
        self.allowed = settings.max_pending_bytes

    def weigh(self) -> None:
        """End the trace if it alone keeps more bytes of inputs alive than are allowed."""
        most = config.current.max_pending_bytes
        # one reference is the list's, one the loop's, and one the argument's
        kept = sum(tensor.nbytes for tensor in self.leaves if sys.getrefcount(tensor) <= 3)
        if kept >= most:
            self.full = True
            self.limit = 0
        else:
            self.allowed = self.held + most - kept

    def region(self, number: int) -> Region | None:
        """Return the region that a value belongs to."""
        k = bisect.bisect_right([start for start, _ in self.marks], number)
        return self.marks[k - 1][1] if k else None

    def leaf(self, identity: object, code: int, value: Any) -> int:
        """Return the number of an input, adding it on its first use. `value` is kept, so `identity` stays unique."""
        number = self.numbers.get(id(identity))
        if number is None:
            number = len(self.refs)
            self.flat.append(code)
            self.leaves.append(value)
            self.refs.append(None)
            self.numbers[id(identity)] = number
        return number

    def scalar(self, operand: Scalar) -> int:
        """Add a scalar operand and return its number."""
        value = operand.value
        self.flat.append(literal_code(operand.aval, value == 0 and math.copysign(1.0, value) < 0))
        self.scalars.append(value)
        self.refs.append(None)
        return len(self.refs) - 1

    def live(self) -> list[Array]:
        """Return the Arrays that user code still holds and that have no value yet."""
        return [
            a
            for r in self.refs
            if r is not None and (a := r()) is not None and a._buf is None and a.aval.__class__ is Aval
        ]

    def decode(self, outputs: Sequence[int], holes: Container[int] = ()) -> tuple[Graph, list[tuple[int, ...]]]:
        """Return the graph of the program so far, with `outputs`, and the strides of its inputs.

        Safe while another thread is recording: what was complete at the call is decoded.

        Args:
            holes: scalars, by their place in `scalars`, that become inputs, after all others.
        """
        return decode(self.flat, len(self.refs), self.scalars, outputs, self.locations, self.special, holes)


def decode(
    flat: Sequence[int],
    count: int,
    scalars: Sequence[bool | int | float],
    outputs: Sequence[int],
    locations: dict[int, str] | None = None,
    special: Mapping[int, Instr] | None = None,
    holes: Container[int] = (),
) -> tuple[Graph, list[tuple[int, ...]]]:
    """Return the graph that the first `count` values of a flat list describe, and the strides of its inputs."""
    operands: list[Operand] = []
    inputs: list[int] = []
    avals: list[Aval] = []
    strides: list[tuple[int, ...]] = []
    nodes: list[Node] = []
    opened: list[tuple[int, Aval]] = []
    remaining = iter(enumerate(scalars))
    at = 0
    for value in range(count):
        record = CODES[flat[at]]
        at += 1
        if record.__class__ is Instr:
            end = at + len(record.ins)
            ins = tuple([operands[k] for k in flat[at:end]])
            at = end
            if special and value in special:
                record = special[value]
            nodes.append(Node(record, ins, value, locations.get(value) if locations else None))
            operands.append(value)
        elif record.__class__ is Leaf:
            inputs.append(value)
            avals.append(record.aval)
            strides.append(record.strides)
            operands.append(value)
        else:
            place, number = next(remaining)
            if place in holes:
                opened.append((value, record.aval))
                operands.append(value)
            else:
                operands.append(Scalar(number, record.aval))
    for value, a in opened:
        inputs.append(value)
        avals.append(a)
        strides.append(())
    return Graph(tuple(inputs), tuple(avals), tuple(nodes), tuple(outputs)), strides


class _Thread(threading.local):
    """Each thread's current trace.

    Attributes:
        region: the region that is being recorded.
        regions: those begun and not ended: the name, and the region around it.
        rhythm: the loop the thread is in, if it is one that never looks at a value.
        origin: the line to note for operations recorded on behalf of another one, by a derivative or a replay; None:
            the user's line.
    """

    def __init__(self) -> None:
        self.trace = Trace()
        self.rhythm = Rhythm()
        self.region: Region | None = None
        self.regions: list[tuple[str, Region | None]] = []
        self.origin: str | None = None

    def begin(self) -> Trace:
        """Start another pending trace, with the tape and in the region of the one before."""
        self.trace = Trace(self.trace.tape)
        if self.region is not None:
            self.trace.marks.append((0, self.region))
        return self.trace

    def switch(self, region: Region | None) -> None:
        """Go on in another region."""
        if region != self.region:
            self.region = region
            self.trace.marks.append((len(self.trace.refs), region))


thread = _Thread()


def _config_changed(_: Config) -> None:
    thread.trace.set_limit()


config.watch(_config_changed)
bus.watch(lambda: thread.trace.set_limit())
