"""Tensors without data that represent those of a traced function, and tensors among arguments of calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.errors import ExecutionError, message
from gtrace.interop.aten.open_sizes import current, is_open
from gtrace.interop.aten.upsampling import upsampling_by_sizes


class Memory:
    """The shared state of a tensor and its views.

    Attributes:
        version: the number of writes.
        fixed: whether it belongs to a tensor that existed before the trace.
    """

    def __init__(self, fixed: bool = False) -> None:
        self.version = 0
        self.fixed = fixed


@attrs.frozen(eq=False)
class TracedView:
    """The derivation of a tensor from another one with the same memory.

    Attributes:
        node: the node of the call.
        place: its index among the results of the call; None if there is one result.
        detached: whether it was made without a gradient.
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
        tracer: the `Tracer` of its graph.
        node: its value in that graph, when its memory had the version `version`.
        constant: its value, if it follows from constants alone.
        sized: whether that value is for the open sizes of the current call.
    """

    types: torch.Tensor
    tracer: Any
    node: torch.fx.Node
    version: int
    memory: Memory
    origin: TracedView | None
    constant: torch.Tensor | None
    sized: bool

    @staticmethod
    def __new__(
        cls: type[TracedTensor], types: torch.Tensor, device: torch.device, tracer: Any, node: torch.fx.Node
    ) -> TracedTensor:
        made: TracedTensor = internals.MAKE_WRAPPER.get()(
            cls, types.shape, types.stride(), types.storage_offset(), dtype=types.dtype, device=device
        )
        made.types, made.tracer, made.node, made.version = types, tracer, node, 0
        made.memory, made.origin, made.constant, made.sized = Memory(), None, None, False
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"<traced tensor of {self.dtype}, shape {tuple(self.shape)}>"

    def tolist(self) -> Any:
        """Return the elements, which must be known."""
        return [x.tolist() for x in self.unbind()] if self.dim() else self.item()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with upsampling_by_sizes() if function is torch.nn.functional.interpolate else contextlib.nullcontext():
            return internals.WITHOUT_FUNCTIONS.get()(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = [x.tracer for x in tensors_in((args, kwargs)) if isinstance(x, TracedTensor)]
        running = [tracer for tracer in found if not tracer.ended]
        if not running:
            return function(*mapped(settled, args), **mapped(settled, kwargs or {}))
        return running[0].dispatch(function, args, kwargs or {})


def settled(x: torch.Tensor) -> torch.Tensor:
    """Return the value of a tensor from an earlier trace; other tensors are unchanged.

    Raises:
        ExecutionError: the tensor depends on the arguments of that earlier call.
    """
    if not isinstance(x, TracedTensor) or not x.tracer.ended:
        return x
    value = value_of(x)
    if value is None:
        raise ExecutionError(
            message("torch", "a function that keeps no tensors made from its arguments",
                    f"one of an earlier call, of {x.dtype} and shape {tuple(x.shape)}",
                    "Return it, or compute it again in each call.")
        )  # fmt: skip
    return value


def evaluated(node: torch.fx.Node, constants: dict[str, torch.Tensor], values: dict[torch.fx.Node, Any]) -> Any:
    """Return the value of a node that follows from constants alone, else None.

    Args:
        values: the values of nodes that were evaluated before.
    """
    waiting = [node]
    while waiting:
        one = waiting[-1]
        missing = [each for each in one.all_input_nodes if each not in values]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if one in values:
            continue
        if one.op == "get_attr":
            values[one] = constants[str(one.target)]
        elif one.op == "placeholder" or any(values[each] is None for each in one.all_input_nodes):
            values[one] = None
        elif torch.Tag.nondeterministic_seeded in getattr(one.target, "tags", ()):
            values[one] = None
        else:
            args, kwargs = torch.fx.node.map_arg((one.args, one.kwargs), values.__getitem__)
            call: Any = one.target
            values[one] = call(*numbers_mapped(current, args), **numbers_mapped(current, kwargs))
    return values[node]


def mapped(f: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return f(value)
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(f, each) for each in value])
    return {key: mapped(f, each) for key, each in value.items()} if isinstance(value, dict) else value


def numbers_mapped(f: Callable[[Any], Any], value: Any) -> Any:
    """Return arguments of a call with ``f(x)`` in place of each that is neither a sequence nor a dict."""
    if isinstance(value, (list, tuple)):
        return [numbers_mapped(f, each) for each in value]
    return {key: numbers_mapped(f, each) for key, each in value.items()} if isinstance(value, dict) else f(value)


def has_open(value: Any) -> bool:
    """Whether arguments of a call contain an open number, or a constant that depends on one."""
    if isinstance(value, (list, tuple)):
        return any(map(has_open, value))
    if isinstance(value, dict):
        return any(map(has_open, value.values()))
    return value.sized if isinstance(value, TracedTensor) else is_open(value)


def _walk(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _walk(each)
    elif isinstance(value, dict):
        yield from _walk(list(value.values()))


def tensors_in(value: Any) -> list[torch.Tensor]:
    return list(_walk(value))


def value_of(x: torch.Tensor) -> torch.Tensor | None:
    """Return the value of a constant; None for other tensors."""
    if not isinstance(x, TracedTensor):
        return x if x.device.type != "meta" else None
    return x.constant if x.version == x.memory.version else None


def on_meta(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def unmarked(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor on ``meta`` without marks of conjugation; the graph applies them."""
    return on_meta(x) if x.is_conj() or x.is_neg() else x


def type_of(x: torch.Tensor) -> torch.Tensor:
    return x.types if isinstance(x, TracedTensor) else on_meta(x)


def fake_like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def device_of(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.device:
    """Return the device of the results of a call."""
    given = kwargs.get("device")
    if given is not None:
        return torch.device(given)
    found = tensors_in((args, kwargs))
    return next((x.device for x in found if x.dim()), found[0].device) if found else torch.get_default_device()


def differentiable(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()
