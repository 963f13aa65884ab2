"""What the store keeps of a program that was divided among processes: the program of one of them, and what it sends."""

from __future__ import annotations

import json
from typing import Any

import attrs

from gtrace.core.base import json_fields

FORMAT = 1
"""Of the JSON; files of another format are not read."""


@attrs.frozen
class SentRecord:
    """A collective; see `gtrace.core.partitioner.partitioned.Transfer`."""

    kind: str
    axes: tuple[str, ...]
    parts: int
    nbytes: int
    location: str | None
    arrays: int
    times: int


@attrs.frozen
class DividedRecord:
    """A program of one process; see `gtrace.core.partitioner.partitioned.Partitioned`.

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
    transfers: tuple[SentRecord, ...]
    gathered: tuple[tuple[str, str | None], ...]

    def to_json(self) -> str:
        """Return the text of the file; it states its own checksum."""
        data = {"format": FORMAT, **attrs.asdict(self)}
        return json.dumps(json_fields.with_checksum(data))

    @classmethod
    def from_json(cls, text: str | bytes) -> DividedRecord:
        """Return the record in the text of a file.

        Raises:
            ValueError: it is none, of another format, or not what was written; says what was expected.
        """
        data = json_fields.checked(text, FORMAT)
        return cls(
            name=json_fields.text(data, "name"),
            mesh=json_fields.text(data, "mesh"),
            graph=json_fields.text(data, "graph"),
            inputs=json_fields.field(data, "inputs", "a list of texts", _texts),
            avals=json_fields.field(data, "avals", "a list of texts", _texts),
            transfers=tuple(map(_sent, json_fields.items(data, "transfers"))),
            gathered=json_fields.field(data, "gathered", "a list of [name, line]", _gathered),
        )


def _sent(data: Any) -> SentRecord:
    return SentRecord(
        json_fields.text(data, "kind"),
        json_fields.field(data, "axes", "a list of texts", _texts),
        json_fields.integer(data, "parts"),
        json_fields.integer(data, "nbytes"),
        json_fields.field(data, "location", "null or a text", _line),
        json_fields.integer(data, "arrays"),
        json_fields.integer(data, "times"),
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(json_fields.exactly(str), json_fields.exactly(list)(value)))


def _line(value: Any) -> str | None:
    return None if value is None else json_fields.exactly(str)(value)


def _gathered(value: Any) -> tuple[tuple[str, str | None], ...]:
    return tuple((json_fields.exactly(str)(name), _line(line)) for name, line in value)
