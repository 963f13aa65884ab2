"""What the store keeps beside compiled code: a typed record, and the one place that reads and writes it as JSON."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any

import attrs
import torch

from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.symbolic import Relation
from gtrace.core.base import json_fields
from gtrace.core.ir.aliasing import Pairs
from gtrace.core.ir.aval import Aval, parse_aval
from gtrace.core.ir.graph import Scalar, print_graph
from gtrace.core.ir.text import parse_graph

FORMAT = 6
"""Of the JSON; manifests of another format are not read."""


class VerdictKind(enum.Enum):
    """Why an artifact is not used: the compiler failed, the code was slower than interpreting, or it was wrong."""

    FAILED = "failed"
    DEMOTED = "demoted"
    QUARANTINED = "quarantined"

    @property
    def meaning(self) -> str:
        """The kind as a clause.

        >>> VerdictKind.DEMOTED.meaning
        'it was slower'
        """
        return _MEANINGS[self]


_MEANINGS = {
    VerdictKind.FAILED: "compiling failed",
    VerdictKind.DEMOTED: "it was slower",
    VerdictKind.QUARANTINED: "it was wrong",
}


@attrs.frozen
class Verdict:
    """What an earlier process found out about a program, and the details."""

    kind: VerdictKind
    reason: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.reason}"


@attrs.frozen
class StoredCode:
    """The compiled code of an artifact.

    Attributes:
        file: its name in the store's folder.
        sha256: of its content, in hexadecimal.
        size: in bytes.
    """

    file: str
    sha256: str
    size: int


@attrs.frozen
class Manifest:
    """One artifact: what was compiled, with what, into what, and what became of it.

    Attributes:
        name: under which the store keeps it: the digest of the request, after that of the family if sizes are open.
        program: the exact signature of the program that it is a part of.
        structural: its signature with sizes and scalars left open.
        ops: operations that were compiled.
        graph: the compiled graph, as the IR's text. The other parts of the request are `strides`, `mode`, `relations`,
            `threads`, `native` and `donated`; see `gtrace.core.backends.request.CompileRequest`.
        constants: with open sizes: the scalars that hold for all sizes, None for those that are inputs.
        guards: on the open sizes, under which the code is right.
        device: that it runs on.
        toolchain: see `gtrace.core.backends.toolchain.toolchain`.
        created: seconds since 1970.
        code: None if compiling failed.
        verdict: why it is not used; None: it is.
    """

    name: str
    program: str
    structural: str
    ops: int
    graph: str
    strides: tuple[tuple[int, ...], ...]
    mode: str
    relations: tuple[Relation, ...] | None
    threads: int
    device: torch.device
    toolchain: Mapping[str, str]
    created: float
    native: bool = False
    constants: tuple[Scalar | None, ...] = ()
    guards: tuple[Any, ...] = ()
    donated: Pairs = ()
    compile_seconds: float = 0.0
    code: StoredCode | None = None
    verdict: Verdict | None = None

    @classmethod
    def of_request(cls, request: CompileRequest, **others: Any) -> Manifest:
        """Return the manifest of a request; `others` are those that do not follow from it."""
        return cls(
            graph=print_graph(request.graph),
            ops=len(request.graph.nodes),
            strides=request.strides,
            mode=request.mode,
            relations=request.relations,
            threads=request.threads,
            native=request.native,
            donated=request.donated,
            **others,
        )

    def request(self) -> CompileRequest:
        """Return what was compiled.

        Raises:
            GraphError: the graph is none.
        """
        given = parse_graph(self.graph), self.strides, "inductor", self.mode, self.relations, self.threads
        return CompileRequest(*given, native=self.native, donated=self.donated)

    @property
    def size(self) -> int:
        """Bytes of its code."""
        return 0 if self.code is None else self.code.size

    def to_json(self) -> str:
        """Return the text of the file; it states its own checksum."""
        data = {"format": FORMAT, **json_fields.to_json(self, {Aval: repr, torch.device: str})}
        return json.dumps(json_fields.with_checksum(data), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Return the manifest in the text of a file.

        Raises:
            ValueError: it is none, of another format, or not what was written; says what was expected.
        """
        return _read(json_fields.checked(text, FORMAT))


def _device(text: Any) -> torch.device:
    return torch.device(json_fields.exactly(str)(text))  # which this machine need not have


_read = json_fields.reader(Manifest, {Aval: parse_aval, torch.device: _device})
