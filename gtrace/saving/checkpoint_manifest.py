"""The manifest of a checkpoint: an entry for each leaf, and its form as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import attrs

from gtrace.core.base import json_fields
from gtrace.core.ir.aval import Aval, layout, parse_aval

FORMAT = 2
"""The format of the JSON; other formats are not read."""

PLAIN = (bool, int, float, str)
"""Python types that are saved as JSON values."""

MAX_PROCESSES = 1 << 16
"""The maximal number of processes of a mesh, so that a damaged manifest cannot fill the memory."""

_MAX_BYTES = 1 << 63


@attrs.frozen
class SavedValue:
    """A leaf that is a Python value."""

    value: bool | int | float | str

    def to_json(self) -> dict[str, Any]:
        """Return its JSON form."""
        return {"value": self.value}


@attrs.frozen
class SavedArray:
    """A leaf that is an array.

    Attributes:
        aval: its type, with its sharding.
        strides: None if its memory is in the order of its axes.
    """

    aval: Aval
    strides: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return its JSON form."""
        entry: dict[str, Any] = {"type": repr(self.aval)}
        return entry if self.strides is None else {**entry, "strides": list(self.strides)}


Leaves = dict[str, SavedValue | SavedArray]


def print_manifest(step: int, leaves: Mapping[str, SavedValue | SavedArray]) -> str:
    """Return the text of a manifest."""
    entries = {name: leaf.to_json() for name, leaf in leaves.items()}
    return json.dumps(json_fields.with_checksum({"format": FORMAT, "step": step, "leaves": entries}))


def parse_manifest(text: str | bytes) -> Leaves:
    """Return the leaves in the text of a manifest, by name.

    Raises:
        ValueError: the text is invalid, damaged or of another format; says what was expected.

    >>> text = print_manifest(3, {"rate": SavedValue(0.1), "w": SavedArray(parse_aval("f32[2,3]"))})
    >>> parse_manifest(text)["w"].aval
    f32[2,3]
    """
    try:
        data = json_fields.checked(text, FORMAT)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    leaves = json_fields.field(data, "leaves", "an object", json_fields.exactly(dict))
    return {name: _leaf(name, entry) for name, entry in leaves.items()}


def _leaf(name: str, entry: Any) -> SavedValue | SavedArray:
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object for {name!r}, got {type(entry).__name__}")
    if "value" in entry:
        return SavedValue(json_fields.field(entry, "value", f"a number or a text for {name!r}", _plain))
    saved = json_fields.field(entry, "type", f"the type of {name!r}", _aval)
    if "strides" not in entry:
        return SavedArray(saved)
    return SavedArray(saved, json_fields.field(entry, "strides", f"strides of {saved}", lambda s: _strides(s, saved)))


def _plain(value: Any) -> bool | int | float | str:
    if type(value) not in PLAIN:
        raise TypeError(value)
    plain: bool | int | float | str = value
    return plain


def _aval(text: Any) -> Aval:
    if not isinstance(text, str):
        raise TypeError(text)
    if math.prod(int(n) for n in re.findall(r"=(\d+)", text)) > MAX_PROCESSES:
        raise ValueError(f"a mesh of more than {MAX_PROCESSES} processes")
    saved = parse_aval(text)
    # sizes of 0 count as 1, as they do in strides
    if math.prod(max(n, 1) for n in saved.shape) * saved.dtype.itemsize >= _MAX_BYTES:
        raise ValueError("more bytes than a memory can have")
    return saved


def _strides(value: Any, saved: Aval) -> tuple[int, ...]:
    """Return the strides of a dense array; other strides would need memory that the file does not fill."""
    if type(value) is not list or not all(type(n) is int and 0 <= n < _MAX_BYTES for n in value):
        raise TypeError(value)
    if len(value) != len(saved.shape) or layout(saved.shape, value) is None:
        raise ValueError(value)
    return tuple(value)
