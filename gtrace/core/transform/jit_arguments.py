"""The split arguments of a jitted function's call."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import attrs

from gtrace.core.base import tree


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
