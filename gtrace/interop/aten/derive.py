"""Functions and rules of torch, traced to aten calls and recorded as graphs of ordinary operations."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.bounded_tables import PER_OPERATION, SMALL
from gtrace.core.base.errors import ArgumentError, message, user_location, warn_at
from gtrace.core.base.locks import new_lock
from gtrace.core.base.mechanisms import OWN_TRACER
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.edit import renumber
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.simplify import dce
from gtrace.core.ir.text import parse_graph
from gtrace.core.ops.operands import cast
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import capture, replay
from gtrace.core.trace.force import whole
from gtrace.core.trace.record import thread
from gtrace.interop.aten.custom_functions import custom_calls
from gtrace.interop.aten.decompose import DECOMPOSITIONS
from gtrace.interop.aten.default_dtype import default_dtype_of_caller
from gtrace.interop.aten.open_sizes import Opened, classes_noticed
from gtrace.interop.aten.overloads import fake_tensors, of_torch
from gtrace.interop.aten.packed_sequences import padded
from gtrace.interop.aten.trace_effects import call_observed, observing_mode, users_detaches
from gtrace.interop.aten.traced_calls import TracedCall
from gtrace.interop.aten.tracer import LooksAtValues, Untraceable, trace
from gtrace.interop.aten.translate import record_calls

TensorFunction = Callable[..., Any]


@without_modes
def trace_rule(function: TensorFunction, avals: Sequence[Aval], opened: Opened | None = None) -> TracedCall:
    """Return the aten calls that torch records for a derivative or a batched form.

    Args:
        opened: the sizes of the inputs, if some of them are open.

    Raises:
        Untraceable: it cannot be traced with open sizes.
    """
    unchecked = _unchecked_mode()

    def rule(*tensors: torch.Tensor) -> Any:
        with unchecked():
            return function(*tensors)

    with torch.enable_grad(), _taken_apart():
        try:
            traced, _ = _traced_here(rule, avals, detached=False, opened=opened)
        except Untraceable:
            if opened is not None:
                raise
            traced = _traced_by_torch(rule, avals)
    return traced


def _traced_here(
    function: TensorFunction, avals: Sequence[Aval], *options: Any, **more: Any
) -> tuple[TracedCall, list[int]]:
    """Trace a function by the tracer of our own; see `trace`."""
    if not OWN_TRACER.on:
        raise Untraceable("GT_DISABLE=own_tracer")
    OWN_TRACER.used()
    return trace(function, avals, *options, **more)


def _traced_by_torch(rule: TensorFunction, avals: Sequence[Aval]) -> TracedCall:
    make_fx = internals.MAKE_FX.get()
    with fake_tensors(avals) as fakes:
        module = make_fx(rule, decomposition_table=DECOMPOSITIONS)(*fakes)
        if any(_writes(node) for node in module.graph.nodes):  # to its own tensors
            pure = internals.FUNCTIONALIZED.get()(rule, _functional_mode()())
            module = make_fx(pure, decomposition_table=DECOMPOSITIONS)(*fakes)
    return _of_module(module, detached=False)


def _of_module(module: torch.fx.GraphModule, detached: bool) -> TracedCall:
    module.graph.eliminate_dead_code()
    return TracedCall.of(module.graph, lambda name: getattr(module, name), detached)


def _writes(node: torch.fx.Node) -> bool:
    return isinstance(node.target, internals.OVERLOAD.get()) and node.target._schema.is_mutable


@without_modes
def trace_function(
    function: TensorFunction,
    avals: Sequence[Aval],
    writable: Sequence[int] = (),
    parameters: Sequence[int] = (),
    updated: Sequence[int] = (),
    tensors: Sequence[torch.Tensor] | None = None,
    name: str = "torch",
    followed: bool = True,
    default: torch.dtype = torch.float32,
    opened: Opened | None = None,
) -> TracedCall:
    """Return the aten calls that torch records for a user's function. Writes are traced as new values.

    Values computed under ``torch.no_grad`` are detached.

    Args:
        writable: the inputs that it may write to; it returns them.
        parameters: the inputs that it may write to for the time of the call, with a warning.
        updated: other inputs that it may write to and returns; the function fills it.
        tensors: the inputs, if the function may read their values; everything derived from them is then constant.
        name: the name of the function in errors.
        followed: whether a gradient may follow an input.
        default: torch's default dtype for the function.
        opened: the sizes of the inputs, if some of them are open.

    Raises:
        ArgumentError: it writes to another input.
        Untraceable: it cannot be traced with open sizes.
    """

    by_torch = functools.partial(_function_traced_by_torch, function, avals, tensors, followed, default)
    with (
        torch.enable_grad(),
        _taken_apart(),
        custom_calls() as custom,
        padded(),
        internals.masks_unread(),
        internals.compiling(),
        default_dtype_of_caller(default),
        contextlib.nullcontext() if opened is None else classes_noticed(opened.sizes),
    ):
        try:
            if tensors is None:
                traced, written = _traced_here(function, avals, default, opened=opened)
            else:
                traced, written = by_torch()
        except Untraceable:
            if opened is not None:
                raise
            traced, written = by_torch()
    if opened is not None and custom:
        raise Untraceable("a custom function, whose backward pass knows sizes")
    if any(k in parameters for k in written):
        warn_at(
            f"[{name}] writes to a parameter, and the write ends with the call: the next call starts from the"
            " parameters that it is given. Turn the write off, or write what it computes into a new parameter.",
            user_location(),
            UserWarning,
        )
    written = [k for k in written if k not in (*writable, *parameters, *updated)]
    if written:
        fix = "Let it write to a clone of it. Return the object that it lies in, such as a cache."
        got = f"one that writes to an argument, {avals[written[0]]!r}"
        raise ArgumentError(message(name, "a function that leaves its arguments as they are", got, fix))
    return attrs.evolve(traced, custom=custom)


def _function_traced_by_torch(
    function: TensorFunction,
    avals: Sequence[Aval],
    tensors: Sequence[torch.Tensor] | None,
    followed: bool,
    default: torch.dtype,
) -> tuple[TracedCall, list[int]]:
    """Return the calls of a function, and the inputs that it writes to."""
    written: list[int] = []

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        observing.inputs = set(map(id, tensors))
        results = function(*tensors)
        written[:] = [k for k, x in enumerate(tensors) if internals.WRITTEN.get()(x)]
        return results

    observing = observing_mode(tensors is not None, followed, default)
    pure = internals.FUNCTIONALIZED.get()(run, _functional_mode()(observing))

    def observed(*inputs: torch.Tensor) -> list[torch.Tensor]:
        with observing:
            found: list[torch.Tensor] = pure(*inputs)
            return found

    try:
        with (
            fake_tensors(avals) if tensors is None else contextlib.nullcontext(tensors) as inputs,
            users_detaches(observing),
        ):
            module = internals.MAKE_FX.get()(observed, decomposition_table=DECOMPOSITIONS)(*inputs)
    except (internals.DATA_DEPENDENT.get(), internals.DYNAMIC_SHAPE.get()) as error:
        size = isinstance(error, internals.DYNAMIC_SHAPE.get())
        raise LooksAtValues(str(error), size).with_traceback(error.__traceback__) from error
    return _of_module(module, detached=True), written


@functools.cache
def _functional_mode() -> Any:
    """Return torch's mode that turns writes into new tensors, without checks of values.

    Recording would keep the checks, such as whether a matrix was singular. Values computed under ``torch.no_grad`` are
    detached here, while writes are still writes; recomputed views are not.
    """
    check = torch.ops.aten._linalg_check_errors.default

    class Mode(internals.FUNCTIONAL_MODE.get()):  # type: ignore[misc]
        def __init__(self, observing: Any = None) -> None:
            super().__init__()
            self.observing = observing

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is check:
                return None
            call = super().__torch_dispatch__
            if self.observing is None or not self.observing.followed or not hasattr(function, "_schema"):
                return call(function, types, args, kwargs)

            def called(function: Any, *args: Any, **kwargs: Any) -> Any:
                return call(function, types, args, kwargs)

            return call_observed(self.observing, called, function, args, kwargs or {})

    return Mode


@functools.cache
def _unchecked_mode() -> Any:
    """Return a mode that skips torch's checks of cotangents, such as invariance under free factors."""

    def dispatch(mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return True if function is torch.ops.aten.allclose.default else function(*args, **(kwargs or {}))

    return internals.dispatch_mode(dispatch)


@contextlib.contextmanager
def _taken_apart() -> Iterator[None]:
    """Decompose layers whose fused kernels have no derivative, or write to their operands."""
    with _process_wide, warnings.catch_warnings():
        # torch's own modules for forward derivatives use deprecated functions
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        # for library operators without a derivative, torch warns and continues with a wrong one
        warnings.filterwarnings("error", ".*autograd kernel was not registered", UserWarning)
        mkldnn, fastpath = torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled()
        cudnn = torch.backends.cudnn.enabled
        # get both before calling one, so that a torch that lacks one stays unchanged
        enable_mkldnn, enable_cudnn = internals.SET_MKLDNN_ENABLED.get(), internals.SET_CUDNN_ENABLED.get()
        enable_mkldnn(False)
        torch.backends.mha.set_fastpath_enabled(False)
        enable_cudnn(False)
        # torch warns if it batches a function one example at a time
        silenced = internals.BATCHED_IN_SILENCE.available()
        if silenced:
            internals.SET_FALLBACK_WARNING.get()(False)
        try:
            yield
        finally:
            enable_mkldnn(mkldnn)
            torch.backends.mha.set_fastpath_enabled(fastpath)
            enable_cudnn(cudnn)
            if silenced:
                internals.SET_FALLBACK_WARNING.get()(True)


_process_wide = new_lock()


@attrs.frozen(eq=False)
class Derived:
    """A traced function as a graph.

    Attributes:
        constants: Arrays that follow its inputs.
    """

    graph: Graph
    constants: tuple[Array, ...]

    @property
    def weight(self) -> int:
        """The approximate bytes of its program."""
        return SMALL + PER_OPERATION * len(self.graph.nodes)

    @property
    def returned(self) -> tuple[int | None, ...]:
        """Of each result the place of the input that it is; None: it is computed."""
        places = {value: k for k, value in enumerate(self.graph.inputs)}
        return tuple([places.get(value) for value in self.graph.outputs])

    def equals(self, other: Derived | None) -> bool:
        """Whether another function records the same operations with the same constants."""
        if other is None or self.graph != other.graph:
            return False
        pairs = zip(self.constants, other.constants, strict=True)
        return all(x.aval == y.aval and _same_bits(whole(x, "torch"), whole(y, "torch")) for x, y in pairs)

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Record the function."""
        return replay(self.graph, (*[cast(x, x.aval.dtype) for x in inputs], *self.constants))


def _same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    return torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8))


Draw = Callable[[Array, str, Aval, list[Any]], Any]
"""(key, overload, type of the result, arguments) -> the result of a random operator, or None if it is unsupported."""


def recorded(
    traced: TracedCall, avals: Sequence[Aval], draw: Draw | None = None, numbers: Sequence[Any] | None = None
) -> Derived:
    """Return a traced function as a graph.

    Args:
        draw: samples random operators. The function then has a key as its last input.
        numbers: the open numbers of the trace, if it has open sizes.

    Raises:
        OtherSizesError: the trace does not hold for these numbers.
    """

    def run(inputs: Sequence[Array]) -> tuple[list[Array], None]:
        before, thread.origin = thread.origin, thread.origin or user_location()  # one line for all operations
        try:
            if draw is None:
                return record_calls(traced, inputs, None, numbers), None
            return record_calls(traced, inputs[:-1], functools.partial(draw, inputs[-1]), numbers), None
        finally:
            thread.origin = before

    captured = capture(run, [strong(a) for a in avals], "a function of torch")
    return Derived(renumber(dce(captured.graph)), captured.constants)


def strong(a: Aval) -> Aval:
    return aval(a.shape, a.dtype, a.device) if a.weak else a


def read_derived(text: str) -> Derived:
    """Return a derived function, given the text of its graph.

    Raises:
        GraphError: the text is not a graph.
    """
    return Derived(parse_graph(text), ())


def made_of_torch(graph: Graph) -> bool:
    """Whether a graph means the same in every process: it has no rules of users, nor operators of other libraries."""
    if any(node.instr.plain is not None for node in graph.nodes):
        return False
    return all(of_torch(node.attributes["overload"]) for node in graph.nodes if "overload" in node.op.params)
