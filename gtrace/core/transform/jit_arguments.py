"""The split arguments of a jitted function's call, and its results as Arrays."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import attrs

from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift, python_scalar


@attrs.define(eq=False)
class Arguments:
    """The split arguments of one call.

    Attributes:
        args, kwargs: the arguments, with None in place of static ones.
        static: the static arguments, by position or name.
        static_key: their key, by value and type; None if there are none.
        leaves, structure: the leaves and the structure of the other arguments.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    static: list[tuple[int | str, Any]]
    static_key: Hashable
    leaves: list[Any]
    structure: tree.TreeDef

    @property
    def dynamic(self) -> Any:
        """The pytree of these leaves."""
        return (self.args, self.kwargs) if self.kwargs else self.args


def output_of(x: Any) -> Array:
    """Return a result as an Array; raise for what is none."""
    if type(x) is not Array and python_scalar(x) is None and not hasattr(x, "dtype"):
        fix = "Return arrays in dicts, lists and tuples."
        raise ArgumentError(message("jit", "arrays or numbers as results", type(x).__name__, fix))
    return lift("jit", x)
