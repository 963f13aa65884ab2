"""Sizes that a trace of a function of torch leaves open; see `gtrace.core.base.open_numbers`.

A traced function meets them as ``torch.SymInt``, in Python and in C++.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base.errors import is_users
from gtrace.core.base.open_numbers import Number, Sizes, Value

OPEN = torch.SymInt, torch.SymFloat, torch.SymBool
"""Classes of open numbers."""


@attrs.frozen(eq=False)
class Open:
    """A number of a trace that each call computes anew.

    Attributes:
        place: its index among the numbers of the trace.
        value: its value in the call that was traced.
    """

    place: int
    value: Value


def is_open(x: Any) -> bool:
    """Whether a value is an open number."""
    return isinstance(x, OPEN) and not x.node.is_constant()


def current(x: Any) -> Any:
    """Return the value of an open number in the current call, without depending on it; other values are unchanged."""
    return x.value if x.__class__ is Open else x.node.value if isinstance(x, OPEN) else x


class Opened:
    """The arguments of a trace whose sizes are open.

    Attributes:
        sizes: the open sizes.
        shapes: the shapes of the tensors among the arguments.
        places: the open numbers that the trace has used, in order.
        guessed: whether sizes of some result were guessed, so that each call has to be looked at.
    """

    def __init__(self) -> None:
        self.guessed = False
        self.sizes = Sizes()
        self.shapes: list[Sequence[Any]] = []
        self.places: list[Number] = []
        self._known: dict[str, Open] = {}
        self._program: Callable[..., list[Value] | None] | None = None

    def open(self, value: int) -> torch.SymInt:
        """Return an additional open size, with its value in the current call."""
        return torch.SymInt(self.sizes.open(value))

    def number(self, value: Any) -> Any:
        """Return an open number as its `Open`; other values are unchanged."""
        if not isinstance(value, OPEN):
            return value
        node: Number = value.node
        if node.name is None:
            return node.value
        found = self._known.get(node.name)
        if found is None:
            found = self._known[node.name] = Open(len(self.places), node.value)
            self.places.append(node)
        return found

    def program(self) -> Callable[..., list[Value] | None]:
        """Return a function of the open sizes that gives the numbers of the trace, or None if it does not hold.

        It is made once, when the trace has ended.
        """
        if self._program is None:
            self._program = self.sizes.program(self.places)
        return self._program


@contextlib.contextmanager
def classes_noticed(sizes: Sizes) -> Iterator[None]:
    """Fix the open sizes when the function asks for the class of one, as by ``isinstance(n, int)``, in this thread.

    torch's own code knows the classes of open numbers. One thread at a time may be in this context.
    """
    owner = threading.get_ident()
    known: dict[types.CodeType, bool] = {}

    def asks(code: types.CodeType) -> bool:
        if code not in known:
            known[code] = is_users(code.co_filename) and _names_classes(code)
        return known[code]

    def told(x: Any, name: str) -> Any:  # `isinstance` asks for the attribute unless the class itself is the right one
        if name == "__class__" and threading.get_ident() == owner and asks(sys._getframe(1).f_code):
            sizes.fix()
        return object.__getattribute__(x, name)

    for cls in OPEN:
        setattr(cls, "__getattribute__", told)  # noqa: B010 - for the instances
    try:
        yield
    finally:
        for cls in OPEN:
            delattr(cls, "__getattribute__")


def _names_classes(code: types.CodeType) -> bool:
    """Whether code may ask for a class itself; else torch's C++ does, which it calls."""
    return not _CLASS_NAMES.isdisjoint(code.co_names) or _MATCH_CLASS in code.co_code[::2]


_CLASS_NAMES = {"isinstance", "issubclass", "__class__", "__instancecheck__"}
_MATCH_CLASS = dis.opmap["MATCH_CLASS"]
