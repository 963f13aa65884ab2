"""The manifest of an exported function: a typed record, and its form as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.backends.guards import check as check_guard
from gtrace.core.base import json_fields
from gtrace.core.base.devices import as_device
from gtrace.core.base.dtypes import DTYPES, LONG, SHORT
from gtrace.core.ir.aval import Aval, parse_aval

FORMAT = 3
"""The format of the JSON; other formats are not read."""


@attrs.frozen
class InputSpec:
    """The specification of an input.

    Attributes:
        path: its path among the arguments, in Python's syntax.
        shape: sizes, and names of open ones.
    """

    path: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype
    device: str

    def __str__(self) -> str:
        return f"{LONG[self.dtype]}[{','.join(map(str, self.shape))}]"

    def to_json(self) -> list[Any]:
        """Return its JSON form."""
        return [self.path, list(self.shape), SHORT[self.dtype], self.device]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> InputSpec:
        """Return the specification that `to_json` wrote.

        Raises:
            ValueError, TypeError, KeyError: the data are invalid.
        """
        path, shape, dtype, device = data
        if type(path) is not str or type(shape) is not list or type(device) is not str:
            raise TypeError(data)
        if not all(type(n) is str or (type(n) is int and n >= 0) for n in shape):
            raise ValueError(shape)
        as_device(device)
        return cls(path, tuple(shape), DTYPES[dtype], device)


@attrs.frozen
class CaseManifest:
    """One package of an exported function.

    Attributes:
        ones: the names of the open sizes that are 1.
        file: its name in the archive.
        sha256: the hash of its content, in hexadecimal.
        guards: conditions on the sizes of the inputs.
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
            ValueError: the data are invalid; says what was expected.
        """
        return cls(
            json_fields.field(data, "ones", "a list of texts", _names),
            json_fields.field(data, "file", "the name of a package", _file_name),
            json_fields.text(data, "sha256"),
            tuple(json_fields.items(data, "guards")),
            json_fields.text(data, "text"),
        )


@attrs.frozen
class ExportManifest:
    """The content of an exported function's file, without its code.

    Attributes:
        in_tree, out_tree: the structures of arguments and results, with leaves as numbers.
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
        return json.dumps(json_fields.with_checksum(data), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> ExportManifest:
        """Return the manifest in the text of a file.

        Raises:
            ValueError: it is invalid, damaged or of another format; says what was expected.
        """
        try:
            return cls._parsed(text)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error

    @classmethod
    def _parsed(cls, text: str | bytes) -> ExportManifest:
        data = json_fields.checked(text, FORMAT)
        inputs = json_fields.field(data, "inputs", "a list of inputs", _inputs)
        out_avals = json_fields.field(data, "out_avals", "a list of types", _avals)
        cases = tuple(CaseManifest.from_json(case) for case in json_fields.items(data, "cases"))
        if not cases:
            raise ValueError("expected at least one package, got none")
        if len({case.file for case in cases}) < len(cases):
            raise ValueError("expected a package for each case, got one for two of them")
        sizes = sum(len(spec.shape) for spec in inputs)
        for case in cases:
            for guard in case.guards:
                check_guard(guard, sizes)
        return cls(
            name=json_fields.text(data, "name"),
            inputs=inputs,
            out_avals=out_avals,
            in_tree=json_fields.field(data, "in_tree", "a tree of the inputs", lambda tree: _tree(tree, len(inputs))),
            out_tree=json_fields.field(data, "out_tree", "a tree of results", lambda tree: _tree(tree, len(out_avals))),
            toolchain=json_fields.texts(data, "toolchain"),
            cases=cases,
        )


def _inputs(data: Any) -> tuple[InputSpec, ...]:
    return tuple(InputSpec.from_json(spec) for spec in json_fields.exactly(list)(data))


def _avals(data: Any) -> tuple[Aval, ...]:
    return tuple(parse_aval(text) for text in json_fields.exactly(list)(data))


def _names(data: Any) -> frozenset[str]:
    return frozenset(json_fields.exactly(str)(name) for name in json_fields.exactly(list)(data))


def _file_name(data: Any) -> str:
    """Return the name of a package, which must not be a path to another folder."""
    name = json_fields.exactly(str)(data)
    if "/" in name or "\\" in name or not name.endswith(".pt2"):
        raise ValueError(name)
    return name


def _tree(data: Any, leaves: int) -> Any:
    """Return a pytree in JSON form, after checking that each number below `leaves` appears once."""
    found: list[int] = []

    def walk(node: Any) -> None:
        if node is None:
            return
        if type(node) is int:
            found.append(node)
            return
        ((kind, inner),) = json_fields.exactly(dict)(node).items()
        if kind not in ("dict", "list", "tuple"):
            raise ValueError(kind)
        for item in json_fields.exactly(dict)(inner).values() if kind == "dict" else json_fields.exactly(list)(inner):
            walk(item)

    walk(data)
    if sorted(found) != list(range(leaves)):
        raise ValueError(data)
    return data
