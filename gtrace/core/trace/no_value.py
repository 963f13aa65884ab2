"""Errors for an Array without a value: it is a placeholder, or was donated."""

from __future__ import annotations

from gtrace.core.base.errors import (
    ArrayConcretizationError,
    BoolConcretizationError,
    ConcretizationError,
    DonatedError,
    IntegerConcretizationError,
    LeakError,
    MaskConcretizationError,
    message,
    user_location,
)
from gtrace.core.trace.array_base import ArrayBase
from gtrace.core.trace.record import Donation

_KINDS = {
    "bool": BoolConcretizationError, "index": IntegerConcretizationError, "mask": MaskConcretizationError,
    "numpy": ArrayConcretizationError, "dlpack": ArrayConcretizationError,
}  # fmt: skip


def concretization(x: ArrayBase, cause: str) -> ConcretizationError:
    """Return the error for an operation that needs a placeholder's value."""
    fixes = {
        "bool": "Use gt.where to choose between values, or move the branch outside the traced function",
        "index": "Use an integer array index, or pass the number as a static argument",
        "thread": "Compute with it in the thread that traces the function",
        "mask": "Use gt.where(mask, x, 0) to keep the shape, or index outside the traced function",
        "size": "Pass size=, the size of the result, where the function takes it, or call it outside",
        "mode": 'Pass mode="wrap" or mode="clip", which need no values',
    }
    fix = fixes.get(
        cause, "Return the value and look at it outside the traced function, or pass it as a static argument"
    )
    trace = x._trace
    return _KINDS.get(cause, ConcretizationError)(
        f"[{cause}] expected a value, got the placeholder {x!r} while tracing {trace.capture}: it has no value yet."
        f" {fix}. (at {user_location()})"
    )


def leaked(x: ArrayBase) -> LeakError | DonatedError:
    """Return the error for a placeholder whose trace has ended, or a donated Array."""
    trace = x._trace
    if trace.__class__ is Donation:
        fix = "Use what the call returned, or leave the argument out of donate_argnums and donate_argnames."
        expected, got = "an array that has its value", f"{x.aval!r}, which was given away to {trace.capture}"
        return DonatedError(message("donate", expected, got, fix))
    made = (trace.locations or {}).get(x._number)
    return LeakError(
        f"[trace] expected an array of the running program, got the placeholder {x!r} of {trace.capture}, whose trace"
        f" is over{f' (made at {made})' if made else ''}. Return it from that function instead of storing it."
        f" (at {user_location()})"
    )
