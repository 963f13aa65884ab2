"""What the store keeps beside compiled code: a typed record, and the one place that reads and writes it as JSON."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.symbolic import Relation
from gtrace.core.base import json_fields
from gtrace.core.ir.aliasing import Pairs
from gtrace.core.ir.aval import parse_aval
from gtrace.core.ir.graph import Scalar, print_graph
from gtrace.core.ir.text import parse_graph

FORMAT = 4
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

    def to_json(self) -> dict[str, Any]:
        """Return it in the terms of JSON."""
        return {"kind": self.kind.value, "reason": self.reason}

    @classmethod
    def from_json(cls, data: Any) -> Verdict:
        """Return the verdict that `to_json` wrote.

        Raises:
            ValueError: it is none; says what was expected.
        """
        return cls(json_fields.field(data, "kind", "a verdict", VerdictKind), json_fields.text(data, "reason"))


@attrs.frozen
class Code:
    """The compiled code of an artifact.

    Attributes:
        file: its name in the store's folder.
        sha256: of its content, in hexadecimal.
        size: in bytes.
    """

    file: str
    sha256: str
    size: int

    def to_json(self) -> dict[str, Any]:
        """Return it in the terms of JSON."""
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Code:
        """Return the code that `to_json` wrote.

        Raises:
            ValueError: it is none; says what was expected.
        """
        return cls(json_fields.text(data, "file"), json_fields.text(data, "sha256"), json_fields.integer(data, "size"))


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
    device: str
    toolchain: Mapping[str, str]
    created: float
    native: bool = False
    constants: tuple[Scalar | None, ...] = ()
    guards: tuple[Any, ...] = ()
    donated: Pairs = ()
    compile_seconds: float = 0.0
    code: Code | None = None
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
        data: dict[str, Any] = {"format": FORMAT, **attrs.asdict(self, recurse=False)}
        data["strides"] = [list(s) for s in self.strides]
        data["relations"] = None if self.relations is None else [r.to_json() for r in self.relations]
        data["constants"] = [None if x is None else [x.value, repr(x.aval)] for x in self.constants]
        data["guards"] = list(self.guards)
        data["donated"] = [list(pair) for pair in self.donated]
        data["toolchain"] = dict(self.toolchain)
        data["code"] = None if self.code is None else self.code.to_json()
        data["verdict"] = None if self.verdict is None else self.verdict.to_json()
        return json.dumps(json_fields.with_checksum(data), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Return the manifest in the text of a file.

        Raises:
            ValueError: it is none, of another format, or not what was written; says what was expected.
        """
        data = json_fields.checked(text, FORMAT)
        code, verdict = (json_fields.field(data, name, "null or an object", _object) for name in ("code", "verdict"))
        return cls(
            name=json_fields.text(data, "name"),
            program=json_fields.text(data, "program"),
            structural=json_fields.text(data, "structural"),
            ops=json_fields.integer(data, "ops"),
            graph=json_fields.text(data, "graph"),
            strides=json_fields.field(data, "strides", "lists of integers", _strides),
            mode=json_fields.text(data, "mode"),
            relations=json_fields.field(data, "relations", "null or a list of relations", _relations),
            threads=json_fields.integer(data, "threads"),
            native=json_fields.field(data, "native", "true or false", json_fields.exactly(bool)),
            device=json_fields.field(data, "device", "a device", _device),
            toolchain=json_fields.texts(data, "toolchain"),
            created=json_fields.number(data, "created"),
            constants=json_fields.field(data, "constants", "a list of null or [value, type]", _constants),
            guards=tuple(json_fields.items(data, "guards")),
            donated=json_fields.field(data, "donated", "pairs of integers", _pairs),
            compile_seconds=json_fields.number(data, "compile_seconds"),
            code=None if code is None else Code.from_json(code),
            verdict=None if verdict is None else Verdict.from_json(verdict),
        )


_list = json_fields.exactly(list)


def _device(value: Any) -> str:
    try:
        torch.device(json_fields.exactly(str)(value))
    except RuntimeError as error:
        raise ValueError(value) from error
    return str(value)


def _object(value: Any) -> dict[str, Any] | None:
    return None if value is None else json_fields.exactly(dict)(value)


def _strides(value: Any) -> tuple[tuple[int, ...], ...]:
    integer = json_fields.exactly(int)
    return tuple(tuple(integer(n) for n in _list(strides)) for strides in _list(value))


def _pairs(value: Any) -> Pairs:
    integer = json_fields.exactly(int)
    return tuple((integer(k), integer(j)) for k, j in map(_list, _list(value)))


def _relations(value: Any) -> tuple[Relation, ...] | None:
    return None if value is None else tuple(Relation.from_json(r) for r in _list(value))


def _constants(value: Any) -> tuple[Scalar | None, ...]:
    return tuple(None if x is None else _scalar(x) for x in _list(value))


def _scalar(pair: Sequence[Any]) -> Scalar:
    value, text = pair
    if type(value) not in (bool, int, float):
        raise TypeError(value)
    return Scalar(value, parse_aval(text))
