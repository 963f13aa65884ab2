"""Fields of JSON objects, read with their types checked. Errors say what was expected."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def with_checksum(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file states, and the checksum of that."""
    return {**data, "checksum": _checksum(data)}


def checked(text: str | bytes, form: int) -> dict[str, Any]:
    """Return the JSON object in the text of a file that `with_checksum` made.

    Args:
        form: the "format" that it must state.

    Raises:
        ValueError: it is none, of another format, or not what was written; says what was expected.

    >>> checked(json.dumps(with_checksum({"format": 2, "size": 3})), 2)["size"]
    3
    """
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError(f"expected a JSON object, got {type(data).__name__}")
    if data.get("format") != form:
        raise ValueError(f"expected format {form}, got {data.get('format')!r}")
    if data.get("checksum") != _checksum({k: v for k, v in data.items() if k != "checksum"}):
        raise ValueError("its checksum is not that of its content")
    return data


def _checksum(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def field(data: Any, name: str, expected: str, convert: Callable[[Any], T]) -> T:
    """Return a field, converted; `convert` raises one of Python's usual errors for a value that is not as expected.

    Raises:
        ValueError: it is missing, or is not what is expected.

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
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"expected {name!r} to be {expected}, got {data[name]!r}") from error


def exactly(kind: type[T]) -> Callable[[Any], T]:
    """Return a function that returns values of this very type, and raises TypeError for others."""

    def convert(value: Any) -> T:
        if type(value) is not kind:
            raise TypeError(value)
        return value

    return convert


def text(data: Any, name: str) -> str:
    """Return a field that is a text."""
    return field(data, name, "a text", exactly(str))


def integer(data: Any, name: str) -> int:
    """Return a field that is an integer."""
    return field(data, name, "an integer", exactly(int))


def number(data: Any, name: str) -> float:
    """Return a field that is a finite number."""

    def convert(value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise TypeError(value)
        return float(value)

    return field(data, name, "a finite number", convert)


def items(data: Any, name: str) -> list[Any]:
    """Return a field that is a list."""
    return field(data, name, "a list", exactly(list))


def texts(data: Any, name: str) -> dict[str, str]:
    """Return a field that is an object whose values are texts."""
    exact = exactly(str)
    return field(data, name, "an object of texts", lambda value: {exact(k): exact(v) for k, v in value.items()})
