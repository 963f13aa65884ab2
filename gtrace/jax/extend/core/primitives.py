"""``jax.extend.core.primitives``: JAX's operations under their names. Each can be bound to operands and parameters."""

from __future__ import annotations

from typing import Any

from gtrace.extend import ArgumentError, message
from gtrace.jax.extend.core import binding
from gtrace.jax.primitives import Primitive


class NamedPrimitive(Primitive):
    """An operation of JAX's, or one of gtrace's that JAX has not. `named` makes them: one a name.

    Attributes:
        name: as JAX has it.
        multiple_results: whether `bind` returns a list.
    """

    def __init__(self, name: str, multiple_results: bool = False) -> None:
        super().__init__(name)
        self.multiple_results = multiple_results or name in binding.SEVERAL

    def bind(self, *args: Any, **params: Any) -> Any:
        """Record the operation.

        Raises:
            ArgumentError: there is no operation of this name here.
        """
        rule = binding.RULES.get(self.name)
        if rule is not None:
            return rule(*args, **params)
        if not binding.is_operation(self.name):
            fix = "Call the function of that name in jax.lax."
            raise ArgumentError(message(f"{self.name}_p.bind", "an operation that gtrace has", self.name, fix))
        return binding.bind_operation(self.name, self.multiple_results, args, params)


_made: dict[str, NamedPrimitive] = {}


def named(name: str, multiple_results: bool = False) -> NamedPrimitive:
    """Return the operation of this name.

    >>> named("sin").bind(0.0), named("sin") is sin_p
    (Array(0., dtype=float32), True)
    """
    found = _made.get(name)
    if found is None:
        found = _made[name] = NamedPrimitive(name, multiple_results)
    return found


def __getattr__(name: str) -> Any:
    if not name.endswith("_p"):
        raise AttributeError(f"module 'jax.extend.core.primitives' has no attribute {name!r}")
    found = globals()[name] = named(binding.NAMES.get(name, name.removesuffix("_p")))
    return found


sin_p = named("sin")
