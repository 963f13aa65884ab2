"""torch functions on Arrays: torch's dispatch of its own calls, and ``lift``."""

from __future__ import annotations

import functools
import os
import sys
import traceback
import types
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NoReturn

import attrs
import numpy
import torch

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.dtypes import INEXACT, DType
from gtrace.core.base.errors import (
    ArgumentError,
    ConcretizationError,
    GtraceError,
    RetracingWarning,
    message,
    user_location,
    warn_at,
)
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.base.torch_modes import callers_default_dtype
from gtrace.core.ir.aval import Aval
from gtrace.core.trace.array import Array, wrap
from gtrace.core.trace.force import whole
from gtrace.core.trace.record import followed, thread
from gtrace.interop.aten.derive import Derived, Draw, made_of_torch, read_derived, recorded, trace_function
from gtrace.interop.aten.derived_on_disk import derivations
from gtrace.interop.aten.overloads import encode
from gtrace.interop.aten.packed_sequences import check_results
from gtrace.interop.aten.trace_effects import observable
from gtrace.interop.aten.tracer import LooksAtValues
from gtrace.interop.nodes_of_users import flatten

__all__ = ["lift"]

MAX_CALLS = 4096
"""The number of cached kinds of calls; beyond it all are dropped and traced anew."""


@attrs.frozen(eq=False)
class Recorded:
    """A call of a torch function, traced.

    Attributes:
        derived: the function from the Arrays among the arguments to the tensors in the result.
        structure: the structure of the result.
        others: the leaves of the result, with `TENSOR` in place of tensors.
    """

    derived: Derived
    structure: tree.TreeDef
    others: list[Any]

    def __call__(self, arrays: Sequence[Array], followed: bool = True) -> Any:
        """Record the call.

        Args:
            followed: whether gradients follow it; otherwise it is constant for them.
        """
        results = iter(self.derived(arrays))
        if not followed:
            results = (ops.stop_gradient(x) if x.aval.dtype in INEXACT else x for x in results)
        return self.structure.unflatten([next(results) if x is TENSOR else x for x in self.others])


TENSOR = object()
"""Marks a tensor among the leaves of a result."""


@attrs.frozen(eq=False)
class Call:
    """Arguments of a torch function: pytrees of Arrays, tensors and other values.

    Attributes:
        name: the name of the function in errors.
        leaves: the leaves of the arguments; tensors and NumPy arrays are constant Arrays.
        structure: the structure of the arguments.
        default: torch's default dtype for the function.
    """

    name: str
    leaves: list[Any]
    structure: tree.TreeDef
    default: torch.dtype

    @classmethod
    def of(cls, name: str, args: Any, default: torch.dtype | None = None) -> Call:
        """Return the call with these arguments.

        Args:
            default: torch's default dtype for the function; None: that of the caller.
        """
        leaves, structure = flatten(name, args)
        return cls(name, list(map(_leaf, leaves)), structure, default or callers_default_dtype())

    @property
    def arrays(self) -> list[Array]:
        """The Arrays among the leaves."""
        return [x for x in self.leaves if type(x) is Array]

    def kind(self) -> tuple[Hashable, ...]:
        """Return the key of the trace: the types of Arrays, all other arguments, and the default dtype."""
        return (
            self.structure,
            self.default,
            *[x.aval if type(x) is Array else static_key(self.name, x) for x in self.leaves],
        )

    def filled(self, tensors: Iterable[torch.Tensor]) -> Any:
        """Return the arguments with tensors in place of Arrays."""
        rest = iter(tensors)
        return self.structure.unflatten([next(rest) if type(x) is Array else x for x in self.leaves])

    def trace(
        self,
        function: Callable[..., Any],
        writable: Sequence[int] = (),
        parameters: Sequence[int] = (),
        draw: tuple[Array, Draw] | None = None,
        values: bool = False,
    ) -> Recorded:
        """Trace ``function(*args)``; see `trace_function` and `recorded`.

        Args:
            draw: a key, which becomes an additional argument of the result, and the sampler that uses it.
            values: whether it may read values; the result then holds only for these values.

        Raises:
            ArgumentError: the function writes to its arguments, or torch rejects them.
            ConcretizationError: the function reads values.
        """
        result: list[Any] = []

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            returned = function(*self.filled(tensors))
            check_results(tree.leaves(returned))
            found, form = flatten(self.name, returned, returned=True)
            result[:] = form, [TENSOR if isinstance(x, torch.Tensor) else x for x in found]
            return [x for x in found if isinstance(x, torch.Tensor)]

        avals = [x.aval for x in self.arrays]
        tensors = [whole(x, self.name).clone() for x in self.arrays] if values else None
        has_gradient = _followed(self.arrays)
        derived = _traced(self.name, run, avals, (writable, parameters), draw, tensors, has_gradient, self.default)
        return Recorded(derived, *result)


