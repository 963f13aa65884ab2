"""Structures of pytrees as JSON, with names for the classes of users."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gtrace.errors import ExportError
from gtrace.extend import ArgumentError, message
from gtrace.jax import paths
from gtrace.jax.structures import PyTreeDef


@attrs.frozen
class _Kind:
    """How nodes of a class are written.

    Attributes:
        build: from static data and children to a node.
    """

    type: type
    name: str
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    build: Callable[[Any, Sequence[Any]], Any]


_by_type: dict[type, _Kind] = {}
_by_name: dict[str, _Kind] = {}

_PLAIN: dict[str, Callable[[Sequence[Any]], Any]] = {"tuple": tuple, "list": list}


def _register(kind: _Kind) -> None:
    for table, key in ((_by_type, kind.type), (_by_name, kind.name)):
        if key in table:
            fix = "Register a class once, under a name of its own."
            raise ArgumentError(message("register_serialization", "a new class and name", repr(key), fix))
    _by_type[kind.type] = _by_name[kind.name] = kind


def register_pytree_node_serialization(
    nodetype: type, *, serialized_name: str, serialize_auxdata: Callable[[Any], bytes],
    deserialize_auxdata: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None,
) -> type:  # fmt: skip
    """Give a class of pytree nodes a name in exported functions; return it.

    Args:
        serialize_auxdata, deserialize_auxdata: from the static data of a node to bytes, and back.
        from_children: from static data and children to a node; by default that of ``register_pytree_node``.

    Raises:
        ArgumentError: the class or the name has been registered.
    """
    build = from_children or (lambda data, children: paths.node_of(nodetype, data, children))
    _register(_Kind(nodetype, serialized_name, serialize_auxdata, deserialize_auxdata, build))
    return nodetype


def register_namedtuple_serialization(nodetype: type, *, serialized_name: str) -> type:
    """Give a class of named tuples a name in exported functions; return it.

    Raises:
        ArgumentError: it is no such class, or the class or the name has been registered.

    >>> from typing import NamedTuple
    >>> class Point(NamedTuple):
    ...     x: float
    >>> Point is register_namedtuple_serialization(Point, serialized_name="docs.Point")
    True
    """
    if not (issubclass(nodetype, tuple) and hasattr(nodetype, "_fields")):
        fix = "Use register_pytree_node_serialization."
        raise ArgumentError(message("register_namedtuple_serialization", "a named tuple", nodetype.__name__, fix))
    _register(_Kind(nodetype, serialized_name, lambda _: b"", lambda _: None, lambda _, children: nodetype(*children)))
    return nodetype


def encode(structure: PyTreeDef) -> Any:
    """Return a structure as JSON: leaves are 0.

    Raises:
        ExportError: a node is of a class without a registered name, or a key of a dict is no text.
    """
    data = structure.node_data()
    if data is None:
        return 0
    kind, static = data
    inner = [encode(child) for child in structure.children()]
    if kind is type(None):
        return None
    if kind in (tuple, list):
        return [kind.__name__, inner]
    if kind in (dict, OrderedDict) and all(isinstance(key, str) for key in static):
        return [kind.__name__, inner, static]
    known = _by_type.get(kind)
    if known is None:
        got = "a dict with other keys" if issubclass(kind, dict) else kind.__name__
        fix = "Use dicts with text as keys, lists and tuples, or jax.export.register_pytree_node_serialization."
        raise ExportError(message("serialize", "pytrees of classes with registered names", got, fix))
    return ["registered", inner, known.name, base64.b64encode(bytes(known.write(static))).decode()]


def decode(data: Any) -> PyTreeDef:
    """Return the structure that `encode` wrote.

    Raises:
        ExportError: a name is not registered in this process.
    """
    return paths.structure(_tree(data))


def _tree(data: Any) -> Any:
    if data is None or data == 0:
        return data
    kind, inner, *rest = data
    children = [_tree(child) for child in inner]
    if kind in _PLAIN:
        return _PLAIN[kind](children)
    if kind in ("dict", "OrderedDict"):
        pairs = zip(rest[0], children, strict=True)
        return dict(pairs) if kind == "dict" else OrderedDict(pairs)
    known = _by_name.get(rest[0])
    if known is None:
        fix = "Call jax.export.register_pytree_node_serialization, as in the process that exported the function."
        raise ExportError(message("deserialize", "registered names of pytree nodes", repr(rest[0]), fix))
    return known.build(known.read(base64.b64decode(rest[1])), children)
