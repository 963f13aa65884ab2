"""Of ``jax.interpreters.batching``, tables of rules, which may be written to and which nothing reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gtrace.jax.adapt import internal

primitive_batchers: dict[Any, Any] = {}
axis_primitive_batchers: dict[Any, Any] = {}
fancy_primitive_batchers: dict[Any, Any] = {}

not_mapped = None
"""The axis of an operand without a batch."""


def register_vmappable(
    data_type: type, spec_type: type, axis_size_type: type, to_elt: Callable[..., Any], from_elt: Callable[..., Any],
    make_iota: Callable[..., Any] | None,
) -> None:  # fmt: skip
    """Do nothing: `vmap` takes apart what is a pytree."""


__getattr__ = internal("jax.interpreters.batching")