def _leaf(x: Any) -> Any:
    """Return a leaf of a call. Tensors and NumPy arrays become constant Arrays; dtypes become torch's."""
    if isinstance(x, torch.Tensor):
        return ops.array(x.detach())
    if isinstance(x, numpy.ndarray):
        return ops.array(x)
    return x.torch if isinstance(x, DType) else x


def kept_call(call: Call, function: Callable[..., Any]) -> Recorded | None:
    """Return a call that an earlier process traced; None if there is none, or the function is a user's."""
    key = _lasting_key(call, function)
    return None if key is None else derivations.find(key, _read_call)


def _read_call(text: str) -> Recorded:
    kind, _, graph = text.partition("\n")
    derived = read_derived(graph)
    make = _KINDS.get(kind) or getattr(torch.return_types, kind, None)
    if make is None:
        raise ValueError(f"expected the name of a result of torch, got {kind!r}")
    return Recorded(derived, *reversed(tree.flatten(make([TENSOR] * len(derived.graph.outputs)))))


def keep_call(call: Call, function: Callable[..., Any], recorded: Recorded) -> None:
    """Store a traced call of a torch or gtrace function for later processes, if its result is flat."""
    key = _lasting_key(call, function)
    result = recorded.structure.unflatten(recorded.others)
    kind = "tensor" if result is TENSOR else type(result).__name__
    plain = kind in _KINDS or type(result).__module__ == "torch.return_types"
    derived = recorded.derived
    if key is None or not plain or (result is not TENSOR and any(x is not TENSOR for x in result)):
        return
    if not derived.constants and made_of_torch(derived.graph):
        derivations.keep(key, f"{kind}\n{derived.graph}")


_KINDS: dict[str, Callable[[list[Any]], Any]] = {"tensor": lambda found: found[0], "tuple": tuple, "list": list}
"""Result types, besides torch's named tuples, that consist of tensors."""


def _lasting_key(call: Call, function: Callable[..., Any]) -> Hashable | None:
    """Return the key of a call in every process; None if its function or an argument has no lasting name."""
    if isinstance(function, types.FunctionType):
        found = sys.modules.get(function.__module__)
        lasting = getattr(found, function.__name__, None) is function
        name = f"{function.__module__}.{function.__name__}"
    else:
        name = f"{getattr(function, '__module__', None) or 'torch'}.{getattr(function, '__qualname__', '')}"
        lasting = isinstance(function, _BUILTINS)
    if not lasting or name.partition(".")[0] not in ("torch", "gtrace"):
        return None
    try:
        leaves = [x.aval if type(x) is Array else encode(x) for x in call.leaves]
    except ArgumentError:  # an argument without a text
        return None
    return "call", name, str(call.structure), str(call.default), *leaves


_BUILTINS = types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType


def gradients_follow() -> bool:
    """Return whether gradients follow torch calls here: not under ``torch.no_grad`` inside the traced function.

    Traced code starts as under ``torch.enable_grad``.
    """
    return torch.is_grad_enabled() or (thread.trace.tape is None and thread.trace.capture is None)


class CallTable:
    """The traced calls of torch functions, by function and kind of arguments."""

    def __init__(self) -> None:
        self._calls: BoundedTable[Hashable, Recorded] = BoundedTable(MAX_CALLS, lambda call: call.derived.weight)
        self._looking: BoundedTable[Hashable, bool] = BoundedTable(MAX_CALLS)
        self._line: str | None = None
        self._looks = 0

    def find(self, key: Hashable, trace: Callable[[], Recorded]) -> Recorded:
        """Return the call of `key`; the first use traces it."""
        found = self._calls.get(key)
        if found is None:
            found = trace()
            self._calls.remember(key, found)
        return found

    def find_or_look(self, name: str, key: Hashable, trace: Callable[[bool], Recorded]) -> Recorded:
        """Return the call of `key`. A call that reads values is traced at each call, with these values.

        The second such call warns, once for each table.

        Args:
            name: the name of the module in the warning.
            trace: traces the call; with True, for the current values of its arguments.

        Raises:
            ConcretizationError: it reads values while a gtrace function is traced.
        """
        concrete = thread.trace.capture is None
        if concrete and self._looking.get(key):
            return self._look(name, trace)
        try:
            return self.find(key, lambda: trace(False))
        except ConcretizationError as error:
            cause = error.__cause__
            if not concrete or cause is None or not _traceable_with_values(cause):
                raise
            self._line = _line_inside(traceback.extract_tb(cause.__traceback__))
        self._looking.remember(key, True)
        return self._look(name, trace)

    def _look(self, name: str, trace: Callable[[bool], Recorded]) -> Recorded:
        self._looks += 1
        if self._looks == 2:
            where = f" at {self._line}" if self._line else ""
            warn_at(
                f"[{name}] is traced anew at each call, which takes 0.1 s or more, because it looks at values{where}."
                " To have it traced once, let it compute the same for all values: choose with torch.where, and let"
                " every expert take all tokens, with weights of 0 for those that are not its own.",
                user_location(),
                RetracingWarning,
            )
        return trace(True)

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
        call = Call.of(name, (args, kwargs), None if ambient else torch.float32)
        arrays = call.arrays

        def trace() -> Recorded:
            recorded = kept_call(call, function)
            if recorded is None:
                recorded = call.trace(lambda args, kwargs: observable(function)(*args, **kwargs))
                keep_call(call, function, recorded)
            return recorded

        try:
            found = self.find((function, *call.kind()), trace)
        except ConcretizationError:
            if thread.trace.capture is not None:
                raise
            if not _followed(arrays):
                return _run(call, function)
            # a pending gradient follows the recorded calls, which depend on these values
            found = call.trace(lambda args, kwargs: observable(function)(*args, **kwargs), values=True)
        return found(arrays, not ambient or gradients_follow())


