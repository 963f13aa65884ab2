"""torch functions on Arrays: torch's dispatch of its own calls, and ``lift``."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Hashable
from typing import Any, NoReturn

import torch

from gtrace.core import ops
from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.errors import (
    ArgumentError,
    ConcretizationError,
    RetracingWarning,
    message,
    user_location,
    warn_at,
)
from gtrace.core.trace.array import Array, wrap
from gtrace.core.trace.force import whole
from gtrace.core.trace.record import thread
from gtrace.core.trace.size_reads import note_leak
from gtrace.interop.aten.derive import Draw
from gtrace.interop.aten.trace_effects import observable
from gtrace.interop.aten.versions import Kind, kinds
from gtrace.interop.calls import (
    OpenCall,
    RecordedCall,
    TorchCall,
    is_followed,
    keep_call,
    kept_call,
    line_inside,
    traceable_with_values,
)
from gtrace.interop.nodes_of_users import flatten
from gtrace.interop.own_functions import OWN_FUNCTIONS
from gtrace.interop.retraces import Retraces

__all__ = ["lift"]

MAX_CALLS = 4096
"""The number of cached kinds of calls; beyond it all are dropped and traced anew."""


def gradients_follow() -> bool:
    """Return whether gradients follow torch calls here: not under ``torch.no_grad`` inside the traced function.

    Traced code starts as under ``torch.enable_grad``.
    """
    return torch.is_grad_enabled() or (thread.trace.tape is None and thread.trace.capture is None)


Trace = Callable[[Callable[..., Any]], Any]
"""Traces a call by a method such as `Call.trace`, whose other arguments it states."""

Drawn = Callable[[], "tuple[Array, Draw] | None"]
"""Returns the key of a call with a new sampler, or None."""


class CallTable:
    """The traced calls of torch functions, by function and kind of arguments."""

    def __init__(self) -> None:
        self._calls: BoundedTable[Hashable, RecordedCall] = BoundedTable(MAX_CALLS, lambda call: call.derived.weight)
        self._kinds: BoundedTable[Hashable, Kind[OpenCall]] = kinds()
        self._looking: BoundedTable[Hashable, bool] = BoundedTable(MAX_CALLS)
        self._line: str | None = None
        self._looks = 0
        self._retraces = Retraces()

    def find(
        self,
        head: tuple[Hashable, ...],
        call: TorchCall,
        trace: Trace,
        kept: Callable[[], RecordedCall | None] = lambda: None,
        keep: Callable[[RecordedCall], None] = lambda recorded: None,
        draw: Drawn = lambda: None,
    ) -> RecordedCall:
        """Return a call. It is traced unless a trace for these sizes, or with open ones, is known.

        Args:
            head: what the trace depends on besides the arguments.
            kept: returns the call if an earlier process traced it.
            keep: stores a new call for later processes.
        """
        note_leak(call.name)  # its versions decide by sizes
        key = (*head, *call.kind())
        found = self._calls.get(key)
        if found is None:
            found = self._new((*head, *call.pattern()), call, trace, kept, keep, draw)
            self._calls.remember(key, found)
        return found

    def _new(
        self, pattern: Hashable, call: TorchCall, trace: Trace, kept: Callable[[], RecordedCall | None],
        keep: Callable[[RecordedCall], None], draw: Drawn,
    ) -> RecordedCall:  # fmt: skip
        numbers, kind = call.numbers(), self._kinds.get(pattern)
        if kind is not None:
            bound: RecordedCall | None = kind.bound(numbers, lambda known, values: known.bind(call, values, draw()))
            if bound is not None:
                return bound
        found = kept()
        if found is None:
            found = trace(call.trace)
            keep(found)
        if kind is None:
            self._kinds.remember(pattern, Kind(numbers))
        else:
            kind.extend(
                numbers,
                lambda places: trace(functools.partial(call.trace_open, places)),
                lambda known, values: found.equals(known.apart(call, values, draw())),
            )
        return found

    def find_or_look(
        self,
        head: tuple[Hashable, ...],
        call: TorchCall,
        trace: Trace,
        draw: Drawn,
        check: Callable[[RecordedCall], None],
    ) -> RecordedCall:
        """Return a call; see `find`. One that reads values is traced at each call, with these values.

        The second such call warns, once for each table.

        Args:
            check: raises for a call traced with values that cannot be right.

        Raises:
            ConcretizationError: it reads values while a gtrace function is traced.
        """
        key = (*head, *call.kind())
        concrete = thread.trace.capture is None
        if concrete and self._looking.get(key):
            return self._look(call, trace, check)
        try:
            return self.find(head, call, trace, draw=draw)
        except ConcretizationError as error:
            cause = error.__cause__
            if not concrete or cause is None or not traceable_with_values(cause):
                raise
            self._line = line_inside(traceback.extract_tb(cause.__traceback__))
        self._looking.remember(key, True)
        return self._look(call, trace, check)

    def _look(self, call: TorchCall, trace: Trace, check: Callable[[RecordedCall], None]) -> RecordedCall:
        self._looks += 1
        if self._looks == 2:
            where = f" at {self._line}" if self._line else ""
            warn_at(
                f"[{call.name}] is traced anew at each call, which takes 0.1 s or more, because it looks at"
                f" values{where}. To have it traced once, let it compute the same for all values: choose with"
                " torch.where, and let every expert take all tokens, with weights of 0 for those that are not its own.",
                user_location(),
                RetracingWarning,
            )
        found: RecordedCall = trace(functools.partial(call.trace, values=True))
        check(found)
        return found

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: Any,
        kwargs: dict[str, Any],
        ambient: bool = False,
    ) -> Any:
        """Record a call of a torch function.

        Args:
            ambient: whether the surrounding default dtype and ``no_grad`` of torch apply to it.

        Raises:
            ArgumentError: the function writes to its arguments, or samples random numbers.
            ConcretizationError: the function reads values while a gtrace function is traced.
        """
        own = OWN_FUNCTIONS.get(function, _left_to_torch)(*args, **kwargs)
        if own is not NotImplemented:
            return own if not ambient or gradients_follow() else ops.stop_gradient(own)
        call = TorchCall.of(name, (args, kwargs), None if ambient else torch.float32)
        arrays = call.arrays

        def kept() -> RecordedCall | None:
            self._retraces.note(name, function, call.structure, call.leaves)
            return kept_call(call, function)

        def trace(how: Callable[..., Any]) -> Any:
            return how(lambda args, kwargs: observable(function)(*args, **kwargs))

        try:
            found = self.find((function,), call, trace, kept, lambda new: keep_call(call, function, new))
        except ConcretizationError:
            if thread.trace.capture is not None:
                raise
            if not is_followed(arrays):
                return _run(call, function)
            # a pending gradient follows the recorded calls, which depend on these values
            found = trace(functools.partial(call.trace, values=True))
        return found(arrays, not ambient or gradients_follow())


def _run(call: TorchCall, function: Callable[..., Any]) -> Any:
    """Run a function whose result depends on values, with values."""
    args, kwargs = call.filled(whole(x, call.name).clone() for x in call.arrays)
    with torch.no_grad():
        leaves, structure = flatten(call.name, function(*args, **kwargs))
    return structure.unflatten([wrap(x) if isinstance(x, torch.Tensor) else x for x in leaves])


def _left_to_torch(*args: Any, **kwargs: Any) -> Any:
    return NotImplemented


_table = CallTable()


def call_torch(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Record a call of a torch function that gtrace makes on Arrays, independent of torch's surrounding settings.

    Args:
        name: its name in errors.
    """
    return _table.call(name, function, args, kwargs)


