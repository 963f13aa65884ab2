"""Loops and branches in Python, as the setting `eager` has them: step after step, with values that can be read.

The user's functions see Arrays with values, so ``print``, ``breakpoint`` and ``if`` work in them. Functions that are
being traced have no values; there, loops and branches are recorded as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.config import config
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.trace.array import Array
from gtrace.core.trace.record import thread
from gtrace.core.transform.arguments import lift_outputs
from gtrace.core.transform.control.bodies import check_same, settle


def runs_in_python() -> bool:
    """Whether a loop or branch that is reached now runs in Python."""
    return config.current.eager and thread.trace.capture is None and thread.layout is None


def branch_in_python(name: str, functions: Sequence[Callable[..., Any]], index: Array, operands: Sequence[Any]) -> Any:
    """Return the results of the branch that a clamped index selects."""
    place = min(max(int(index), 0), len(functions) - 1)
    leaves, structure = lift_outputs(name, functions[place](*operands))
    return structure.unflatten(leaves)


def scan_in_python(
    f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, inputs: Sequence[Array], steps: int, reverse: bool
) -> tuple[Any, Any]:
    """Return the last carry, and the ys of all steps stacked in the order of `xs`.

    Args:
        init: the first carry, with Arrays as its leaves.
        inputs: the leaves of `xs`.
        steps: at least one.
    """
    carry, stacked, structure = init, [], tree.structure(xs)
    for k in reversed(range(steps)) if reverse else range(steps):
        out = f(carry, structure.unflatten([x[k] for x in inputs]))
        if not (isinstance(out, tuple) and len(out) == 2):
            got = type(out).__name__
            raise ArgumentError(message("scan", "(carry, y) from f", got, "Return a pair; y may be None."))
        carry = _next("scan", "the carry that f returns", carry, out[0])
        stacked.append(lift_outputs("scan", out[1]))
    rows, result = zip(*(reversed(stacked) if reverse else stacked), strict=True)
    return carry, result[0].unflatten([ops.stack(column) for column in zip(*rows, strict=True)])


def while_in_python(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], state: Any) -> Any:
    """Return the first state for which `cond_fun` is false. If that is the first of all, it keeps its types."""
    while bool(cond_fun(state)):
        state = _next("while_loop", "what body_fun returns", state, body_fun(state))
    return state


def _next(name: str, what: str, before: Any, after: Any) -> Any:
    """Return the next state of a loop with Arrays as its leaves; raise an ArgumentError if it has other types.

    A Python number takes the dtype that the body returns, as in a recorded loop.
    """
    (old, known), (new, structure) = lift_outputs(name, before), lift_outputs(name, after)
    avals = [x.aval for x in new]
    fitted = settle(old, avals) if structure == known else None
    expected = [x.aval for x in fitted or old]
    fix = "The carry keeps its structure, shapes and dtypes: cast it, or start with another."
    check_same(name, ("the step before", known, expected), (what, structure, avals), fix)
    return structure.unflatten(new)
