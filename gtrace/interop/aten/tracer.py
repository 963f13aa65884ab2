"""Traces torch functions to aten calls, on tensors that have a type, a node in a graph, and no data.

torch's own tracers import ``torch.compile``, which takes a second, and compute types by layers of Python. Here types
come from the device ``meta``, and from fake tensors only for operators that lack ``meta``. A write creates a new value:
a tensor knows its base, a write to a view also updates the base, and other views are recomputed. Functions that this
tracer cannot follow raise `Untraceable`, and torch's tracer takes over.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.ir.aval import Aval
from gtrace.interop.aten.call_types import results_on_meta
from gtrace.interop.aten.decompose import DECOMPOSITIONS
from gtrace.interop.aten.default_dtype import with_default_dtype
from gtrace.interop.aten.memory import constant_memory, with_memory
from gtrace.interop.aten.open_sizes import Opened, current, is_open
from gtrace.interop.aten.open_types import UnknownSizesError, open_types
from gtrace.interop.aten.overloads import fake_tensors, is_view
from gtrace.interop.aten.trace_effects import of_unknown_size, users_detaches
from gtrace.interop.aten.traced_calls import BY_MEMORY, TracedCall
from gtrace.interop.aten.traced_tensor import (
    Memory,
    TracedTensor,
    TracedView,
    device_of,
    differentiable,
    evaluated,
    fake_like,
    has_open,
    mapped,
    numbers_mapped,
    on_meta,
    settled,
    tensors_in,
    type_of,
    unmarked,
    value_of,
)
from gtrace.interop.aten.views import written_through

LARGEST_CONSTANT = 1024
"""The maximal elements of a tensor that is computed while tracing, if it follows from constants alone. Functions may
read its values."""

UNKNOWN = object()
"""The value of a call that does not follow from constants alone."""


class Untraceable(Exception):  # noqa: N818 - it says what is left to torch's tracer
    """A function does something that this tracer does not follow."""


class LooksAtValues(RuntimeError):  # noqa: N818 - not an error yet: some functions are traced with values then
    """A function reads values.

    Attributes:
        size: whether the size of a result depends on them.
    """

    def __init__(self, operator: str, size: bool) -> None:
        super().__init__(operator)
        self.size = size


class Tracer:
    """Records the calls of one function.

    Attributes:
        detaching: whether the function is inside a call of its own that detaches a tensor.
        default: torch's default dtype for the function.
        ended: whether the function has returned.
        opened: the open sizes; None: all sizes are those of the current call.
    """

    def __init__(self, default: torch.dtype, opened: Opened | None) -> None:
        self.default = default
        self.opened = opened
        self.ended = False
        self._made: list[weakref.ref[TracedTensor]] = []
        self.graph = torch.fx.Graph()
        self._followed: set[torch.fx.Node] = set()  # values that a gradient with respect to an input may follow
        self.constants: dict[str, torch.Tensor] = {}
        self._constant_nodes: dict[int, torch.fx.Node] = {}
        self.detaching = False
        self.mode = _mode()()
        self.mode.tracer = self

    # -- building the graph

    def input(self, a: Aval, shape: Sequence[Any]) -> TracedTensor:
        """Return an additional input of the function, with its sizes, which may be open."""
        node = self.graph.placeholder(f"x{len(self.graph.nodes)}")
        self._followed.add(node)
        return self._tensor(torch.empty(shape, dtype=a.dtype, device="meta"), a.device, node)

    def _tensor(self, types: torch.Tensor, device: torch.device, node: torch.fx.Node) -> TracedTensor:
        if types.layout is not torch.strided or types.is_quantized:
            raise Untraceable("a layout that is not dense")
        made = TracedTensor(types, device, self, node)
        self._made.append(weakref.ref(made))
        return made

    def end(self, results: Sequence[torch.Tensor]) -> None:
        """Assign values to tensors that the function keeps beside its results, if they follow from constants.

        A function may keep tables between its calls, such as masks by length.
        """
        self.ended = True
        returned = set(map(id, results))
        values: dict[torch.fx.Node, Any] = {}
        for reference in self._made:
            x = reference()
            if x is not None and id(x) not in returned and x.version == x.memory.version and x.constant is None:
                with torch.no_grad():
                    x.constant = evaluated(x.node, self.constants, values)

    def release(self) -> None:
        """Part tensors and graph, which refer to one another through C++: Python's collector does not see that cycle.

        The function may keep a tensor. It has its value then, or none.
        """
        self.ended = True
        for node in self.graph.nodes:
            node.meta.clear()
        for reference in self._made:
            x = reference()
            if x is not None:
                del x.node, x.origin
        self._made.clear()
        self._followed.clear()
        self._constant_nodes.clear()
        self.constants = {}
        self.graph = torch.fx.Graph()

    def value(self, x: torch.Tensor) -> torch.fx.Node:
        """Return the current value of a tensor, after all writes to its memory."""
        if not isinstance(x, TracedTensor):
            return self._constant(x)
        if x.tracer is not self:
            raise Untraceable("a tensor of another trace")
        if x.version != x.memory.version:
            view = x.origin
            if view is None:
                raise AssertionError("only views follow what others write")
            node = self._called(view.call, view.args, view.kwargs)
            node.meta["val"] = view.node.meta["val"]
            if view.place is not None:
                node = self._item(node, view.place)
            x.node, x.version = self._detached(node, x) if view.detached else node, x.memory.version
        return x.node

    def _constant(self, x: torch.Tensor) -> torch.fx.Node:
        node = self._constant_nodes.get(id(x))
        if node is None:
            name = f"constant{len(self.constants)}"
            self.constants[name] = x
            node = self._constant_nodes[id(x)] = self.graph.create_node("get_attr", name)
        return node

    def _called(self, function: Any, args: Any, kwargs: Any) -> torch.fx.Node:
        args, kwargs = mapped(self.value, args), mapped(self.value, kwargs)
        if self.opened is not None:
            args, kwargs = numbers_mapped(self.opened.number, args), numbers_mapped(self.opened.number, kwargs)
        return self._following(self.graph.create_node("call_function", function, tuple(args), kwargs))

    def _item(self, whole: torch.fx.Node, place: int) -> torch.fx.Node:
        return self._following(self.graph.create_node("call_function", operator.getitem, (whole, place)))

    def _following(self, node: torch.fx.Node) -> torch.fx.Node:
        if node.target is not torch.ops.aten.detach.default and not self._followed.isdisjoint(node.all_input_nodes):
            self._followed.add(node)
        return node

    def _detached(self, node: torch.fx.Node, like: torch.Tensor) -> torch.fx.Node:
        if not differentiable(like):
            return node
        found = self.graph.create_node("call_function", torch.ops.aten.detach.default, (node,))
        found.meta["val"] = like
        return found

    # -- calls

    def dispatch(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Record a call that torch makes; return its results.

        Raises:
            LooksAtValues: it returns values, or a tensor whose size depends on them.
            Untraceable: it is not an operator call, or changes tensors in an unknown way.
        """
        if not isinstance(function, internals.OVERLOAD.get()):
            raise Untraceable(f"{function}, which is no operator")
        if function is torch.ops.prim.device.default:
            return args[0].device
        args, kwargs = mapped(self._own, args), mapped(self._own, kwargs)
        if str(function) in BY_MEMORY:
            if isinstance(args[0], TracedTensor):
                with self.mode:
                    found = with_memory(function, args, kwargs)
                if found is not None:
                    return found
            else:
                args, kwargs = constant_memory(function, args, kwargs), {}
        if function is torch.ops.aten._linalg_check_errors.default:
            return None  # it would record checks of values, such as whether a matrix was singular
        if function is torch.ops.aten.detach.default and not self.detaching and torch.is_grad_enabled():
            function = torch.ops.aten.alias.default  # torch's autograd detaches saved tensors
        if self.default is not torch.float32:
            args, kwargs = with_default_dtype(function, args, kwargs, self.default)
        own = DECOMPOSITIONS.get(function)
        if own is not None or _composite(function):
            with self.mode:
                found = (own or function.decompose)(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if function is torch.ops.aten.native_batch_norm.default and args[5] and args[3] is not None:
            function = torch.ops.aten._native_batch_norm_legit.default  # declares its writes to statistics
        if function._schema.is_mutable:
            with self.mode:
                return self._in_place(function, args, kwargs)
        return self._pure(function, args, kwargs)

    def _own(self, x: torch.Tensor) -> torch.Tensor:
        return settled(x) if isinstance(x, TracedTensor) and x.tracer is not self else x

    def _pure(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        known = self._known(function, args, kwargs)
        if function is torch.ops.aten._is_all_true.default and known is UNKNOWN:
            return torch.tensor(True)  # torch's distributions, for example, check arguments by it
        reads = _reads_values(function, args, kwargs)
        if reads and known is UNKNOWN:
            raise LooksAtValues(str(function), reads == "size")
        sized = known is not UNKNOWN and has_open((args, kwargs))
        if sized and self.opened is not None and (reads or not tensors_in(known)):
            self.opened.sizes.fix()
            sized = False
        types = self._types(function, args, kwargs) if known is UNKNOWN or sized else known
        if not tensors_in(types):
            return types
        several = not isinstance(types, torch.Tensor)
        node = self._constant(types) if reads and not several else self._called(function, args, kwargs)
        device = device_of(args, kwargs)
        base = args[0] if is_view(function) else None
        detached = not torch.is_grad_enabled()

        def result(meta: torch.Tensor, value: torch.Tensor, place: int | None) -> TracedTensor:
            if place is None:
                own = node
            else:
                own = self._constant(meta) if reads else self._item(node, place)
            made = self._tensor(meta if known is UNKNOWN or sized else on_meta(meta), device, own)
            if place is not None:
                own.meta["val"] = made
            if detached:
                made.node = self._detached(own, made)
            if known is not UNKNOWN:
                made.constant, made.sized = value, sized
            if isinstance(base, TracedTensor):
                made.memory, made.version = base.memory, base.memory.version
                made.origin = TracedView(base, node, function, tuple(args), kwargs, place, detached)
            elif base is not None:
                made.memory = Memory(fixed=True)
            return made

        if several:
            values = types if known is UNKNOWN else known
            results: Any = type(types)([
                result(each, values[k], k) if isinstance(each, torch.Tensor) else self._nested(each)
                for k, each in enumerate(types)
            ])  # fmt: skip
        else:
            results = result(types, known, None)
        node.meta["val"] = results
        return results

    def _nested(self, value: Any) -> Any:
        if tensors_in(value):
            raise Untraceable("results within results")
        return value

    def _known(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of a call if it follows from small constants, else `UNKNOWN`."""
        given = tensors_in((args, kwargs))
        if torch.Tag.nondeterministic_seeded in function.tags:
            return UNKNOWN
        if not given and not _takes_tensor(function):  # a tensor is made; else numbers stand for tensors
            return UNKNOWN
        values = [value_of(x) for x in given]
        if any(x is None or x.numel() > LARGEST_CONSTANT for x in values):
            return UNKNOWN
        rest = iter(values)
        args, kwargs = mapped(lambda x: next(rest), args), mapped(lambda x: next(rest), kwargs)
        if self.opened is not None:
            args, kwargs = numbers_mapped(current, args), numbers_mapped(current, kwargs)
        with torch.no_grad():
            found = function(*args, **kwargs)
        return found if all(x.numel() <= LARGEST_CONSTANT for x in tensors_in(found)) else UNKNOWN

    def _types(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return the results of a call on ``meta``, or those of torch's fake tensors."""
        with torch.no_grad():
            if self.opened is not None and (
                has_open((args, kwargs)) or any(is_open(n) for x in tensors_in((args, kwargs)) for n in x.shape)
            ):
                given, named = mapped(type_of, args), mapped(type_of, kwargs)
                try:
                    device = device_of(args, kwargs).type
                    return mapped(unmarked, open_types(function, given, named, device, self.opened))
                except UnknownSizesError as error:
                    raise Untraceable(f"open sizes of {error}") from error
            with contextlib.suppress(NotImplementedError):
                given, named = mapped(type_of, args), mapped(type_of, kwargs)
                return mapped(unmarked, results_on_meta(function, given, named, device_of(args, kwargs).type))
            with fake_tensors(()):
                found = function(*mapped(fake_like, args), **mapped(fake_like, kwargs))
            return mapped(on_meta, found)

    # -- writes

    def _in_place(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Record a call that writes to its first argument as a call that returns a new value."""
        kwargs = dict(kwargs)
        if function is torch.ops.aten._native_batch_norm_legit.default:
            *results, mean, var = torch.ops.aten._native_batch_norm_legit_functional.default(*args, **kwargs)
            self._write(args[3], mean)
            self._write(args[4], var)
            return tuple(results)
        target, pure = args[0], _without_writing(function)
        if pure is None:
            raise Untraceable(f"{function}, which no other operator does without writing")
        positional = [a for a in function._schema.arguments if not a.kwarg_only]
        rest = [kwargs.pop(a.name, a.default_value) for a in positional[len(args) :]]
        value = pure(*args, *rest, **kwargs)
        if value.shape != target.shape or not torch.can_cast(value.dtype, target.dtype):
            raise Untraceable(f"{function} of operands that do not fit")
        if value.dtype is not target.dtype:
            value = value.to(target.dtype)
        self._write(target, value)
        return target

    def _write(self, target: Any, value: torch.Tensor) -> None:
        """Assign a new value to a tensor and its base."""
        if not isinstance(target, TracedTensor) or target.memory.fixed:
            raise Untraceable("a write to a tensor that was there before")
        chain, kept = [], not torch.is_grad_enabled()
        while True:
            chain.append((target, self.value(self._with_gradient_of(target, value) if kept else value)))
            view = target.origin
            if view is None:
                break
            whole = written_through(view.call, view.args, view.kwargs, view.place, value)
            if whole is None:
                raise Untraceable(f"a write through a view of {view.call}")
            kept = kept or view.detached or view.call is torch.ops.aten.detach.default
            target, value = view.base, whole
        memory = target.memory
        memory.version += 1
        for one, new in chain:
            one.node, one.version, one.constant = new, memory.version, None

    def _with_gradient_of(self, target: TracedTensor, value: torch.Tensor) -> torch.Tensor:
        """Return the value of a write that torch does not follow, with the earlier gradient."""
        old = self.value(target)
        if old not in self._followed or old.op == "placeholder":
            return value  # a written input is a buffer, which torch does not differentiate
        with torch.no_grad():  # detach the values computed here
            known, value = torch.ops.aten.alias.default(target), torch.ops.aten.alias.default(value)
        with torch.enable_grad():
            return value - torch.where(torch.isfinite(known), known - target, 0.0)  # exact, because it subtracts zeros


def trace(
    function: Callable[..., Any],
    avals: Sequence[Aval],
    default: torch.dtype = torch.float32,
    detached: bool = True,
    opened: Opened | None = None,
) -> tuple[TracedCall, list[int]]:
    """Trace a function of tensors under a default dtype; return its calls, and the inputs that it writes to.

    Args:
        detached: whether detached values stay so. torch's autograd detaches saved tensors, but higher derivatives
            follow them.
        opened: the sizes of the inputs, some of which are open.

    Raises:
        LooksAtValues: it reads values.
        Untraceable: it does something that is not followed.
    """
    tracer = Tracer(default, opened)
    shapes = [a.shape for a in avals] if opened is None else opened.shapes
    try:
        inputs = [tracer.input(a, shape) for a, shape in zip(avals, shapes, strict=True)]
        with users_detaches(tracer), tracer.mode:
            results = function(*inputs)
            outputs = tuple([tracer.value(x) for x in results])
        tracer.graph.output(outputs)
        tracer.end(results)
        tracer.graph.eliminate_dead_code()
        written = [k for k, x in enumerate(inputs) if x.memory.version]
        constant = tracer.constants.__getitem__
        if opened is None:
            return TracedCall.of(tracer.graph, constant, detached), written
        return TracedCall.of(tracer.graph, constant, detached, opened.number), written
    finally:
        tracer.release()


@functools.cache
def _mode() -> Any:
    """Return a mode that also records calls without traced tensors, such as constructors."""

    def dispatch(mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return mode.tracer.dispatch(function, args, kwargs or {})

    return internals.dispatch_mode(dispatch)


# -- facts about torch's operators


@functools.cache
def _composite(function: Any) -> bool:
    """Whether torch composes an operator of others."""
    return bool(internals.HAS_KERNEL.get()(function.name(), "CompositeImplicitAutograd"))


@functools.cache
def _takes_tensor(function: Any) -> bool:
    arguments = function._schema.arguments
    return bool(arguments) and str(arguments[0].type) == "Tensor"


def _reads_values(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """Return whether the "result" of a call, or its "size", depends on values in a way that no type shows."""
    if function is torch.ops.aten.index.Tensor:
        sized = any(x.dtype in (torch.bool, torch.uint8) for x in tensors_in(args[1]))
    elif function is torch.ops.aten.repeat_interleave.Tensor:
        sized = kwargs.get("output_size") is None
    else:
        sized = of_unknown_size(function)
    return "size" if sized else "result" if torch.Tag.data_dependent_output in function.tags else None


@functools.cache
def _without_writing(function: Any) -> Any:
    """Return the operator that returns the value another one writes to its first argument, or None."""
    arguments = function._schema.arguments
    written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    namespace, _, name = function._schema.name.partition("::")
    if written != arguments[:1] or not name.endswith("_") or torch.Tag.inplace_view in function.tags:
        return None
    packets = getattr(torch.ops, namespace)
    for plain in (name[:-1], f"{name[:-1]}_functional"):
        packet = getattr(packets, plain, None)
        for overload in () if packet is None else packet.overloads():
            found = getattr(packet, overload)
            if [(a.name, str(a.type)) for a in found._schema.arguments] == [(a.name, str(a.type)) for a in arguments]:
                return found
    return None
