"""Calls of torch functions on Arrays: what their traces depend on, and how they are traced and recorded."""

from __future__ import annotations

import os
import sys
import traceback
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy
import torch

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.dtypes import INEXACT, DType
from gtrace.core.base.errors import ArgumentError, ConcretizationError, GtraceError, message
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.base.torch_modes import callers_default_dtype
from gtrace.core.ir.aval import Aval
from gtrace.core.trace.array import Array
from gtrace.core.trace.force import whole
from gtrace.core.trace.record import followed, thread
from gtrace.interop.aten.derive import Derived, Draw, made_of_torch, read_derived, recorded, trace_function
from gtrace.interop.aten.derived_on_disk import derivations
from gtrace.interop.aten.open_sizes import Open, Opened
from gtrace.interop.aten.overloads import encode
from gtrace.interop.aten.packed_sequences import check_results
from gtrace.interop.aten.single_calls import SingleCall
from gtrace.interop.aten.traced_calls import OtherSizesError, TracedCall
from gtrace.interop.aten.tracer import LooksAtValues
from gtrace.interop.aten.versions import Version
from gtrace.interop.nodes_of_users import flatten


@attrs.frozen(eq=False)
class RecordedCall:
    """A call of a torch function, traced.

    Attributes:
        derived: the function from the Arrays among the arguments to the tensors in the result.
        structure: the structure of the result.
        others: the leaves of the result, with `TENSOR` in place of tensors.
    """

    derived: Derived | SingleCall
    structure: tree.TreeDef
    others: list[Any]

    def equals(self, other: RecordedCall | None) -> bool:
        """Whether another call records the same operations, and returns the same."""
        return (
            other is not None
            and isinstance(self.derived, Derived)
            and isinstance(other.derived, Derived)
            and self.structure == other.structure
            and exact_key(tuple(self.others)) == exact_key(tuple(other.others))
            and self.derived.equals(other.derived)
        )

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
class TorchCall:
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
    def of(cls, name: str, args: Any, default: torch.dtype | None = None) -> TorchCall:
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

    def pattern(self) -> tuple[Hashable, ...]:
        """Return what the trace depends on besides sizes: the kind without the `numbers`."""
        return (self.structure, self.default, *map(self._pattern_of, self.leaves))

    def _pattern_of(self, x: Any) -> Hashable:
        if type(x) is Array:
            a = x.aval
            return Array, a.dtype, a.ndim, a.device, a.weak, a.sharding
        return int if type(x) is int else (None, static_key(self.name, x))

    def numbers(self) -> list[int]:
        """Return the sizes of the Arrays, and the integers among the arguments."""
        found: list[int] = []
        for x in self.leaves:
            if type(x) is Array:
                found += x.aval.shape
            elif type(x) is int:
                found.append(x)
        return found

    def _opened(self, places: Collection[int]) -> tuple[Opened, TorchCall]:
        """Return the call with open numbers at these places."""
        opened, leaves = Opened(), []
        rest = iter([opened.open(n) if k in places else n for k, n in enumerate(self.numbers())])
        for x in self.leaves:
            if type(x) is Array:
                opened.shapes.append([next(rest) for _ in x.aval.shape])
            leaves.append(next(rest) if type(x) is int else x)
        return opened, attrs.evolve(self, leaves=leaves)

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
    ) -> RecordedCall:
        """Trace ``function(*args)``; see `trace_function` and `recorded`.

        Args:
            draw: a key, which becomes an additional argument of the result, and the sampler that uses it.
            values: whether it may read values; the result then holds only for these values.

        Raises:
            ArgumentError: the function writes to its arguments, or torch rejects them.
            ConcretizationError: the function reads values.
        """
        result, run, updated = self._run(function)
        avals = self._avals
        tensors = [whole(x, self.name).clone() for x in self.arrays] if values else None
        has_gradient = is_followed(self.arrays)
        derived = _traced(
            self.name, run, avals, (writable, parameters, updated), draw, tensors, has_gradient, self.default
        )
        return RecordedCall(derived, *result)

    def trace_open(
        self,
        places: Collection[int],
        function: Callable[..., Any],
        writable: Sequence[int] = (),
        parameters: Sequence[int] = (),
        draw: tuple[Array, Draw] | None = None,
    ) -> tuple[Opened, OpenCall]:
        """Trace ``function(*args)`` with open numbers at some `places` among its `numbers`; see `trace`.

        Raises:
            Untraceable: this cannot be traced with open sizes.
        """
        opened, call = self._opened(places)
        result, run, updated = call._run(function)
        traced = trace_function(
            run,
            self._avals,
            writable,
            parameters,
            updated,
            None,
            self.name,
            is_followed(self.arrays),
            self.default,
            opened,
        )
        structure, others = result
        made = OpenCall(traced, structure, list(map(opened.number, others)))
        if opened.guessed or any(x is not own for x, own in zip(call.leaves, self.leaves, strict=True)):
            return opened, made  # an integer is open, or nobody knows whether the trace holds before it is recorded
        integers = [None if type(x) is Array else x for x in self.leaves if type(x) in (Array, int)]
        fixed = [None if k in places else n for k, n in enumerate(self.numbers())]
        version = Version(tuple(sorted(places)), tuple(fixed), opened.program(), traced)
        return opened, attrs.evolve(made, single=SingleCall.of(self.name, traced, integers, version))

    @property
    def _avals(self) -> list[Aval]:
        return [x.aval for x in self.arrays]

    def _run(self, function: Callable[..., Any]) -> tuple[list[Any], Callable[..., list[torch.Tensor]], list[int]]:
        """Return a function of tensors that returns tensors, and two lists that it fills.

        One gets the structure and the leaves of its result. The other one gets the places of tensors that lie in
        objects, such as caches, and that it returns: writes to them are in the result.
        """
        result: list[Any] = []
        updated: list[int] = []

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            args = self.filled(tensors)
            inner = set(map(id, _in_objects(args)))
            returned = function(*args)
            check_results(tree.leaves(returned))
            found, form = flatten(self.name, returned, returned=True)
            result[:] = form, [TENSOR if isinstance(x, torch.Tensor) else x for x in found]
            results = [x for x in found if isinstance(x, torch.Tensor)]
            inner &= set(map(id, results))
            updated[:] = [k for k, x in enumerate(tensors) if id(x) in inner]
            return results

        return result, run, updated