def _torch_function(cls: type, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Record a torch function that was called with an Array."""
    kwargs = kwargs or {}
    name = getattr(function, "__name__", repr(function))
    if kwargs.get("out") is not None:
        _refuse(name, "the keyword out", "Use what the function returns.")
    if name.endswith("_") and not name.endswith("__"):
        _refuse(name, "an in-place function", f"Use torch.{name.rstrip('_')}, and what it returns.")
    if name.startswith("__i") and name.endswith("__") and name not in ("__index__", "__invert__", "__int__"):
        _refuse(name, "an in-place operator", "Use the operator that returns a new array.")
    if getattr(function, "__module__", None) == "torch.autograd":
        fix = "Gradients are functions: write the loss as f(params) and use gt.grad(f)(params)."
        _refuse(f"autograd.{name}", "one that follows torch's autograd", fix)
    return _table.call(f"torch.{name}", function, args, kwargs, ambient=True)


def _refuse(name: str, got: str, fix: str) -> NoReturn:
    raise ArgumentError(message(f"torch.{name}", "a function that returns new arrays", got, fix))


setattr(Array, "__torch_function__", classmethod(_torch_function))  # noqa: B010 - the type of Array states its own names


def lift(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `function` written with torch as a recorded function of Arrays.

    It is traced once for each kind of arguments. Everything it reads besides its arguments is constant, except torch's
    default dtype, which is the caller's. Derivatives, batching and compiling follow from its calls. Inside a
    differentiated function, gradients do not follow calls under ``torch.no_grad()``.

    Args:
        function: a pure function of pytrees of tensors and of hashable values.

    Raises (when called):
        ArgumentError: it writes to its arguments, samples random numbers, or returns an object that is not a pytree.
        ConcretizationError: it reads values while a gtrace function is traced.

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
        return table.call(name, function, args, kwargs, ambient=True)

    return wrapped
