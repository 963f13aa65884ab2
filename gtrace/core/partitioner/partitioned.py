"""What partitioning returns: the program of one process, and what it sends; also as a file for later processes."""

from __future__ import annotations

import json

import attrs

from gtrace.core.base import json_fields
from gtrace.core.ir.aval import Aval, parse_aval
from gtrace.core.ir.graph import Graph, print_graph
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.sharding import Axes, Mesh, parse_mesh
from gtrace.core.ir.text import parse_graph

FORMAT = 1
"""Of the JSON of divided programs; files of another format are not read."""


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


@attrs.frozen
class DividedRecord:
    """What the store keeps of a `Partitioned`.

    Attributes:
        name: under which the store keeps it: a digest of the program of all processes, the mesh, the rank and gtrace.
        graph: as the IR's text.
        inputs, avals: the types of the inputs and outputs, as text.
    """

    name: str
    mesh: str
    graph: str
    inputs: tuple[str, ...]
    avals: tuple[str, ...]
    transfers: tuple[Transfer, ...]
    gathered: tuple[tuple[str, str | None], ...]

    def to_json(self) -> str:
        """Return the text of the file; it states its own checksum."""
        return json.dumps(json_fields.with_checksum({"format": FORMAT, **attrs.asdict(self)}))

    @classmethod
    def from_json(cls, text: str | bytes) -> DividedRecord:
        """Return the record in the text of a file; raises a ValueError that says what was expected."""
        return _read(json_fields.checked(text, FORMAT))


_read = json_fields.reader(DividedRecord)


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
            self.transfers, self.gathered,
        )  # fmt: skip

    @classmethod
    def from_record(cls, record: DividedRecord) -> Partitioned:
        """Return what `to_record` was made of, without the lines of its operations.

        Raises:
            GraphError, ValueError: the record is of none.
        """
        inputs, avals = (tuple(map(parse_aval, texts)) for texts in (record.inputs, record.avals))
        return cls(parse_mesh(record.mesh), parse_graph(record.graph), inputs, avals, record.transfers, record.gathered)
