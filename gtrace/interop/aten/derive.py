"""Rules derived from torch: its derivatives and batching are traced to aten calls and recorded.

A rule is traced once for a call and the types of its operands. The trace becomes a graph of ordinary operations, which
is replayed at each use of the rule.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.bounded_tables import PER_OPERATION, SMALL, BoundedTable
from gtrace.core.base.errors import ArgumentError, DtypeError, message, user_location, warn_at
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.base.locks import new_lock
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.aval import Aval, Bundle, aval
from gtrace.core.ir.edit import renumber
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.simplify import dce
from gtrace.core.ir.text import parse_graph
from gtrace.core.ops.operands import cast
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import capture, replay
from gtrace.interop.aten.custom_functions import custom_calls
from gtrace.interop.aten.decompose import DECOMPOSITIONS
from gtrace.interop.aten.default_dtype import default_dtype_of_caller
from gtrace.interop.aten.derived_on_disk import derivations
from gtrace.interop.aten.overloads import fake_tensors, of_torch
from gtrace.interop.aten.packed_sequences import padded
from gtrace.interop.aten.trace_effects import call_observed, observing_mode, users_detaches
from gtrace.interop.aten.tracer import LooksAtValues, Untraceable, trace
from gtrace.interop.aten.translate import Traced, record_calls

TensorFunction = Callable[..., Any]

MAX_RULES = 4096
"""The number of cached derived rules."""


@without_modes
def trace_rule(function: TensorFunction, avals: Sequence[Aval]) -> Traced:
    """Return the aten calls that torch records for a derivative or a batched form."""
    unchecked = _unchecked_mode()

    def rule(*tensors: torch.Tensor) -> Any:
        with unchecked():
            return function(*tensors)

    with torch.enable_grad(), _taken_apart():
        try:
            traced, _ = trace(rule, avals)
        except Untraceable:
            traced = _traced_by_torch(rule, avals)
    for node in traced.graph.nodes:
        if node.target is torch.ops.aten.detach.default:
            # torch's autograd detaches saved tensors, but higher derivatives follow them
            node.replace_all_uses_with(node.args[0])
    traced.graph.eliminate_dead_code()
    return traced


def _traced_by_torch(rule: TensorFunction, avals: Sequence[Aval]) -> Traced:
    make_fx = internals.MAKE_FX.get()
    with fake_tensors(avals) as fakes:
        module = make_fx(rule, decomposition_table=DECOMPOSITIONS)(*fakes)
        if any(_writes(node) for node in module.graph.nodes):  # to its own tensors
            pure = internals.FUNCTIONALIZED.get()(rule, _functional_mode()())
            module = make_fx(pure, decomposition_table=DECOMPOSITIONS)(*fakes)
    return _of_module(module)


def _of_module(module: torch.fx.GraphModule) -> Traced:
    return Traced(module.graph, lambda name: getattr(module, name))


def _writes(node: torch.fx.Node) -> bool:
    return isinstance(node.target, internals.OVERLOAD.get()) and node.target._schema.is_mutable


@without_modes
def trace_function(
    function: TensorFunction,
    avals: Sequence[Aval],
    writable: Sequence[int] = (),
    parameters: Sequence[int] = (),
    tensors: Sequence[torch.Tensor] | None = None,
    name: str = "torch",
    followed: bool = True,
    default: torch.dtype = torch.float32,
) -> Traced:
    """Return the aten calls that torch records for a user's function. Writes are traced as new values.

    Values computed under ``torch.no_grad`` are detached.

    Args:
        writable: the inputs that it may write to; it returns them.
        parameters: the inputs that it may write to for the time of the call, with a warning.
        tensors: the inputs, if the function may read their values; everything derived from them is then constant.
        name: the name of the function in errors.
        followed: whether a gradient may follow an input.
        default: torch's default dtype for the function.

    Raises:
        ArgumentError: it writes to another input.
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
    ):
        try:
            traced, written = trace(function, avals, default) if tensors is None else by_torch()
        except Untraceable:
            traced, written = by_torch()
    if any(k in parameters for k in written):
        warn_at(
            f"[{name}] writes to a parameter, and the write ends with the call: the next call starts from the"
            " parameters that it is given. Turn the write off, or write what it computes into a new parameter.",
            user_location(),
            UserWarning,
        )
    written = [k for k in written if k not in (*writable, *parameters)]
    if written:
        raise ArgumentError(
            message(name, "a function that leaves its arguments as they are",
                    f"one that writes to an argument, {avals[written[0]]!r}", "Let it write to a clone of it.")
        )  # fmt: skip
    return attrs.evolve(traced, custom=custom)


