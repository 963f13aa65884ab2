"""What partitioning returns: the program of one process, and what it sends."""

from __future__ import annotations

import attrs

from gtrace.core.ir.aval import Aval, parse_aval
from gtrace.core.ir.graph import Graph, print_graph
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.sharding import Axes, Mesh, parse_mesh
from gtrace.core.ir.text import parse_graph
from gtrace.core.partitioner.serialized import DividedRecord, SentRecord


@attrs.frozen
class Transfer:
    """One collective of a partitioned program.

    Attributes:
        kind: its operation.
        axes: the mesh axes that it goes along.
        parts: how many processes take part; 2 for what each process of one mesh sends to one of another.
        nbytes: of its operand, on one process.
        location: the user's line that needed it; the first one, if several arrays are sent together.
        arrays: how many are sent together.
        times: how often it happens in a call of the program: once a step, in a loop whose length is known.
    """

    kind: str
    axes: Axes
    parts: int
    nbytes: int
    location: str | None
    arrays: int = 1
    times: int = 1

    @property
    def name(self) -> str:
        """The name of the collective."""
        return self.kind.removesuffix("_parts")

    @property
    def moved(self) -> float:
        """The bytes that each process sends, if the collective sends no more than it has to."""
        sent = REGISTRY[self.kind].collective
        assert sent is not None
        return self.times * self.nbytes * sent(self.parts)


@attrs.frozen(eq=False)
class Partitioned:
    """The program of one process.

    Attributes:
        mesh: the processes.
        graph: it takes the local parts of the inputs and returns those of the outputs. Further outputs only keep what
            sends them in the program.
        inputs: the types of the inputs as a whole, with their shardings, if they have any.
        avals: the types of the outputs as a whole, with their shardings.
        transfers: the collectives, in order.
        gathered: the operations that every process computes as a whole although an operand was divided: (name of the
            operation, the user's line).
    """

    mesh: Mesh
    graph: Graph
    inputs: tuple[Aval, ...]
    avals: tuple[Aval, ...]
    transfers: tuple[Transfer, ...]
    gathered: tuple[tuple[str, str | None], ...]

    def to_record(self, name: str) -> DividedRecord:
        """Return what the store keeps of it."""
        return DividedRecord(
            name, str(self.mesh), print_graph(self.graph), tuple(map(repr, self.inputs)), tuple(map(repr, self.avals)),
            tuple(SentRecord(**attrs.asdict(one)) for one in self.transfers), self.gathered,
        )  # fmt: skip

    @classmethod
    def from_record(cls, record: DividedRecord) -> Partitioned:
        """Return what `to_record` was made of, without the lines of its operations.

        Raises:
            GraphError, ValueError: the record is of none.
        """
        transfers = tuple(Transfer(**attrs.asdict(one)) for one in record.transfers)
        inputs, avals = (tuple(map(parse_aval, texts)) for texts in (record.inputs, record.avals))
        return cls(parse_mesh(record.mesh), parse_graph(record.graph), inputs, avals, transfers, record.gathered)
