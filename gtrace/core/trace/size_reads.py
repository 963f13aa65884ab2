"""Sizes that a traced function reads: what it reads at some sizes, and what it makes of them.

Python code decides by sizes. So a trace holds for other sizes only if the code would decide the same there. What a
function reads is noted for several sizes: so it is known how that follows from the sizes of the arguments. Then it gets
integers that know this. Arithmetic with them is written down, and so is each comparison, as a condition on the sizes.
Code of gtrace itself reads plain integers; what it makes of them is tried instead. If it returns anything but Arrays to
other code, or if that code runs other instructions than with plain integers, the trace says nothing of other sizes.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attr
import optree
import torch

from gtrace.core.base.dtypes import DType
from gtrace.core.base.errors import GtraceError
from gtrace.core.base.locks import new_lock
from gtrace.core.base.open_numbers import Number
from gtrace.core.trace.array import Array

Read = tuple[int, ...]
"""The integers that a function has read at once."""

MOST_STEPS = 500_000
"""Steps of Python code outside of gtrace that are followed, at most."""

_lock = new_lock()
_PLACES = (
    os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep,
    os.path.dirname(attr.__file__) + os.sep,
    os.path.dirname(optree.__file__) + os.sep,
    weakref.__file__,
)
"""gtrace, and what it calls itself through: that decides nothing by sizes."""


def _is_outside(name: str) -> bool:
    """Whether a code file belongs to the user, or to any library but gtrace and those that it is made of."""
    return not (name.startswith(_PLACES) or (name.startswith("<attrs generated") and " gtrace." in name))


class Reads:
    """What code outside of gtrace gets to know of sizes while a function is traced, in this thread.

    Attributes:
        log: what it has read, in order.
        steps: the instructions that it has run: (code, place).
        leaks: where it got to know of a size in a way that nothing notes. Such a trace says nothing of other sizes.
    """

    def __init__(self, made: Sequence[Sequence[Number]] | None = None) -> None:
        self.log: list[Read] = []
        self.steps: list[tuple[types.CodeType, int]] = []
        self.leaks: list[str] = []
        self._made = None if made is None else iter(made)
        self._owner = threading.get_ident()

    def read(self, sizes: Read) -> Any:
        """Return what is read in place of these sizes."""
        self.log.append(sizes)
        if self._made is None:
            return sizes
        given = next(self._made, ())
        if tuple([x.value for x in given]) != sizes:
            self.leaks.append("other reads")
            return sizes
        return tuple([_size(x) for x in given])

    def sees(self, x: Array) -> bool:
        """Whether the caller of the property that asks is outside of gtrace."""
        if not _is_outside(sys._getframe(2).f_code.co_filename):
            return False
        if threading.get_ident() == self._owner:
            return True
        if x._buf is None and x._trace.capture is not None:
            self.leaks.append("another thread")
        return False

    def on_return(self, frame: types.FrameType, event: str, value: Any) -> None:
        """Look at what code of gtrace returns to code outside: Arrays, and what holds nothing else."""
        if event == "return" and not _is_outside(frame.f_code.co_filename) and frame.f_code not in _HARMLESS:
            caller = frame.f_back
            outside = caller is not None and _is_outside(caller.f_code.co_filename)
            if outside and frame.f_code.co_filename != __file__ and not _is_harmless(value):
                self.leaks.append(frame.f_code.co_qualname)

    def on_call(self, frame: types.FrameType, event: str, value: Any) -> Any:
        """Follow the instructions of code outside."""
        if not _is_outside(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.on_step

    def on_step(self, frame: types.FrameType, event: str, value: Any) -> Any:
        """Note an instruction, or an error of gtrace, whose text has sizes."""
        if event == "opcode":
            self.steps.append((frame.f_code, frame.f_lasti))
            if len(self.steps) > MOST_STEPS:
                self.leaks.append("too many steps")
                sys.settrace(None)
        elif event == "exception" and isinstance(value[1], GtraceError):
            self.leaks.append("an error")
        return self.on_step


def _is_harmless(value: Any) -> bool:
    kind = type(value)
    if kind in (tuple, list):
        return all(map(_is_harmless, value))
    if kind is dict:
        return all(map(_is_harmless, value.values()))
    if value is None or kind in (Size, DType, torch.dtype, torch.device) or kind.__module__ in _HELPERS:
        return True
    return isinstance(value, (Array, types.FunctionType, types.MethodType, functools.partial, type))


_HELPERS = ("gtrace.core.ops.indexed_updates", "gtrace.core.ops.key_arrays")
"""Where ``x.at[index]`` and keys come from: objects that hold Arrays."""


_HARMLESS = {vars(Array)[name].fget.__code__ for name in ("ndim", "dtype", "device", "itemsize")}
"""Functions whose results do not depend on sizes."""

_reading: Reads | None = None


def is_read() -> bool:
    """Whether sizes that code outside of gtrace reads are noted in this thread: nothing may come from a cache."""
    return _reading is not None and _reading._owner == threading.get_ident()


def note_leak(what: str) -> None:
    """Note that code outside may get to know of a size, if reads are noted in this thread."""
    if _reading is not None and is_read():
        _reading.leaks.append(what)


@contextlib.contextmanager
def noted(made: Sequence[Sequence[Number]] | None = None) -> Iterator[Reads]:
    """Return a block, and what code outside of gtrace reads of sizes in it, in this thread.

    One thread at a time may be in this context. A debugger that is at work is a leak. Garbage is not collected: what
    that calls, such as callbacks of weak references, would be taken for steps of the function.

    Args:
        made: what it reads instead, in this order: integers that note what is made of them.
    """
    global _reading
    reads = Reads(made)
    shape, size, length = (vars(Array)[name] for name in ("shape", "size", "__len__"))
    slot = next(vars(cls)["aval"] for cls in Array.__mro__ if "aval" in vars(cls))

    def own_shape(x: Array) -> Any:
        found: Read = x.aval.shape
        return reads.read(found) if reads.sees(x) else found

    def own_size(x: Array) -> Any:
        found = x.aval.size
        return reads.read((found,))[0] if reads.sees(x) else found

    def own_length(x: Array) -> int:
        found: int = length(x)
        if reads.sees(x):
            _look(reads.read((found,))[0])
        return found

    def own_aval(x: Array) -> Any:
        if reads.sees(x):
            reads.leaks.append("aval")
        return slot.__get__(x)

    own = {
        "shape": property(own_shape), "size": property(own_size), "__len__": own_length,
        "aval": property(own_aval, slot.__set__),
    }  # fmt: skip
    with _lock:
        if sys.gettrace() is not None or sys.getprofile() is not None:
            reads.leaks.append("a debugger")
            yield reads
            return
        collects = gc.isenabled()
        gc.disable()
        try:
            for name, value in own.items():
                setattr(Array, name, value)
            _reading = reads
            sys.settrace(reads.on_call)
            sys.setprofile(reads.on_return)
            yield reads
        finally:
            sys.setprofile(None)
            sys.settrace(None)
            if collects:
                gc.enable()
            _reading = None
            for name, value in (("shape", shape), ("size", size), ("__len__", length)):
                setattr(Array, name, value)
            if "aval" in vars(Array):
                delattr(Array, "aval")


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
    return _is_outside(sys._getframe(2).f_code.co_filename)


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