def _function_traced_by_torch(
    function: TensorFunction,
    avals: Sequence[Aval],
    tensors: Sequence[torch.Tensor] | None,
    followed: bool,
    default: torch.dtype,
) -> tuple[Traced, list[int]]:
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
    module.graph.eliminate_dead_code()
    return _of_module(module), written


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

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Record the function."""
        return replay(self.graph, (*[cast(x, x.aval.dtype) for x in inputs], *self.constants))


Draw = Callable[[Array, str, Aval, list[Any]], Any]
"""(key, overload, type of the result, arguments) -> the result of a random operator, or None if it is unsupported."""


def recorded(traced: Traced, avals: Sequence[Aval], draw: Draw | None = None) -> Derived:
    """Return a traced function as a graph.

    Args:
        draw: samples random operators. The function then has a key as its last input.
    """

    def run(inputs: Sequence[Array]) -> tuple[list[Array], None]:
        if draw is None:
            return record_calls(traced, inputs), None
        return record_calls(traced, inputs[:-1], functools.partial(draw, inputs[-1])), None

    captured = capture(run, [_strong(a) for a in avals], "a function of torch")
    return Derived(renumber(dce(captured.graph)), captured.constants)


def _strong(a: Aval) -> Aval:
    return aval(a.shape, a.dtype, a.device) if a.weak else a


def remembered(key: tuple[Any, ...], function: Callable[[], TensorFunction], avals: Sequence[Aval]) -> Derived:
    """Return the derived function of `key`, traced at its first use in this or an earlier process.

    Args:
        key: the kind of rule, a call as (overload, constants), and everything else that it depends on.
    """
    whole = (key, *map(_strong, avals))
    exact = exact_key(whole)
    found = _rules.get(exact)
    if found is None:
        found = derivations.find(whole, read_derived)
        if found is None:
            found = recorded(trace_rule(function(), avals), avals)
            if not found.constants and of_torch(key[1][0]) and made_of_torch(found.graph):
                derivations.keep(whole, str(found.graph))
        _rules.remember(exact, found)
    return found


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


_rules: BoundedTable[Hashable, Derived] = BoundedTable(MAX_RULES, lambda found: found.weight)


def _listed(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


# -- rules


def vjp(
    call: TensorFunction, key: Hashable, ct: Any, needed: Sequence[bool], operands: Sequence[Array]
) -> list[Array | None]:
    """Return the cotangents of a call's operands, with None for those that are not needed.

    Args:
        call: returns a tensor or a list of tensors.
        key: identifies the call.
        ct: the cotangent of the result; for several results a list, with None for results without one.

    Raises:
        DtypeError: torch has no derivative of the call.
    """
    several = isinstance(ct, list)
    given = [k for k, c in enumerate(ct) if c is not None] if several else [0]
    cts = [ct[k] for k in given] if several else [ct]
    chosen = [k for k, need in enumerate(needed) if need]

    def make() -> TensorFunction:
        def pullback(*tensors: torch.Tensor) -> list[torch.Tensor]:
            inputs = list(tensors[len(cts) :])
            for k in chosen:
                inputs[k] = inputs[k].detach().requires_grad_()
            active = [inputs[k] for k in chosen]
            results = _listed(call(*inputs))
            pairs = [(results[k], _conjugate(ct)) for k, ct in zip(given, tensors[: len(cts)], strict=True)]
            pairs = [(result, ct) for result, ct in pairs if result.requires_grad]
            if not pairs:
                return [torch.zeros_like(x) for x in active]
            outs, grads = zip(*pairs, strict=True)
            # neither torch.func.vjp nor torch.autograd.grad: they import torch.compile, or symbols for sizes
            found = internals.RUN_BACKWARD.get()(
                outs, grads, True, True, tuple(active), allow_unreachable=True, accumulate_grad=False
            )
            return [torch.zeros_like(x) if g is None else _conjugate(g) for x, g in zip(active, found, strict=True)]

        return pullback

    whole = ("vjp", key, tuple(chosen), tuple(given))
    try:
        rule = remembered(whole, make, [x.aval for x in (*cts, *operands)])
    except (RuntimeError, NotImplementedError, UserWarning) as error:
        raise _underivable(key, error) from error
    grads = rule([*cts, *operands])
    out: list[Array | None] = [None] * len(operands)
    for k, g in zip(chosen, grads, strict=True):
        out[k] = g
    return out


def _conjugate(x: torch.Tensor) -> torch.Tensor:
    # torch's cotangents of complex values are the conjugates of gtrace's, which follow JAX
    return torch.conj_physical(x) if x.is_complex() else x


def _underivable(key: Any, error: Exception) -> DtypeError:
    reason = str(error).strip().split("\n")[0]
    return DtypeError(
        message(key[0], "a function that has a derivative", f"one that torch cannot differentiate: {reason}",
                "State a derivative with gt.custom_vjp, or stop the gradient with gt.stop_gradient.")
    )  # fmt: skip


def jvp(
    call: TensorFunction,
    key: Hashable,
    tangents: Sequence[Array | None],
    operands: Sequence[Array],
    result: Aval | Bundle,
) -> Any:
    """Return the tangent of the result, or a list of tangents for several results.

    NotImplemented if torch has no forward derivative; the transposed vjp then replaces it.
    """
    chosen = [k for k, t in enumerate(tangents) if t is not None]
    moved = [t for t in tangents if t is not None]
    several = isinstance(result, Bundle)
    floating = [k for k, a in enumerate(result.avals) if a.floating] if several else [0]  # type: ignore[union-attr]

    def make() -> TensorFunction:
        def pushforward(*tensors: torch.Tensor) -> list[torch.Tensor]:
            inputs = list(tensors[len(chosen) :])

            def part(*active: torch.Tensor) -> tuple[torch.Tensor, ...]:
                for k, x in zip(chosen, active, strict=True):
                    inputs[k] = x
                results = _listed(call(*inputs))
                return tuple(results[k] for k in floating)

            primals = tuple(inputs[k] for k in chosen)
            return list(torch.func.jvp(part, primals, tuple(tensors[: len(chosen)]))[1])

        return pushforward

    try:
        rule = remembered(("jvp", key, tuple(chosen)), make, [x.aval for x in (*moved, *operands)])
    except (RuntimeError, NotImplementedError, UserWarning):
        return NotImplemented
    found = rule([*moved, *operands])
    if not several:
        return found[0]
    all_tangents: list[Array | None] = [None] * len(result.avals)  # type: ignore[union-attr]
    for k, t in zip(floating, found, strict=True):
        all_tangents[k] = t
    return all_tangents


def batch(
    call: TensorFunction, key: Hashable, batched: Sequence[bool], operands: Sequence[Array], example: Aval | Bundle
) -> Any:
    """Return the result for a batch on axis 0, or a list of (result, True) for several results.

    Args:
        example: the type of one example's results.
    """
    dims = tuple(0 if flag else None for flag in batched)

    def make() -> TensorFunction:
        return lambda *tensors: _listed(torch.func.vmap(call, dims)(*tensors))

    def make_one_by_one() -> TensorFunction:
        def each(*tensors: torch.Tensor) -> list[torch.Tensor]:
            size = next(len(t) for t, flag in zip(tensors, batched, strict=True) if flag)
            rows = [
                [t[k].clone() if flag else t for t, flag in zip(tensors, batched, strict=True)] for k in range(size)
            ]
            return [torch.stack(parts) for parts in zip(*[_listed(call(*row)) for row in rows], strict=True)]

        return each

    whole, avals = ("batch", key, tuple(batched)), [x.aval for x in operands]
    rows = example.avals if isinstance(example, Bundle) else (example,)
    try:
        rule = remembered(whole, make, avals)
    except RuntimeError:  # torch batches some operators by a loop, and rejects a few
        rule = remembered(("one by one", *whole), make_one_by_one, avals)
    found = rule(operands)
    if [x.aval.shape[1:] for x in found] != [a.shape for a in rows]:  # torch's rule for cdist's gradient adds an axis
        found = remembered(("one by one", *whole), make_one_by_one, avals)(operands)
    return [(x, True) for x in found] if isinstance(example, Bundle) else found[0]
