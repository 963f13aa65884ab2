"""Reads fields of JSON objects and checks their types. Errors say what was expected."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import reprlib
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

T = TypeVar("T")

_SHORT = reprlib.Repr()
"""Shortens values in errors: damaged values may be long or deep."""
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


def with_checksum(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a file with their checksum."""
    return {**data, "checksum": _checksum(data)}


def parse(text: str | bytes) -> Any:
    """Parse a text of JSON.

    Raises:
        ValueError: it is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


def checked(text: str | bytes, form: int | None) -> dict[str, Any]:
    """Return the JSON object in the text of a file that `with_checksum` made.

    Args:
        form: the required value of "format"; None: any.

    Raises:
        ValueError: it is not such an object, has another format, or was changed; says what was expected.

    >>> checked(json.dumps(with_checksum({"format": 2, "size": 3})), 2)["size"]
    3
    """
    data = parse(text)
    if not isinstance(data, dict):
        raise ValueError(f"expected a JSON object, got {type(data).__name__}")
    if form is not None and data.get("format") != form:
        raise ValueError(f"expected format {form}, got {_SHORT.repr(data.get('format'))}")
    if data.get("checksum") != _checksum({k: v for k, v in data.items() if k != "checksum"}):
        raise ValueError("its checksum is not that of its content")
    return data


def _checksum(data: Mapping[str, Any]) -> str:
    try:
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


def field(data: Any, name: str, expected: str, convert: Callable[[Any], T]) -> T:
    """Return a field, converted; `convert` raises one of Python's usual errors for an unexpected value.

    Raises:
        ValueError: the field is missing or has an unexpected value.

    >>> field({"size": 3}, "size", "an integer", exactly(int))
    3
    >>> field({"size": "3"}, "size", "an integer", exactly(int))
    Traceback (most recent call last):
    ValueError: expected 'size' to be an integer, got '3'
    """
    if not isinstance(data, dict) or name not in data:
        raise ValueError(f"expected a field {name!r}, got none")
    try:
        return convert(data[name])
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"expected {name!r} to be {expected}, got {_SHORT.repr(data[name])}") from error


def exactly(kind: type[T]) -> Callable[[Any], T]:
    """Return a function that returns values of exactly this type, and raises TypeError for others."""

    def convert(value: Any) -> T:
        if type(value) is not kind:
            raise TypeError(value)
        return value

    return convert


_NAMES = {str: "a text", int: "an integer", float: "a finite number"}


def record(cls: type[T], data: Any) -> T:
    """Return the attrs record whose fields a JSON object holds, each checked by its type.

    >>> class Point(typing.NamedTuple):
    ...     sizes: tuple[int, ...]
    ...     name: str | None
    >>> record(Point, {"sizes": [2, 3], "name": None})
    Point(sizes=(2, 3), name=None)
    """
    kinds = typing.get_type_hints(cls)
    return cls(**{
        name: field(data, name, _NAMES.get(kind, str(kind)), functools.partial(_typed, kind))
        for name, kind in kinds.items()
    })  # fmt: skip


def _typed(kind: Any, value: Any) -> Any:
    """Return a value as one of a record's types; raises TypeError or ValueError for others."""
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        given = exactly(list)(value)
        kinds = inner[:1] * len(given) if inner[-1] is ... else inner
        return tuple([_typed(one, item) for one, item in zip(kinds, given, strict=True)])
    if inner:  # a union with None
        return None if value is None else _typed(inner[0], value)
    if attrs.has(kind):
        return record(kind, value)
    return {int: whole, float: finite}.get(kind, exactly(kind))(value)


def text(data: Any, name: str) -> str:
    """Return a string field."""
    return field(data, name, "a text", exactly(str))


def whole(value: Any) -> int:
    """Return an integer of 64 bits; raises TypeError or ValueError for other values."""
    if not -(2**63) <= exactly(int)(value) < 2**63:
        raise ValueError(value)
    return int(value)


def finite(value: Any) -> float:
    """Return a finite number; raises TypeError or OverflowError for other values."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError(value)
    return float(value)


def integer(data: Any, name: str) -> int:
    """Return an integer field of 64 bits."""
    return field(data, name, "an integer", whole)


def number(data: Any, name: str) -> float:
    """Return a field with a finite number."""
    return field(data, name, "a finite number", finite)


def items(data: Any, name: str) -> list[Any]:
    """Return a list field."""
    return field(data, name, "a list", exactly(list))


def texts(data: Any, name: str) -> dict[str, str]:
    """Return an object field whose values are strings."""
    exact = exactly(str)
    return field(data, name, "an object of texts", lambda value: {exact(k): exact(v) for k, v in value.items()})
