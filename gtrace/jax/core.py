"""Of ``jax.core``, the classes that programs ask for with ``isinstance``, and the state of tracing."""

from __future__ import annotations

from typing import Any

import numpy

from gtrace.extend import (
    Array,
    PRNGKeyArray,
    ShapeDtypeStruct,
    followed,
    followers,
    is_placeholder,
    sources,
    thread,
    with_values,
)
from gtrace.jax.avals import ShapedArray, get_aval, mapped_aval, raise_to_shaped, unmapped_aval
from gtrace.jax.extend.absent import (
    Effect,
    Trace,
    concrete_or_error,
    find_top_trace,
    get_opaque_trace_state,
    set_current_trace,
    take_current_trace,
)
from gtrace.jax.jaxprs import (
    Atom,
    ClosedJaxpr,
    DropVar,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    eval_jaxpr,
    jaxpr_as_fun,
    new_jaxpr_eqn,
    subjaxprs,
)
from gtrace.jax.primitives import Primitive


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


ensure_compile_time_eval = eval_context = with_values

Effects = set[Effect]
no_effects: Effects = set()
"""The effects of a program: none is told apart here."""

pytype_aval_mappings: dict[type, Any] = {numpy.ndarray: None}
"""The table that libraries put classes of arrays into. It is not read: what has ``__array__`` can be an argument."""


def _array_of(x: Any) -> Any:
    """Return the Array behind keys; else the argument."""
    return x._data if type(x) is PRNGKeyArray else x


class _PlaceholderType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        if cls is JVPTracer:
            return bool(followers) and type(instance) is Array and followed(instance)
        if cls is not Tracer:
            return type.__instancecheck__(cls, instance)
        x = _array_of(instance)
        if type(x) is not Array:
            return False
        given = sources(x) if is_placeholder(x) else [x]
        return given is None or (bool(followers) and any(map(followed, given)))


class Tracer(metaclass=_PlaceholderType):
    """The class of Arrays that have no value while a function is traced, and of Arrays that a gradient follows.

    >>> import gtrace.jax as jax
    >>> isinstance(jax.numpy.ones(2), jax.core.Tracer)
    False
    >>> jax.grad(lambda x: x * isinstance(x, jax.core.Tracer))(2.0)
    Array(1., dtype=float32)
    """


class JVPTracer(Tracer):
    """The class of Arrays that are differentiated.

    >>> import gtrace.jax as jax
    >>> jax.grad(lambda x: x * isinstance(x, JVPTracer))(2.0), jax.jit(lambda x: isinstance(x, JVPTracer))(2.0)
    (Array(1., dtype=float32), Array(False, dtype=bool))
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
    x = _array_of(x)
    return not (isinstance(x, Array) and is_placeholder(x)) or sources(x) is not None


def trace_state_clean() -> bool:
    """Return whether no function is being traced."""
    return thread.trace.capture is None


__all__ = [
    "AbstractValue", "Atom", "ClosedJaxpr", "DropVar", "Effect", "Effects", "Jaxpr", "JaxprEqn", "Literal", "Primitive",
    "ShapedArray", "Trace", "Tracer", "Var", "concrete_or_error", "ensure_compile_time_eval", "eval_jaxpr",
    "JVPTracer", "find_top_trace", "get_aval", "get_opaque_trace_state", "is_concrete", "jaxpr_as_fun", "mapped_aval",
    "new_jaxpr_eqn", "pytype_aval_mappings", "raise_to_shaped", "set_current_trace", "subjaxprs", "take_current_trace",
    "eval_context", "no_effects", "trace_state_clean", "unmapped_aval", "valid_jaxtype",
]  # fmt: skip
