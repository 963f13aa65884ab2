"""Users' classes as pytree nodes, for arguments and results of torch functions.

Modules return unregistered dataclasses, dictionaries with attributes, and objects such as caches. A class is registered
at its first instance that contains a tensor. What is no tree of such objects raises, because its tensors would have no
values.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterator
from typing import Any

import attrs
import optree
import torch

from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.trace.array import Array

_PLAIN = {
    type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.nn.Parameter, Array, torch.dtype,
    torch.device, torch.Size, type,
}  # fmt: skip
"""Types of leaves that are tensors or contain none."""


def flatten(name: str, value: Any, returned: bool = False) -> tuple[list[Any], tree.TreeDef]:
    """Return the leaves of a value and its structure; new user classes are registered.

    Args:
        name: the name of the function, for errors.
        returned: whether a traced function returned the value.

    Raises:
        ArgumentError: an object that is not a pytree was returned with a traced tensor inside.
    """
    registered: set[type] = set()
    while True:
        leaves, structure = tree.flatten(value)
        found = [x for x in leaves if type(x) not in _PLAIN and not isinstance(x, torch.Tensor)]
        new = {type(x) for x in found if _is_node(x) and next(_tensors(x), None) is not None}
        if new <= registered:
            break
        for cls in new - registered:
            _register(cls)
        registered |= new
    if returned:
        for x in found:
            if isinstance(x, Iterator) or any(type(each) not in _PLAIN for each in _tensors(x)):
                fix = "Return arrays in tuples, lists, dicts or attributes, or register its class by gt.tree.register."
                raise ArgumentError(message(name, "a function that returns arrays", f"one of {_named(x)}", fix))
    return leaves, structure


def _named(x: Any) -> str:
    return f"an iterator, {type(x).__name__}" if isinstance(x, Iterator) else f"{type(x).__name__} with tensors in it"


def _is_node(x: Any) -> bool:
    """Whether an object is made of its items and attributes alone, and does not contain itself."""
    cls = type(x)
    if isinstance(x, (Iterator, torch.nn.Module, functools.partial)) or not cls.__flags__ & _WRITTEN_IN_PYTHON:
        return False
    builtin = {base for base in cls.__mro__ if not base.__flags__ & _WRITTEN_IN_PYTHON}
    return builtin <= _SPLIT and not _contains_itself(x, set())


_WRITTEN_IN_PYTHON = 1 << 9
"""The flag of classes that were made by a class statement; see ``Py_TPFLAGS_HEAPTYPE`` of CPython."""

_SPLIT = {object, dict, list, tuple, collections.OrderedDict, collections.defaultdict}
"""Base classes in C whose contents are items."""


def _contains_itself(x: Any, above: set[int]) -> bool:
    if type(x) in _PLAIN or isinstance(x, (torch.Tensor, torch.nn.Module, type, types.ModuleType)):
        return False
    if id(x) in above:
        return True
    inner = above | {id(x)}
    return any(_contains_itself(each, inner) for each in _split(x)[0])


def _tensors(x: Any) -> Iterator[Any]:
    """Yield the tensors and Arrays in an object's items, attributes and closures."""
    seen: set[int] = set()
    waiting = [x]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, (torch.Tensor, Array)):
            yield one
            continue
        if type(one) in _PLAIN or isinstance(one, (type, types.ModuleType)):
            continue
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, (list, tuple, set, frozenset, collections.deque)):
            waiting += one
        elif isinstance(one, functools.partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, (types.MethodType, types.BuiltinMethodType)):
            waiting.append(one.__self__)
        elif isinstance(one, types.FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or () if _is_set(cell)]
        waiting += [value for _, value in _attributes(one)]


def _is_set(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # a variable without a value
        return False
    return True


def _attributes(x: Any) -> list[tuple[str, Any]]:
    """Return the names and values in an instance's dict and slots."""
    names = list(getattr(x, "__dict__", ()))
    for cls in type(x).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return [(name, getattr(x, name)) for name in dict.fromkeys(names) if name not in _OF_CLASSES and hasattr(x, name)]


_OF_CLASSES = {"__dict__", "__weakref__"}


# -- nodes


def _register(cls: Any) -> None:
    fields = attrs.fields(cls) if attrs.has(cls) else getattr(cls, "__dataclass_fields__", {}).values()
    if any(field.metadata.get("static") for field in fields):
        tree.register(cls)
    else:
        optree.register_pytree_node(cls, _split, functools.partial(_join, cls), namespace=tree.NAMESPACE)


def _split(x: Any) -> tuple[Any, ...]:
    """Return the children of an instance: its items, then its attributes without those that repeat an item."""
    if isinstance(x, dict):
        items = dict.items(x)
    else:
        items = dict(enumerate(x)).items() if isinstance(x, (list, tuple)) else {}.items()
    known = dict(items)
    others, repeated = [], []
    for key, value in _attributes(x):
        if isinstance(x, dict) and key in known and known[key] is value:
            repeated.append(key)
        else:
            others.append((key, value))
    keys = tuple(known), tuple([key for key, _ in others]), tuple(repeated), getattr(x, "default_factory", None)
    children = (*known.values(), *[value for _, value in others])
    return children, keys, (*keys[0], *keys[1])


def _join(cls: Any, keys: Any, children: Any) -> Any:
    items, others, repeated, factory = keys
    values = children[: len(items)]
    if issubclass(cls, tuple):
        made = tuple.__new__(cls, values)
    else:
        made = cls.__new__(cls) if issubclass(cls, (dict, list)) else object.__new__(cls)
    if issubclass(cls, list):
        list.extend(made, values)
    elif issubclass(cls, dict):
        base: Any = collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict
        for key, value in zip(items, values, strict=True):
            base.__setitem__(made, key, value)
    if factory is not None and issubclass(cls, collections.defaultdict):
        made.default_factory = factory
    known = dict(zip(items, values, strict=True))
    for key, value in (*zip(others, children[len(items) :], strict=True), *[(key, known[key]) for key in repeated]):
        object.__setattr__(made, key, value)
    return made
