"""The program of one process while it is made: its operations, and the collectives between them in their order."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import Any

import attrs

from gtrace.core.backends.tuned import BUCKET, MAX_JOINED
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar
from gtrace.core.ir.op import REGISTRY, Op
from gtrace.core.ir.sharding import Axes, Mesh
from gtrace.core.partitioner.partitioned import Transfer


@attrs.frozen(eq=False)
class _Waiting:
    """A sum that is not sent yet: the value to assign, its operand, and what it sends."""

    out: int
    operand: int
    transfer: Transfer
    location: str | None


class LocalProgram:
    """A list of nodes that grows.

    Each collective takes the result of the one before it as a further operand. So nothing changes their sequence. Sums
    over the same processes wait, and are sent by one call, as soon as one of them is needed by something else that is
    sent. What is computed from them waits too.

    Attributes:
        types: of the values.
        location: the user's line that is being divided.
        latest: the result of the last collective, which the next one has to follow.
        gathered: the operations that each process computes as a whole: (name, the user's line).
    """

    def __init__(self) -> None:
        self.types: dict[int, Any] = {}
        self.location: str | None = None
        self.latest: int | None = None
        self.gathered: list[tuple[str, str | None]] = []
        self._inputs: list[int] = []
        self._nodes: list[Node] = []
        self._sent: dict[int, tuple[Transfer, ...]] = {}
        self._bucket: dict[tuple[str, Axes, Any], list[_Waiting]] = collections.defaultdict(list)
        self._waiting: set[int] = set()
        self._deferred: list[Node] = []

    def input(self, a: Any) -> int:
        """Add an input."""
        self._inputs.append(self._value(a))
        return self._inputs[-1]

    def emit(self, op: Op, operands: Sequence[Operand], params: tuple[Any, ...] = ()) -> int:
        """Add an operation; returns its value."""
        avals = tuple([x.aval if isinstance(x, Scalar) else self.types[x] for x in operands])
        instr = op.instr(params, avals)
        out = self._value(instr.aval)
        self._append(Node(instr, tuple(operands), out, self.location))
        return out

    def collective(self, name: str, mesh: Mesh, local: int, axes: Axes, nbytes: int, *params: Any) -> int:
        """Add a collective, which comes after all others before it; returns its result.

        Args:
            nbytes: of the operand, at most, on any process. What is joined follows from it, alike on all of them.
        """
        if local in self._waiting:
            self.flush()
        transfer = Transfer(name, axes, mesh.parts(axes), nbytes, self.location)
        a = self.types[local]
        if params == ("sum",) and nbytes <= MAX_JOINED and not a.weak:
            key = str(mesh), axes, a.dtype
            if sum(one.transfer.nbytes for one in self._bucket[key]) + nbytes > BUCKET:
                self.flush()
            out = self._value(a)
            self._bucket[key].append(_Waiting(out, local, transfer, self.location))
            self._waiting.add(out)
            return out
        return self.after(name, local, (str(mesh), axes, *params), (transfer,))

    def calls(self, op: Op, operands: Sequence[Operand], params: tuple[Any, ...], sent: Sequence[Transfer]) -> int:
        """Add an operation with sub-graphs that sends; returns its bundle. Its sub-graphs follow `latest`."""
        out = self.emit(op, operands, params)
        self._sent[out] = tuple(sent)
        self.latest = self.emit(REGISTRY["project"], (out,), (0,))
        return out

    def after(self, name: str, local: int, params: tuple[Any, ...], sent: Sequence[Transfer] = ()) -> int:
        """Add an operation that communicates, as it is, after all others before it; returns its one result."""
        operands = (local,) if self.latest is None else (local, self.latest)
        bundle = self.emit(REGISTRY[name], operands, params)
        self._sent[bundle] = tuple(sent)
        self.latest = self.emit(REGISTRY["project"], (bundle,), (0,))
        return self.latest

    def flush(self) -> None:
        """Send the sums that wait."""
        buckets, deferred = list(self._bucket.items()), self._deferred
        self._bucket.clear()
        self._waiting.clear()
        self._deferred = []
        outer = self.location
        for (mesh, axes, _), group in buckets:
            self.location = group[0].location
            self._send_joined(mesh, axes, group)
        self.location = outer
        for node in deferred:
            self._append(node)

    def finish(self, outputs: Sequence[int]) -> Graph:
        """Return the program with these outputs."""
        self.flush()
        types = tuple(self.types[value] for value in self._inputs)
        return Graph(tuple(self._inputs), types, tuple(self._nodes), tuple(outputs))

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """What is sent, in order."""
        return tuple(one for node in self._nodes for one in self._sent.get(node.out, ()))

    def _value(self, a: Any) -> int:
        self.types[len(self.types)] = a
        return len(self.types) - 1

    def _append(self, node: Node) -> None:
        if any(value in self._waiting for value in node.values()):
            self._deferred.append(node)
            self._waiting.add(node.out)
        else:
            self._nodes.append(node)

    def _send_joined(self, mesh: str, axes: Axes, group: Sequence[_Waiting]) -> None:
        """Send sums as one, and assign their values."""
        first = group[0].transfer
        if len(group) == 1:
            (one,) = group
            self._assign(one.out, self.after(first.kind, one.operand, (mesh, axes, "sum"), (first,)))
            return
        flat = [self.emit(REGISTRY["reshape"], (one.operand,), ((_size(self.types[one.out]),),)) for one in group]
        whole = self.emit(REGISTRY["concat"], flat, (0,))
        sent = attrs.evolve(first, nbytes=sum(one.transfer.nbytes for one in group), arrays=len(group))
        total = self.after(first.kind, whole, (mesh, axes, "sum"), (sent,))
        start = 0
        for one in group:
            a = self.types[one.out]
            stop = start + _size(a)
            piece = self.emit(REGISTRY["slice"], (total,), (((start, stop, 1),),))
            self._assign(one.out, self.emit(REGISTRY["reshape"], (piece,), (a.shape,)))
            start = stop

    def _assign(self, out: int, value: int) -> None:
        """Make `out` the value that the last operation has computed as `value`."""
        node = self._nodes.pop()
        assert node.out == value
        self._nodes.append(Node(node.instr, node.ins, out, node.location))
        self.types[out] = node.instr.aval
        if self.latest == value:
            self.latest = out


def _size(a: Aval) -> int:
    return math.prod(a.shape)