def _in_objects(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in objects of classes, of which callers know that a call may change them."""
    if type(value) in (tuple, list, dict):
        for each in value.values() if type(value) is dict else value:
            yield from _in_objects(each)
    elif not isinstance(value, torch.Tensor):
        yield from (x for x in tree.leaves(value) if isinstance(x, torch.Tensor))


@attrs.frozen(eq=False)
class OpenCall:
    """A call of a torch function, traced with open sizes.

    Attributes:
        structure: the structure of the result.
        others: the leaves of the result, with `TENSOR` in place of tensors.
        single: records it as a single operation; None: it cannot be one.
    """

    traced: TracedCall
    structure: tree.TreeDef
    others: list[Any]
    single: SingleCall | None = None

    @property
    def weight(self) -> int:
        """Its approximate bytes."""
        return self.traced.weight

    def bind(self, call: TorchCall, numbers: Sequence[Any], draw: tuple[Array, Draw] | None) -> RecordedCall | None:
        """Return the call with these open numbers; None if the trace does not hold for them."""
        if draw is None and self.single is not None:
            return self._recorded(self.single, numbers)
        return self.apart(call, numbers, draw)

    def apart(self, call: TorchCall, numbers: Sequence[Any], draw: tuple[Array, Draw] | None) -> RecordedCall | None:
        """Return the call as `bind` does, with an operation for each call of aten."""
        avals = [x.aval for x in call.arrays]
        try:
            if draw is None:
                derived = recorded(self.traced, avals, None, numbers)
            else:
                derived = recorded(self.traced, [*avals, draw[0].aval], draw[1], numbers)
        except OtherSizesError:
            return None
        return self._recorded(derived, numbers)

    def _recorded(self, derived: Derived | SingleCall, numbers: Sequence[Any]) -> RecordedCall:
        others = [numbers[x.place] if type(x) is Open else x for x in self.others]
        return RecordedCall(derived, self.structure, others)


def _leaf(x: Any) -> Any:
    """Return a leaf of a call. Tensors and NumPy arrays become constant Arrays; dtypes become torch's."""
    if isinstance(x, torch.Tensor):
        return ops.array(x.detach())
    if isinstance(x, numpy.ndarray):
        return ops.array(x)
    return x.torch if isinstance(x, DType) else x


def kept_call(call: TorchCall, function: Callable[..., Any]) -> RecordedCall | None:
    """Return a call that an earlier process traced; None if there is none, or the function is a user's."""
    key = _lasting_key(call, function)
    return None if key is None else derivations.find(key, _read_call)


def _read_call(text: str) -> RecordedCall:
    kind, _, graph = text.partition("\n")
    derived = read_derived(graph)
    make = _KINDS.get(kind) or getattr(torch.return_types, kind, None)
    if make is None:
        raise ValueError(f"expected the name of a result of torch, got {kind!r}")
    return RecordedCall(derived, *reversed(tree.flatten(make([TENSOR] * len(derived.graph.outputs)))))


def keep_call(call: TorchCall, function: Callable[..., Any], recorded: RecordedCall) -> None:
    """Store a traced call of a torch or gtrace function for later processes, if its result is flat."""
    key = _lasting_key(call, function)
    result = recorded.structure.unflatten(recorded.others)
    kind = "tensor" if result is TENSOR else type(result).__name__
    plain = kind in _KINDS or type(result).__module__ == "torch.return_types"
    derived = recorded.derived
    assert isinstance(derived, Derived)  # it was traced for its sizes
    if key is None or not plain or (result is not TENSOR and any(x is not TENSOR for x in result)):
        return
    if not derived.constants and made_of_torch(derived.graph):
        derivations.keep(key, f"{kind}\n{derived.graph}")


_KINDS: dict[str, Callable[[list[Any]], Any]] = {"tensor": lambda found: found[0], "tuple": tuple, "list": list}
"""Result types, besides torch's named tuples, that consist of tensors."""


def _lasting_key(call: TorchCall, function: Callable[..., Any]) -> Hashable | None:
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
    writable: tuple[Sequence[int], Sequence[int], Sequence[int]],
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
    got, line = "one that looks at them", line_inside(frames)
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


def traceable_with_values(error: BaseException) -> bool:
    """Whether a function that raised this can be traced with values. Recurrent layers with packed sequences cannot."""
    return isinstance(error, LooksAtValues) and not _of_recurrent(traceback.extract_tb(error.__traceback__))


def _of_recurrent(frames: traceback.StackSummary) -> bool:
    return any(f.filename.endswith(_RECURRENT) for f in frames)


def line_inside(frames: traceback.StackSummary) -> str | None:
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


def is_followed(arrays: Sequence[Array]) -> bool:
    """Whether a gradient of this thread follows one of the Arrays."""
    return any(followed(x) for x in arrays if x.aval.floating)
