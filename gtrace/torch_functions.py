"""Functions of torch on Arrays: what torch itself calls with them, and ``lift``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn

import attrs
import torch

from gtrace import torch_internals as internals
from gtrace import tree
from gtrace.aten.derive import Derived, recorded, trace_function
from gtrace.errors import ArgumentError, ConcretizationError, GtraceError, message, user_location
from gtrace.exact import exact_key
from gtrace.ir.aval import Aval
from gtrace.locks import new_lock
from gtrace.ops.create import array
from gtrace.trace.array import Array, materialize, wrap
from gtrace.trace.record import thread

__all__ = ["lift"]

MAX_CALLS = 4096
"""Kinds of calls that are remembered; beyond it all are forgotten and traced anew."""


@attrs.frozen(eq=False)
class Recorded:
    """A call of a torch function, traced.

    Attributes:
        derived: the function from the Arrays among the arguments to the tensors in the result.
        structure: of the result.
        others: the leaves of the result, None in the place of tensors.
    """

    derived: Derived
    structure: tree.TreeDef
    others: list[Any]

    def __call__(self, arrays: list[Array]) -> Any:
        results = iter(self.derived(arrays))
        return self.structure.unflatten([next(results) if x is TENSOR else x for x in self.others])


TENSOR = object()
"""Stands for a tensor among the leaves of a result."""


class CallTable:
    """The traced calls of torch functions, by function and kind of arguments."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, Recorded] = {}
        self._lock = new_lock()

    def call(self, name: str, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Record a call of a torch function.

        Raises:
            ArgumentError: the function writes to its arguments, or draws random numbers.
            ConcretizationError: the function looks at values while a gtrace function is traced.
        """
        leaves, structure = tree.flatten((args, kwargs))
        leaves = [array(x.detach()) if isinstance(x, torch.Tensor) else x for x in leaves]
        arrays = [x for x in leaves if type(x) is Array]
        key = function, structure, *[x.aval if type(x) is Array else static_key(name, x) for x in leaves]
        found = self._calls.get(key)
        if found is None:
            try:
                found = _trace(name, function, structure, leaves)
            except ConcretizationError:
                # a pending gradient would not see what is computed from values
                followed = thread.trace.tape is not None and any(x.aval.floating for x in arrays)
                if thread.trace.capture is None and not followed:
                    return _run(name, function, structure, leaves)
                raise
            with self._lock:
                if len(self._calls) >= MAX_CALLS:
                    self._calls.clear()
                self._calls[key] = found
        return found(arrays)


def static_key(name: str, value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        raise ArgumentError(
            message(name, "arrays, and other arguments that are hashable", type(value).__name__, "Close over it.")
        ) from None
    return exact_key(value)


def _trace(name: str, function: Callable[..., Any], structure: Any, leaves: list[Any]) -> Recorded:
    result: list[Any] = []

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        rest = iter(tensors)
        args, kwargs = structure.unflatten([next(rest) if type(x) is Array else x for x in leaves])
        found, form = tree.flatten(function(*args, **kwargs))
        result[:] = form, [TENSOR if isinstance(x, torch.Tensor) else x for x in found]
        return [x for x in found if isinstance(x, torch.Tensor)]

    derived = traced(name, run, [x.aval for x in leaves if type(x) is Array])
    return Recorded(derived, *result)


def traced(
    name: str,
    function: Callable[..., list[torch.Tensor]],
    avals: Sequence[Aval],
    writable: Sequence[int] = (),
    draw: Callable[..., Any] | None = None,
) -> Derived:
    """Trace a function of tensors; see `trace_function` and `recorded`. With `draw` the last aval is that of a key.

    Raises:
        ArgumentError: torch refuses the arguments.
        ConcretizationError: the function looks at values.
    """
    try:
        module = trace_function(function, avals if draw is None else avals[:-1], writable)
        return recorded(module, avals, draw)
    except (internals.DATA_DEPENDENT.get(), internals.DYNAMIC_SHAPE.get()) as error:
        tracing = thread.trace.capture or "a gradient"
        raise ConcretizationError(
            message(name, "a function that needs no values", f"one that looks at them while tracing {tracing}",
                    "Call it outside, or on what gt.stop_gradient returns and outside gt.jit.")
        ) from error  # fmt: skip
    except GtraceError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        got = ", ".join(map(repr, avals))
        reason = str(error).strip().split("\n")[0]
        raise ArgumentError(message(name, "arguments that fit", got, f"torch says: {reason}")) from error


def _run(name: str, function: Callable[..., Any], structure: Any, leaves: list[Any]) -> Any:
    """Run a function whose result depends on values, on values."""
    tensors = [materialize(x, name).clone() if type(x) is Array else x for x in leaves]
    args, kwargs = structure.unflatten(tensors)
    with torch.no_grad():
        return tree.map(lambda x: wrap(x) if isinstance(x, torch.Tensor) else x, function(*args, **kwargs))


_table = CallTable()


def call_torch(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Record a call of a torch function on Arrays; `name` is what errors call it."""
    return _table.call(name, function, args, kwargs)


def _torch_function(cls: type, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Record a function of torch that was called with an Array."""
    kwargs = kwargs or {}
    name = getattr(function, "__name__", repr(function))
    if kwargs.get("out") is not None:
        _refuse(name, "the keyword out", "Use what the function returns.")
    if name.endswith("_") and not name.endswith("__"):
        _refuse(name, "an in-place function", f"Use torch.{name.rstrip('_')}, and what it returns.")
    if name.startswith("__i") and name.endswith("__") and name not in ("__index__", "__invert__", "__int__"):
        _refuse(name, "an in-place operator", "Use the operator that returns a new array.")
    return _table.call(f"torch.{name}", function, args, kwargs)


def _refuse(name: str, got: str, fix: str) -> NoReturn:
    raise ArgumentError(f"[torch.{name}] expected a function that returns new arrays, got {got}. {fix}"
                        f" (at {user_location()})")  # fmt: skip


setattr(Array, "__torch_function__", classmethod(_torch_function))  # noqa: B010 - the type of Array states its own names


def lift(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, written with torch, as a function of Arrays that is recorded like any other.

    It is traced once for each kind of arguments: what it looks at besides its arguments counts as constant.
    Derivatives, batching and compiling follow from what it calls.

    Args:
        function: a pure function of pytrees of tensors, and of hashable values.

    Raises (when called):
        ArgumentError: it writes to its arguments, draws random numbers, or returns something that is no pytree.
        ConcretizationError: it looks at values while a gtrace function is traced.

    >>> import torch, gtrace as gt
    >>> norm = gt.lift(lambda x: torch.linalg.vector_norm(x))
    >>> gt.grad(norm)(gt.array([3., 4.]))
    Array([0.6, 0.8], dtype=float32)
    """
    if not callable(function):
        raise ArgumentError(message("lift", "a function", type(function).__name__, "Pass a callable."))
    table = CallTable()
    name = getattr(function, "__name__", type(function).__name__)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return table.call(name, function, args, kwargs)

    return wrapped
