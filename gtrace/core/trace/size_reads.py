"""Sizes that a traced function reads: what it reads at some sizes, and what it makes of them.

Python code decides by sizes. So a trace holds for other sizes only if the code would decide the same there. `logged`
notes what a function reads, for several sizes: so it is known how that follows from the sizes of the arguments. `noted`
gives the function integers that know this. Arithmetic with them is written down, and so is each comparison, as a
condition on the sizes. Code of gtrace itself reads plain integers; what it makes of them is tried instead.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gtrace.core.base.errors import is_users
from gtrace.core.base.locks import new_lock
from gtrace.core.base.open_numbers import Number
from gtrace.core.trace.array import Array

Read = tuple[int, ...]
"""The integers that a function has read at once."""

_lock = new_lock()


@contextlib.contextmanager
def logged() -> Iterator[list[Read]]:
    """Return a block, and a list of what code of the user reads of Arrays in it, in this thread."""
    log: list[Read] = []

    def read(sizes: Read) -> Read:
        log.append(sizes)
        return sizes

    with _reading(read):
        yield log


@contextlib.contextmanager
def noted(made: Sequence[Sequence[Number]]) -> Iterator[None]:
    """Return a block in which code of the user reads integers that note what is made of them, in this thread.

    Args:
        made: these, in the order in which they are read.

    Raises (inside):
        OtherReadsError: something else is read.
    """
    rest = iter(made)

    def read(sizes: Read) -> Read:
        given = next(rest, ())
        if tuple([x.value for x in given]) != sizes:
            raise OtherReadsError(f"{sizes}")
        return tuple([_size(x) for x in given])

    with _reading(read):
        yield


class OtherReadsError(Exception):
    """A function has read other sizes than before."""


@contextlib.contextmanager
def _reading(read: Callable[[Read], Read]) -> Iterator[None]:
    """Let `read` see the sizes that code of the user reads. One thread at a time may be in this context."""
    owner = threading.get_ident()
    shape, size, length = (vars(Array)[name] for name in ("shape", "size", "__len__"))

    def is_read() -> bool:
        return threading.get_ident() == owner and is_users(sys._getframe(2).f_code.co_filename)

    def own_shape(x: Array) -> Read:
        found: Read = x.aval.shape
        return read(found) if is_read() else found

    def own_size(x: Array) -> int:
        found = x.aval.size
        return read((found,))[0] if is_read() else found

    def own_length(x: Array) -> int:
        found: int = length(x)
        if is_read():
            _look(read((found,))[0])
        return found

    with _lock:
        try:
            setattr(Array, "shape", property(own_shape))  # noqa: B010 - the type of Array states its own names
            setattr(Array, "size", property(own_size))  # noqa: B010
            setattr(Array, "__len__", own_length)  # noqa: B010
            yield
        finally:
            setattr(Array, "shape", shape)  # noqa: B010
            setattr(Array, "size", size)  # noqa: B010
            setattr(Array, "__len__", length)  # noqa: B010


class Size:
    """What a function reads in place of an int. It counts as one, and notes what is made of it.

    It is no subclass, whose value C code and floats would read without a word. They ask for ``__index__``.
    """

    __slots__ = ("number",)

    __class__ = property(lambda self: int)  # for `isinstance`

    def __init__(self, number: Number) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return int, (self.number.looked_at(),)


def _size(number: Number) -> Any:
    """Return an integer that notes; a constant is plain."""
    return number.value if number.name is None else Size(number)


def _plain(x: Any) -> Any:
    return x.number.value if type(x) is Size else x


def _look(x: Any) -> None:
    """Depend on the value of an integer."""
    if type(x) is Size:
        x.number.looked_at()


def _from_outside() -> bool:
    """Whether the caller of the method that asks is code of the user."""
    return is_users(sys._getframe(2).f_code.co_filename)


def _pair(x: Size, other: Any) -> tuple[Number, Number]:
    return x.number, other.number if type(other) is Size else x.number.wrap_int(int(other))


def _arithmetic(name: str, operation: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Size, Any], Any]:
    def method(self: Size, other: Any) -> Any:
        if not isinstance(other, int):
            if isinstance(other, (float, complex, str, bytes, list, tuple)):
                _look(self)  # a float of it, or a sequence so many times
                return operation(other, self.number.value) if reflected else operation(self.number.value, other)
            return NotImplemented  # arrays
        one, two = reversed(_pair(self, other)) if reflected else _pair(self, other)
        return _size(one.sizes.computed(name, (one, two)))

    return method


def _comparison(name: str, operation: Callable[[Any, Any], Any]) -> Callable[[Size, Any], Any]:
    def method(self: Size, other: Any) -> Any:
        if not isinstance(other, int):
            if isinstance(other, (float, complex)):
                _look(self)
                return operation(self.number.value, other)
            return NotImplemented
        found = operation(self.number.value, _plain(other))
        if name != "eq" or not found or _from_outside():  # gtrace's own tables of types compare equal sizes
            self.number.sizes.computed(name, _pair(self, other)).looked_at()
        return found

    return method


def _fixing(operation: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Size, Any], Any]:
    """Return an operation whose result is a plain number, so the size is fixed."""

    def method(self: Size, other: Any) -> Any:
        if not isinstance(other, (int, float, complex)):
            return NotImplemented
        if _from_outside():
            _look(self)
            _look(other)
        one, two = self.number.value, _plain(other)
        return operation(two, one) if reflected else operation(one, two)

    return method


def _looking(name: str) -> Callable[..., Any]:
    def method(self: Size, *args: Any) -> Any:
        if _from_outside():
            _look(self)
            for other in args:
                _look(other)
        return getattr(self.number.value, name)(*map(_plain, args))

    return method


def _attribute(name: str) -> property:
    return property(lambda self: getattr(self.number.looked_at(), name))


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(Size, f"__{_name}__", _arithmetic(_name, getattr(operator, _name), False))
    setattr(Size, f"__r{_name}__", _arithmetic(_name, getattr(operator, _name), True))
for _name in ("truediv", "pow", "lshift", "rshift", "and_", "or_", "xor"):
    setattr(Size, f"__{_name.strip('_')}__", _fixing(getattr(operator, _name), False))
    setattr(Size, f"__r{_name.strip('_')}__", _fixing(getattr(operator, _name), True))
setattr(Size, "__divmod__", _fixing(divmod, False))  # noqa: B010
setattr(Size, "__rdivmod__", _fixing(divmod, True))  # noqa: B010
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Size, f"__{_name}__", _comparison(_name, getattr(operator, _name)))
for _name in (
    *("__hash__", "__repr__", "__str__", "__format__", "__bool__", "__int__", "__float__", "__index__", "__complex__"),
    *("__trunc__", "__round__", "__floor__", "__ceil__", "__neg__", "__pos__", "__abs__", "__invert__"),
    *("bit_length", "bit_count", "to_bytes", "as_integer_ratio", "conjugate", "is_integer"),
):
    setattr(Size, _name, _looking(_name))
for _name in ("real", "imag", "numerator", "denominator"):
    setattr(Size, _name, _attribute(_name))
