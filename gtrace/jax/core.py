"""Of ``jax.core``, the classes that programs ask for with ``isinstance``, and the state of tracing."""

from __future__ import annotations

from typing import Any

import numpy

from gtrace.core.ops.key_arrays import PRNGKeyArray
from gtrace.core.trace.array import Array
from gtrace.core.trace.force import is_placeholder
from gtrace.core.trace.record import thread
from gtrace.core.transform.eval_shape import ShapeDtypeStruct
from gtrace.jax.extend.absent import (
    ClosedJaxpr,
    DropVar,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Trace,
    Var,
    absent_function,
    get_opaque_trace_state,
    set_current_trace,
    take_current_trace,
)


class ShapedArray(ShapeDtypeStruct):
    """The shape and the dtype of an array, with JAX's further arguments, which say nothing here.

    >>> ShapedArray((2,), "float32", weak_type=True)
    ShapeDtypeStruct(shape=(2,), dtype=float32)
    """

    def __init__(self, shape: Any, dtype: Any, weak_type: bool = False, **options: Any) -> None:
        super().__init__(shape, dtype)


class _AbstractType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        if cls is not AbstractValue:
            return type.__instancecheck__(cls, instance)
        found = instance._data if type(instance) is PRNGKeyArray else instance
        return isinstance(found, ShapeDtypeStruct)


class AbstractValue(metaclass=_AbstractType):
    """The class of shapes with dtypes, those of keys included.

    >>> import gtrace.jax as jax
    >>> isinstance(jax.typeof(jax.random.key(0)), AbstractValue), isinstance(jax.numpy.ones(2), AbstractValue)
    (True, False)
    """


Atom = Var | Literal
eval_jaxpr = absent_function("eval_jaxpr")

pytype_aval_mappings: dict[type, Any] = {numpy.ndarray: None}
"""The table that libraries put classes of arrays into. It is not read: what has ``__array__`` can be an argument."""


class _PlaceholderType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        if cls is not Tracer:
            return type.__instancecheck__(cls, instance)
        return isinstance(instance, Array) and is_placeholder(instance)


class Tracer(metaclass=_PlaceholderType):
    """The class of placeholders, Arrays of a function that is being traced.

    >>> import gtrace.jax as jax
    >>> isinstance(jax.numpy.ones(2), jax.core.Tracer)
    False
    """


def valid_jaxtype(x: Any) -> bool:
    """Return whether something can be an argument of a traced function: an array or a number.

    >>> valid_jaxtype(1.0), valid_jaxtype("a")
    (True, False)
    """
    if isinstance(x, (numpy.ndarray, numpy.generic)):
        return x.dtype.kind in "biufcV"
    return isinstance(x, (Array, bool, int, float, complex))


def is_concrete(x: Any) -> bool:
    """Return whether a value is known, and no placeholder."""
    return not isinstance(x, Tracer)


def trace_state_clean() -> bool:
    """Return whether no function is being traced."""
    return thread.trace.capture is None


def concrete_or_error(force: Any, val: Any, context: str = "") -> Any:
    """Return a value, as `force` makes it; an error for a placeholder.

    Raises:
        ConcretizationError: it is a placeholder.
    """
    return val if force is None else force(val)


__all__ = [
    "AbstractValue", "Atom", "ClosedJaxpr", "DropVar", "Jaxpr", "JaxprEqn", "Literal", "Primitive", "ShapedArray",
    "Trace", "Tracer", "Var", "concrete_or_error", "eval_jaxpr", "get_opaque_trace_state", "is_concrete",
    "pytype_aval_mappings", "set_current_trace", "take_current_trace", "trace_state_clean", "valid_jaxtype",
]  # fmt: skip
