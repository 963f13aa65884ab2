"""Reads fields of JSON objects and checks their types. Errors say what was expected."""

from __future__ import annotations

import collections.abc
import enum
import hashlib
import json
import math
import reprlib
import types
import typing
from collections.abc import Callable, Container, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import attrs

T = TypeVar("T")


class FieldError(ValueError):
    """A field is missing, or is not what is expected."""


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
        FieldError: the field is missing or has an unexpected value.
        ValueError: the data are no object.

    >>> field({"size": 3}, "size", "an integer", exactly(int))
    3
    >>> field({"size": "3"}, "size", "an integer", exactly(int))
    Traceback (most recent call last):
    gtrace.core.base.json_fields.FieldError: expected 'size' to be an integer, got '3'
    """
    if not isinstance(data, dict):
        raise ValueError(f"expected an object, got {_SHORT.repr(data)}")
    if name not in data:
        raise FieldError(f"expected a field {name!r}, got none")
    try:
        return convert(data[name])
    except FieldError:
        raise  # about a field inside
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise FieldError(f"expected {name!r} to be {expected}, got {_SHORT.repr(data[name])}") from error


def exactly(kind: type[T]) -> Callable[[Any], T]:
    """Return a function that returns values of exactly this type, and raises TypeError for others."""

    def convert(value: Any) -> T:
        if type(value) is not kind:
            raise TypeError(value)
        return value

    return convert


def to_json(record: Any, texts: Mapping[type, Callable[[Any], str]] = MappingProxyType({})) -> dict[str, Any]:
    """Return the fields of an attrs record in the terms of JSON.

    Args:
        texts: for each type that JSON does not have, the function that prints it.
    """

    def printed(_: Any, __: Any, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return value.value
        return texts[type(value)](value) if type(value) in texts else value

    return attrs.asdict(record, value_serializer=printed)


def reader(cls: type[T], texts: Mapping[type, Callable[[Any], Any]] = MappingProxyType({})) -> Callable[[Any], T]:
    """Return the function that makes a record of a JSON object, with each field checked by its type.

    It raises a ValueError for other data.

    Args:
        texts: for each type that JSON does not have, the function that parses it.

    >>> @attrs.frozen
    ... class Point:
    ...     sizes: tuple[int, ...]
    ...     name: str | None
    >>> reader(Point)({"sizes": [2, 3], "name": None})
    Point(sizes=(2, 3), name=None)
    """
    return _reader(cls, {str: exactly(str), bool: exactly(bool), int: whole, float: finite, **texts})


def _reader(kind: Any, known: Mapping[Any, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return the function that reads a value of a type. It raises one of Python's usual errors for other values."""
    if kind in known:
        return known[kind]
    if kind is Any:
        return lambda value: value
    inner, origin = typing.get_args(kind), typing.get_origin(kind)
    if origin is tuple:
        each = [_reader(one, known) for one in inner if one is not ...]
        several = ... in inner

        def read(value: Any) -> Any:
            items = exactly(list)(value)
            return tuple([one(x) for one, x in zip(each * len(items) if several else each, items, strict=True)])

        return read
    if origin is collections.abc.Mapping:
        key, item = (_reader(one, known) for one in inner)
        return lambda value: {key(k): item(v) for k, v in exactly(dict)(value).items()}
    if types.NoneType in inner:
        (other,) = (_reader(one, known) for one in inner if one is not types.NoneType)
        return lambda value: None if value is None else other(value)
    if inner:  # one of several types
        return lambda value: exactly(type(value) if type(value) in inner else inner[0])(value)
    if isinstance(kind, enum.EnumMeta):
        return kind
    hints = typing.get_type_hints(kind)
    kinds = [(each.name, hints[each.name]) for each in attrs.fields(kind)]
    fields = [(name, _words(one, known), _reader(one, known)) for name, one in kinds]
    return lambda data: kind(**{name: field(data, name, words, read) for name, words, read in fields})


def _words(kind: Any, known: Container[Any]) -> str:
    """Return a type in words."""
    if kind in known:
        return _WORDS.get(kind, "a text")
    inner = [_words(one, known) for one in typing.get_args(kind) if one not in (..., types.NoneType)]
    if typing.get_origin(kind) is tuple:
        return "a list"
    if types.NoneType in typing.get_args(kind):
        return f"null or {inner[0]}"
    if isinstance(kind, enum.EnumMeta):
        members: list[Any] = list(kind)
        return f"one of {', '.join(one.value for one in members)}"
    return "an object"


_WORDS = {bool: "true or false", int: "an integer", float: "a finite number"}


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


def items(data: Any, name: str) -> list[Any]:
    """Return a list field."""
    return field(data, name, "a list", exactly(list))


def texts(data: Any, name: str) -> dict[str, str]:
    """Return an object field whose values are strings."""
    exact = exactly(str)
    return field(data, name, "an object of texts", lambda value: {exact(k): exact(v) for k, v in value.items()})
