"""Of ``jax.interpreters.ad``, classes that programs ask for with ``isinstance``, and tables of rules.

The tables may be written to. Nothing reads them, since there are no primitives of JAX's here.
"""

from __future__ import annotations

from typing import Any

from gtrace.jax.adapt import internal
from gtrace.jax.core import Tracer
from gtrace.jax.extend.absent import absent_class

primitive_jvps: dict[Any, Any] = {}
primitive_transposes: dict[Any, Any] = {}

Zero, UndefinedPrimal = absent_class("Zero"), absent_class("UndefinedPrimal")
JVPTracer = Tracer


def is_undefined_primal(x: Any) -> bool:
    """Return whether something stands for an operand that is differentiated: never.

    >>> is_undefined_primal(1.0)
    False
    """
    return isinstance(x, UndefinedPrimal)


def instantiate_zeros(tangent: Any) -> Any:
    """Return a tangent as it is: those that are zero are arrays here."""
    return tangent


__getattr__ = internal("jax.interpreters.ad")
