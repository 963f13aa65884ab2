"""Tracing a function of torch to aten calls, by tensors that have a type, a place in a graph, and no data.

torch's own tracers import ``torch.compile``, which takes a second, and compute types by layers of Python. Here types
come from the device ``meta``, and from torch's fake tensors only where an operator has none there. What a function
writes to becomes new values: a tensor knows of which it is a view, writes go to that one too, and a view is computed
again from what was written. What this tracer does not follow raises `Untraceable`; torch's is asked then.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.ir.aval import Aval
from gtrace.interop.aten.call_types import results_on_meta
from gtrace.interop.aten.decompose import DECOMPOSITIONS
from gtrace.interop.aten.default_dtype import with_default_dtype
from gtrace.interop.aten.overloads import fake_tensors
from gtrace.interop.aten.trace_effects import users_detaches
from gtrace.interop.aten.translate import Traced
from gtrace.interop.aten.views import written_through

LARGEST_CONSTANT = 1024
"""Elements of the largest tensor that is computed while tracing if it follows from constants alone, so that functions
may look at its values."""

UNKNOWN = object()
"""In the place of the value of a call that does not follow from constants alone."""


class Untraceable(Exception):  # noqa: N818 - it says what is left to torch's tracer
    """A function does what this tracer does not follow."""


class LooksAtValues(RuntimeError):  # noqa: N818 - not an error yet: some functions are traced with values then
    """A function looks at values.

    Attributes:
        size: whether it is the size of a result that depends on them.
    """

    def __init__(self, operator: str, size: bool) -> None:
        super().__init__(operator)
        self.size = size


class _Memory:
    """What a tensor and its views share.

    Attributes:
        version: how often it was written to.
        fixed: whether it is that of a tensor which was there before.
    """

    def __init__(self, fixed: bool = False) -> None:
        self.version = 0
        self.fixed = fixed


@attrs.frozen(eq=False)
class _View:
    """How a tensor follows from another one that has the same memory.

    Attributes:
        node: of the call.
        place: among the results of the call; None if it has one.
        detached: whether it was taken without a gradient.
    """

    base: TracedTensor
    node: torch.fx.Node
    call: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: int | None
    detached: bool


class TracedTensor(torch.Tensor):
    """A tensor without data whose calls are recorded.

    Attributes:
        types: a tensor on ``meta`` with its shape and strides.
        tracer: of the graph that it belongs to.
        node: its value in that graph, when its memory had the version `version`.
        constant: its value, if it follows from constants alone.
    """

    types: torch.Tensor
    tracer: Tracer
    node: torch.fx.Node
    version: int
    memory: _Memory
    origin: _View | None
    constant: torch.Tensor | None

    @staticmethod
    def __new__(
        cls: type[TracedTensor], types: torch.Tensor, device: torch.device, tracer: Tracer, node: torch.fx.Node
    ) -> TracedTensor:
        made: TracedTensor = internals.MAKE_WRAPPER.get()(
            cls, types.shape, types.stride(), types.storage_offset(), dtype=types.dtype, device=device
        )
        made.types, made.tracer, made.node, made.version = types, tracer, node, 0
        made.memory, made.origin, made.constant = _Memory(), None, None
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"<traced tensor of {self.dtype}, shape {tuple(self.shape)}>"

    def tolist(self) -> Any:
        """Return the elements, which must be known."""
        return [x.tolist() for x in self.unbind()] if self.dim() else self.item()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return internals.WITHOUT_FUNCTIONS.get()(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = next(x for x in _tensors((args, kwargs)) if isinstance(x, TracedTensor))
        return found.tracer.dispatch(function, args, kwargs or {})


class Tracer:
    """Records the calls of one function.

    Attributes:
        detaching: whether the function is within a call of its own that detaches a tensor.
        default: torch's default dtype for the function.
    """

    def __init__(self, default: torch.dtype) -> None:
        self.default = default
        self.graph = torch.fx.Graph()
        self._followed: set[torch.fx.Node] = set()  # values that a gradient by an input may follow
        self.constants: dict[str, torch.Tensor] = {}
        self._constant_nodes: dict[int, torch.fx.Node] = {}
        self.detaching = False
        self.mode = _mode()()
        self.mode.tracer = self

    # -- what the graph is made of

    def input(self, a: Aval) -> TracedTensor:
        """Return one more input of the function."""
        node = self.graph.placeholder(f"x{len(self.graph.nodes)}")
        self._followed.add(node)
        return self._tensor(torch.empty(a.shape, dtype=a.dtype, device="meta"), a.device, node)

    def _tensor(self, types: torch.Tensor, device: torch.device, node: torch.fx.Node) -> TracedTensor:
        if types.layout is not torch.strided or types.is_quantized:
            raise Untraceable("a layout that is not dense")
        return TracedTensor(types, device, self, node)

    def value(self, x: torch.Tensor) -> torch.fx.Node:
        """Return what a tensor is now, which follows all writes to its memory."""
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
        args, kwargs = _mapped(self.value, args), _mapped(self.value, kwargs)
        return self._following(self.graph.create_node("call_function", function, tuple(args), kwargs))

    def _item(self, whole: torch.fx.Node, place: int) -> torch.fx.Node:
        return self._following(self.graph.create_node("call_function", operator.getitem, (whole, place)))

    def _following(self, node: torch.fx.Node) -> torch.fx.Node:
        if node.target is not torch.ops.aten.detach.default and not self._followed.isdisjoint(node.all_input_nodes):
            self._followed.add(node)
        return node

    def _detached(self, node: torch.fx.Node, like: torch.Tensor) -> torch.fx.Node:
        if not _differentiable(like):
            return node
        found = self.graph.create_node("call_function", torch.ops.aten.detach.default, (node,))
        found.meta["val"] = like
        return found

    # -- calls

    def dispatch(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Record a call that torch makes; returns its results.

        Raises:
            LooksAtValues: it returns values, or a tensor whose size depends on them.
            Untraceable: it is no call of an operator, or changes tensors in a way that is not followed.
        """
        if not isinstance(function, internals.OVERLOAD.get()):
            raise Untraceable(f"{function}, which is no operator")
        if function is torch.ops.prim.device.default:
            return args[0].device
        if function is torch.ops.aten._linalg_check_errors.default:
            return None  # it would record the order of checks of values, such as whether a matrix was singular
        if function is torch.ops.aten.detach.default and not self.detaching and torch.is_grad_enabled():
            function = torch.ops.aten.alias.default  # torch's autograd detaches what it keeps
        if self.default is not torch.float32:
            args, kwargs = with_default_dtype(function, args, kwargs, self.default)
        own = DECOMPOSITIONS.get(function)
        if own is not None or _composite(function):
            with self.mode:
                found = (own or function.decompose)(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if function is torch.ops.aten.native_batch_norm.default and args[5] and args[3] is not None:
            function = torch.ops.aten._native_batch_norm_legit.default  # which says that it writes to its statistics
        if function._schema.is_mutable:
            with self.mode:
                return self._in_place(function, args, kwargs)
        return self._pure(function, args, kwargs)

    def _pure(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        known = self._known(function, args, kwargs)
        if function is torch.ops.aten._is_all_true.default and known is UNKNOWN:
            return torch.tensor(True)  # torch checks arguments by it, as those of its distributions
        reads = _reads_values(function, args, kwargs)
        if reads and known is UNKNOWN:
            raise LooksAtValues(str(function), reads == "size")
        types = self._types(function, args, kwargs) if known is UNKNOWN else known
        if not _tensors(types):
            return types
        several = not isinstance(types, torch.Tensor)
        node = self._constant(types) if reads and not several else self._called(function, args, kwargs)
        device = _device(args, kwargs)
        base = args[0] if _is_view(function) else None
        detached = not torch.is_grad_enabled()

        def result(meta: torch.Tensor, place: int | None) -> TracedTensor:
            if place is None:
                own = node
            else:
                own = self._constant(meta) if reads else self._item(node, place)
            made = self._tensor(meta if known is UNKNOWN else _on_meta(meta), device, own)
            if place is not None:
                own.meta["val"] = made
            if detached:
                made.node = self._detached(own, made)
            if known is not UNKNOWN:
                made.constant = meta
            if isinstance(base, TracedTensor):
                made.memory, made.version = base.memory, base.memory.version
                made.origin = _View(base, node, function, tuple(args), kwargs, place, detached)
            elif base is not None:
                made.memory = _Memory(fixed=True)
            return made

        if several:
            results: Any = type(types)([
                result(each, k) if isinstance(each, torch.Tensor) else self._nested(each)
                for k, each in enumerate(types)
            ])  # fmt: skip
        else:
            results = result(types, None)
        node.meta["val"] = results
        return results

    def _nested(self, value: Any) -> Any:
        if _tensors(value):
            raise Untraceable("results within results")
        return value

    def _known(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return what a call gives if it follows from small constants, else `UNKNOWN`."""
        given = _tensors((args, kwargs))
        if not given or torch.Tag.nondeterministic_seeded in function.tags:
            return UNKNOWN
        values = [_value_of(x) for x in given]
        if any(x is None or x.numel() > LARGEST_CONSTANT for x in values):
            return UNKNOWN
        rest = iter(values)
        with torch.no_grad():
            found = function(*_mapped(lambda x: next(rest), args), **_mapped(lambda x: next(rest), kwargs))
        return found if all(x.numel() <= LARGEST_CONSTANT for x in _tensors(found)) else UNKNOWN

    def _types(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return what a call gives on ``meta``, or what torch's fake tensors say of it."""
        with torch.no_grad():
            with contextlib.suppress(NotImplementedError):
                given, named = _mapped(_type, args), _mapped(_type, kwargs)
                return _mapped(_plain, results_on_meta(function, given, named, _device(args, kwargs).type))
            with fake_tensors(()):
                found = function(*_mapped(_fake, args), **_mapped(_fake, kwargs))
            return _mapped(_on_meta, found)

    # -- writing

    def _in_place(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Record a call that writes to its first argument as one that returns a new value."""
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
        """Let a tensor, and what it is a view of, have a new value."""
        if not isinstance(target, TracedTensor) or target.memory.fixed:
            raise Untraceable("a write to a tensor that was there before")
        chain = []
        while True:
            chain.append((target, self.value(self._with_gradient_of(target, value))))
            view = target.origin
            if view is None:
                break
            whole = written_through(view.call, view.args, view.kwargs, view.place, value)
            if whole is None:
                raise Untraceable(f"a write through a view of {view.call}")
            target, value = view.base, whole
        memory = target.memory
        memory.version += 1
        for one, new in chain:
            one.node, one.version, one.constant = new, memory.version, None

    def _with_gradient_of(self, target: TracedTensor, value: torch.Tensor) -> torch.Tensor:
        """Return what a write leaves: under ``no_grad``, the value with the gradient that the tensor had before."""
        old = self.value(target)
        if torch.is_grad_enabled() or old not in self._followed or old.op == "placeholder":
            return value  # an input that is written to is a buffer, which torch does not differentiate
        known = torch.ops.aten.alias.default(target)  # detached, as everything is under no_grad
        with torch.enable_grad():
            return value - torch.where(torch.isfinite(known), known - target, 0.0)  # exact: of zeros


def trace(
    function: Callable[..., Any], avals: Sequence[Aval], default: torch.dtype = torch.float32
) -> tuple[Traced, list[int]]:
    """Trace a function of tensors, under a default dtype; returns its calls, and which inputs it writes to.

    Raises:
        LooksAtValues: it looks at values.
        Untraceable: it does what is not followed.
    """
    tracer = Tracer(default)
    inputs = [tracer.input(a) for a in avals]
    with users_detaches(tracer), tracer.mode:
        results = function(*inputs)
        outputs = tuple([tracer.value(x) for x in results])
    tracer.graph.output(outputs)
    tracer.graph.eliminate_dead_code()
    return Traced(tracer.graph, tracer.constants.__getitem__), [k for k, x in enumerate(inputs) if x.memory.version]


@functools.cache
def _mode() -> Any:
    """Return a mode that records calls without traced tensors too, such as those that make tensors."""

    def dispatch(mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return mode.tracer.dispatch(function, args, kwargs or {})

    return internals.dispatch_mode(dispatch)


# -- what torch says of operators


@functools.cache
def _composite(function: Any) -> bool:
    """Whether torch makes an operator of others."""
    return bool(internals.HAS_KERNEL.get()(function.name(), "CompositeImplicitAutograd"))


@functools.cache
def _is_view(function: Any) -> bool:
    """Whether the result of an operator has the memory of its first argument."""
    if function is torch.ops.aten.lift_fresh.default:  # of a tensor that nothing else has
        return False
    return any(r.alias_info is not None and not r.alias_info.is_write for r in function._schema.returns)


def _reads_values(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """Return whether the "result" of a call, or its "size", depends on values in a way that no type shows."""
    if function is torch.ops.aten.index.Tensor:
        sized = any(x.dtype in (torch.bool, torch.uint8) for x in _tensors(args[1]))
    elif function is torch.ops.aten.repeat_interleave.Tensor:
        sized = kwargs.get("output_size") is None
    else:
        sized = torch.Tag.dynamic_output_shape in function.tags
    return "size" if sized else "result" if torch.Tag.data_dependent_output in function.tags else None


@functools.cache
def _without_writing(function: Any) -> Any:
    """Return the operator that returns what another one writes to its first argument; None if there is none."""
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


# -- tensors among arguments


def _mapped(f: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return f(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(f, each) for each in value])
    return {key: _mapped(f, each) for key, each in value.items()} if isinstance(value, dict) else value


def _walk(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _walk(each)
    elif isinstance(value, dict):
        yield from _walk(list(value.values()))


def _tensors(value: Any) -> list[torch.Tensor]:
    return list(_walk(value))


def _value_of(x: torch.Tensor) -> torch.Tensor | None:
    """Return the value of a constant; None for other tensors."""
    if not isinstance(x, TracedTensor):
        return x if x.device.type != "meta" else None
    return x.constant if x.version == x.memory.version else None


def _on_meta(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _plain(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor on ``meta`` without marks of conjugation: its value is in the graph."""
    return _on_meta(x) if x.is_conj() or x.is_neg() else x


def _type(x: torch.Tensor) -> torch.Tensor:
    return x.types if isinstance(x, TracedTensor) else _on_meta(x)


def _fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def _device(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.device:
    """Return the device of the results of a call."""
    given = kwargs.get("device")
    if given is not None:
        return torch.device(given)
    found = _tensors((args, kwargs))
    return next((x.device for x in found if x.dim()), found[0].device) if found else torch.get_default_device()


def _differentiable(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()
