"""The manifest of an exported function: a typed record, and the one place that reads and writes it as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base import json_fields
from gtrace.core.base.dtypes import DTYPES, LONG, SHORT
from gtrace.core.ir.aval import Aval, parse_aval

FORMAT = 2
"""Of the JSON; files of another format are not read."""


@attrs.frozen
class InputSpec:
    """What an input must be.

    Attributes:
        path: where it is among the arguments, as Python writes it.
        shape: sizes, and names of open ones.
    """

    path: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype
    device: str

    def __str__(self) -> str:
        return f"{LONG[self.dtype]}[{','.join(map(str, self.shape))}]"

    def to_json(self) -> list[Any]:
        """Return it in the terms of JSON."""
        return [self.path, list(self.shape), SHORT[self.dtype], self.device]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> InputSpec:
        """Return the specification that `to_json` wrote.

        Raises:
            ValueError, KeyError: it is none.
        """
        path, shape, dtype, device = data
        if not all(type(n) in (int, str) for n in shape):
            raise ValueError(shape)
        torch.device(device)
        return cls(str(path), tuple(shape), DTYPES[dtype], device)


@attrs.frozen
class CaseManifest:
    """One package of an exported function.

    Attributes:
        ones: the names of the open sizes that are 1.
        file: its name in the archive.
        sha256: of its content, in hexadecimal.
        guards: on the sizes of the inputs.
        text: the program in the IR's text.
    """

    ones: frozenset[str]
    file: str
    sha256: str
    guards: tuple[Any, ...]
    text: str

    @classmethod
    def from_json(cls, data: Any) -> CaseManifest:
        """Return the case that `ExportManifest.to_json` wrote.

        Raises:
            ValueError: it is none; says what was expected.
        """
        return cls(
            frozenset(json_fields.items(data, "ones")),
            json_fields.text(data, "file"),
            json_fields.text(data, "sha256"),
            tuple(json_fields.items(data, "guards")),
            json_fields.text(data, "text"),
        )


@attrs.frozen
class ExportManifest:
    """What the file of an exported function contains beside its code.

    Attributes:
        in_tree, out_tree: the structure of arguments and results, leaves as numbers.
        toolchain: see `gtrace.core.backends.toolchain.toolchain`.
    """

    name: str
    inputs: tuple[InputSpec, ...]
    out_avals: tuple[Aval, ...]
    in_tree: Any
    out_tree: Any
    toolchain: Mapping[str, str]
    cases: tuple[CaseManifest, ...]

    def to_json(self) -> str:
        """Return the text of the file."""
        data = {
            "format": FORMAT,
            "name": self.name,
            "inputs": [spec.to_json() for spec in self.inputs],
            "out_avals": [repr(a) for a in self.out_avals],
            "in_tree": self.in_tree,
            "out_tree": self.out_tree,
            "toolchain": dict(self.toolchain),
            "cases": [{**attrs.asdict(case), "ones": sorted(case.ones)} for case in self.cases],
        }
        return json.dumps(data, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> ExportManifest:
        """Return the manifest in the text of a file.

        Raises:
            ValueError: it is none, or of another format; says what was expected.
        """
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            got = data.get("format") if isinstance(data, dict) else data
            raise ValueError(f"its format is {got!r}, this gtrace reads {FORMAT}")
        return cls(
            name=json_fields.text(data, "name"),
            inputs=json_fields.field(data, "inputs", "a list of inputs", _inputs),
            out_avals=json_fields.field(data, "out_avals", "a list of types", _avals),
            in_tree=json_fields.field(data, "in_tree", "a tree", lambda tree: tree),
            out_tree=json_fields.field(data, "out_tree", "a tree", lambda tree: tree),
            toolchain=json_fields.texts(data, "toolchain"),
            cases=tuple(CaseManifest.from_json(case) for case in json_fields.items(data, "cases")),
        )


def _inputs(data: Any) -> tuple[InputSpec, ...]:
    try:
        return tuple(InputSpec.from_json(spec) for spec in data)
    except RuntimeError as error:  # of torch, for a device that there is not
        raise ValueError(str(error)) from error


def _avals(data: Any) -> tuple[Aval, ...]:
    return tuple(parse_aval(text) for text in data)
