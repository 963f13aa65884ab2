"""``jax.extend.core.primitives``: JAX's operations, none of which is ever met here, whatever their name."""

from __future__ import annotations

from typing import Any, NoReturn

from gtrace.core.base.errors import ArgumentError, message


class NamedPrimitive:
    """The name of an operation of JAX's, for comparisons.

    Attributes:
        name: as JAX has it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def bind(self, *args: Any, **params: Any) -> NoReturn:
        """Refuse: the function of that name in ``jax.lax`` records the operation.

        Raises:
            ArgumentError: always.
        """
        fix = "Call the function of that name in jax.lax."
        raise ArgumentError(message(f"{self.name}_p.bind", "no use of JAX's primitives", "a call", fix))

    def __repr__(self) -> str:
        return self.name


def __getattr__(name: str) -> Any:
    if not name.endswith("_p"):
        raise AttributeError(f"module 'jax.extend.core.primitives' has no attribute {name!r}")
    found = globals()[name] = NamedPrimitive(name.removesuffix("_p"))
    return found
