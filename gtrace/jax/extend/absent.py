"""Classes of JAX's intermediate representation that have no instances, and the state of tracing.

Programs are recorded as gtrace's graphs, so there are no equations of JAX's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import attrs

from gtrace.extend import ArgumentError, message, thread


def refuse(name: str) -> NoReturn:
    """Raise, because JAX's intermediate representation is not supported.

    Raises:
        ArgumentError: always.
    """
    fix = "Use jax.extend.core.Primitive for operations of your own, and gt.make_graph for graphs."
    raise ArgumentError(message(f"jax.extend.core.{name}", "no use of JAX's equations and traces", "one", fix))


def refuse_kernel(name: str) -> NoReturn:
    """Raise, because kernels of Pallas are not supported.

    Raises:
        ArgumentError: always.
    """
    fix = "Give a kernel to gt.define_op as a torch function."
    raise ArgumentError(message(f"pallas.{name}", "no kernel of Pallas", "one", fix))


def refuse_native(name: str) -> NoReturn:
    """Raise, because native code for XLA is not supported.

    Raises:
        ArgumentError: always.
    """
    fix = "Call native code by an operator of torch (torch.library), in gt.define_op, or by jax.pure_callback."
    raise ArgumentError(message(f"jax.ffi.{name}", "no native code for XLA", "some", fix))


def absent_class(name: str, refuse: Callable[[str], NoReturn] = refuse) -> type:
    """Return a class of JAX's that has no instances; programs may ask for it with ``isinstance``."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        refuse(type(self).__name__)

    return type(name, (), {"__init__": init, "__module__": __name__, "__doc__": f"JAX's {name}; there are none here."})


def absent_function(name: str, refuse: Callable[[str], NoReturn] = refuse) -> Callable[..., NoReturn]:
    """Return a function of JAX's that refuses to be called, by calling `refuse` with its name."""

    def call(*args: Any, **kwargs: Any) -> NoReturn:
        refuse(name)

    call.__name__ = call.__qualname__ = name
    return call


Token, Trace = absent_class("Token"), absent_class("Trace")
TraceTag = absent_class("TraceTag")
LiteralArray, TypedNdArray = absent_class("LiteralArray"), absent_class("TypedNdArray")
TypedInt, TypedFloat, TypedComplex = absent_class("TypedInt"), absent_class("TypedFloat"), absent_class("TypedComplex")

Out = TypeVar("Out")
"""The type of results, in annotations of flax."""

global_result_handlers: dict[type, Any] = {}
"""JAX's table of what makes an array of a program's results, by class, which flax reads: there is none here."""

xla_backends: dict[str, Any] = {}
"""The platforms that XLA has begun to use, which chex reads: none."""


class Effect:
    """The base class of effects, of which libraries have kinds of their own. Programs here have none."""


take_current_trace, set_current_trace = absent_function("take_current_trace"), absent_function("set_current_trace")


@attrs.frozen(eq=False)
class OpaqueTraceState:
    """The function that is being traced or differentiated, or none; equal to another state of the same.

    Attributes:
        main: what traces have in its place, None.
    """

    capture: Any
    tape: Any
    main: None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OpaqueTraceState):
            return False
        return self.capture is other.capture and self.tape is other.tape

    def __hash__(self) -> int:
        return hash((id(self.capture), id(self.tape)))


def get_opaque_trace_state(convention: str | None = None) -> OpaqueTraceState:
    """Return what tells whether two places run in one traced or differentiated function.

    >>> import gtrace.jax as jax
    >>> state = get_opaque_trace_state()
    >>> state == get_opaque_trace_state(), jax.eval_shape(lambda: jax.numpy.float32(state == get_opaque_trace_state()))
    (True, ShapeDtypeStruct(shape=(), dtype=float32))
    """
    return OpaqueTraceState(thread.trace.capture, thread.trace.tape)


def find_top_trace(xs: Any) -> OpaqueTraceState:
    """Return what tells whether two places run in one traced function, whatever the values are."""
    return get_opaque_trace_state()


def concrete_or_error(force: Any, val: Any, context: str = "") -> Any:
    """Return a value, as `force` makes it; an error for a placeholder.

    Raises:
        ConcretizationError: it is a placeholder.
    """
    return val if force is None else force(val)


__all__ = [
    "Effect", "OpaqueTraceState", "Token", "Trace", "TraceTag",
    "concrete_or_error", "get_opaque_trace_state", "set_current_trace", "take_current_trace",
]  # fmt: skip