def static_key(name: str, value: Any) -> Hashable:
    """Return a key for an argument that is not an Array; for equal keys a function does the same.

    Raises:
        ArgumentError: the argument is not hashable.
    """
    try:
        hash(value)
    except TypeError:
        raise ArgumentError(
            message(name, "arrays, and other arguments that are hashable", type(value).__name__, "Close over it.")
        ) from None
    return exact_key(value)


def _traced(
    name: str,
    function: Callable[..., list[torch.Tensor]],
    avals: list[Aval],
    writable: tuple[Sequence[int], Sequence[int]],
    draw: tuple[Array, Draw] | None,
    tensors: list[torch.Tensor] | None,
    followed: bool,
    default: torch.dtype,
) -> Derived:
    try:
        traced = trace_function(function, avals, *writable, tensors, name, followed, default)
        return recorded(traced, avals) if draw is None else recorded(traced, [*avals, draw[0].aval], draw[1])
    except LooksAtValues as error:
        raise _looks_at_values(name, error) from error
    except GtraceError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        if any(part in str(error) for part in _WITHOUT_DATA):
            raise _looks_at_values(name, error) from error
        got = ", ".join(map(repr, avals))
        reason = str(error).strip().split("\n")[0]
        raise ArgumentError(message(name, "arguments that fit", got, f"torch says: {reason}")) from error


def _looks_at_values(name: str, error: BaseException) -> ConcretizationError:
    tracing = thread.trace.capture or ("a gradient" if thread.trace.tape is not None else None)
    frames = traceback.extract_tb(error.__traceback__)
    got, line = "one that looks at them", _line_inside(frames)
    if line is not None:
        got = f"one that looks at them at {line}"
    if tracing is not None:
        got += f" while tracing {tracing}"
    fix = "Choose with torch.where, leave the branch out where torch.compiler.is_compiling() is true,"
    fix += " or call it outside gt.jit and gt.vmap, where it may look at values."
    if _of_recurrent(frames):
        fix = "Sizes of packed sequences are values: pass padded ones and their lengths, and pack inside the function."
    elif isinstance(error, LooksAtValues) and error.size:
        fix = "The size of its result is a value: keep all elements, and give those that do not count a weight of 0."
        fix += " Or call it outside gt.jit and gt.vmap, where it may look at values."
    return ConcretizationError(message(name, "a function that needs no values", got, fix))


def _traceable_with_values(error: BaseException) -> bool:
    """Whether a function that raised this can be traced with values. Recurrent layers with packed sequences cannot."""
    return isinstance(error, LooksAtValues) and not _of_recurrent(traceback.extract_tb(error.__traceback__))


def _of_recurrent(frames: traceback.StackSummary) -> bool:
    return any(f.filename.endswith(_RECURRENT) for f in frames)


def _line_inside(frames: traceback.StackSummary) -> str | None:
    """Return the innermost line of the traced call outside torch and gtrace, else of torch's layers."""
    own = [f for f in frames if not any(part in f.filename for part in _TRACERS)]
    chosen = own or [f for f in frames if _LAYERS in f.filename]
    return f"{chosen[-1].filename}:{chosen[-1].lineno}" if chosen else None


_WITHOUT_DATA = "its data is not allocated", "doesn't have storage"
"""torch's messages if a function reads the memory of a traced tensor."""

_TRACERS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep, "<")
"""Paths of torch, of gtrace, and of code without a file."""

_LAYERS = os.path.join(os.path.dirname(torch.__file__), "nn", "")
"""The path of torch's layers."""

_RECURRENT = os.path.join("nn", "modules", "rnn.py"), os.path.join("nn", "utils", "rnn.py")
"""The place where torch reads the lengths of sequences."""


def _followed(arrays: Sequence[Array]) -> bool:
    """Whether a gradient of this thread follows one of the Arrays."""
    return any(followed(x) for x in arrays if x.aval.floating)


def _run(call: Call, function: Callable[..., Any]) -> Any:
    """Run a function whose result depends on values, with values."""
    args, kwargs = call.filled(whole(x, call.name).clone() for x in call.arrays)
    with torch.no_grad():
        leaves, structure = flatten(call.name, function(*args, **kwargs))
    return structure.unflatten([wrap(x) if isinstance(x, torch.Tensor) else x for x in leaves])


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
