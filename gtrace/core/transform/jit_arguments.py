"""The arguments of a call of a jitted function, taken apart."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import attrs

from gtrace.core.base import tree


@attrs.define(eq=False)
class Arguments:
    """The arguments of one call, taken apart.

    Attributes:
        args, kwargs: with None in the place of static ones.
        static: the static ones, by position or name.
        static_key: their key, by value and type; None if there are none.
        leaves, structure: of the rest.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    static: list[tuple[int | str, Any]]
    static_key: Hashable
    leaves: list[Any]
    structure: tree.TreeDef

    @property
    def dynamic(self) -> Any:
        """The pytree whose leaves these are."""
        return (self.args, self.kwargs) if self.kwargs else self.args
