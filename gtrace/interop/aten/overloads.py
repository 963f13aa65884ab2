"""torch operators by name, and their calls as text.

An operator is named by its overload, such as ``aten.convolution.default``. Its constants have one entry for each
argument of the overload's schema, in which `OPERAND` stands for an array.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.bounded_tables import remembered
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.ir.aval import Aval

OPERAND = "x"
"""Marks an array among the constants of a call."""

_KINDS = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


def find_overload(name: str) -> Any:
    """Return the overload with this name.

    Raises:
        ArgumentError: torch has no such overload, or gtrace cannot call it.
    """
    found = _overloads.get(name)
    if found is None:
        namespace, _, rest = name.partition(".")
        packet, _, variant = rest.rpartition(".")
        try:
            found = getattr(getattr(getattr(torch.ops, namespace), packet), variant)
        except AttributeError as error:
            raise ArgumentError(
                message("aten", "an operator of torch, such as aten.relu.default", name, "Check the name.")
            ) from error
        check_overload(found)
        _overloads[name] = found
    return found


_overloads: dict[str, Any] = {}


def of_torch(name: str) -> bool:
    """Whether an operator belongs to torch itself, whose operators are the same in every process."""
    return name.startswith("aten.")


@functools.cache
def is_view(function: Any) -> bool:
    """Whether the result of an operator shares the memory of its first argument."""
    if function is torch.ops.aten.lift_fresh.default:  # its tensor has no other owner
        return False
    return any(r.alias_info is not None and not r.alias_info.is_write for r in function._schema.returns)


class RandomOperatorError(ArgumentError):
    """An operator draws from torch's global state."""


def check_overload(overload: Any) -> None:
    """Raise for an operator that is not a pure function of its operands.

    Raises:
        RandomOperatorError: it samples random numbers.
        ArgumentError: it writes to its operands.
    """
    name = str(overload)
    if torch.Tag.nondeterministic_seeded in overload.tags and not name.startswith(ATTENTION):
        raise RandomOperatorError(
            message("torch", "a function of its arguments", f"{name}, which draws from torch's global state",
                    "Draw with gt.random and pass the numbers.")
        )  # fmt: skip
    if overload._schema.is_mutable:
        raise ArgumentError(
            message("torch", "a function that returns new arrays", f"{name}, which writes to its operands",
                    "Use the function without out= and without a final underscore.")
        )  # fmt: skip


NOT_ON_META = {
    "aten._embedding_bag.default", "aten._embedding_bag_forward_only.default", "aten.convolution.default",
    "aten.convolution_backward.default",
}  # fmt: skip
"""Overloads whose results on ``meta`` have other shapes, or that accept wrong operands there."""

ATTENTION = "aten._scaled_dot_product_"
"""Prefixes of attention kernels. They are random only with dropout, which none of them applies on the CPU."""


@contextlib.contextmanager
def fake_tensors(avals: Sequence[Aval]) -> Iterator[list[torch.Tensor]]:
    """Yield dense operands without data, on their devices; in the block, torch computes only types."""
    mode = internals.FAKE_TENSOR_MODE.get()(allow_non_fake_inputs=True)
    # torch logs a traceback of each rejected call, which becomes an error of gtrace
    log = logging.getLogger(internals.FAKE_TENSOR_MODE.module)
    disabled, log.disabled = log.disabled, True
    try:
        with mode:
            yield [torch.empty(a.shape, dtype=a.dtype, device=a.device) for a in avals]
    finally:
        log.disabled = disabled


# -- constants as text


def encode(value: Any) -> Any:
    """Return a constant of a call as an attribute: a literal or a descriptive text.

    Raises:
        ArgumentError: the constant is of an unknown kind.

    >>> encode((2, None, torch.float32, float("nan"), "mean"))
    (2, None, 'dtype:float32', 'float:nan', 'str:mean')
    """
    if value is None or value.__class__ in (bool, int):
        return value
    if value.__class__ is float:
        return "float:nan" if math.isnan(value) else value
    if isinstance(value, (list, tuple)):
        return tuple([encode(each) for each in value])
    if isinstance(value, str):
        return f"str:{value}"
    if isinstance(value, complex):
        return f"complex:{value}"
    if isinstance(value, torch.device):
        return f"device:{value}"
    kind = _KINDS.get(type(value))
    if kind is None:
        raise ArgumentError(
            message("torch", "arrays, numbers, strings, dtypes and devices", type(value).__name__, "Close over it.")
        )
    return f"{kind}:{str(value).removeprefix('torch.')}"


def decode(value: Any) -> Any:
    """Return the constant that `encode` encoded."""
    if isinstance(value, tuple):
        return [decode(each) for each in value]
    if not isinstance(value, str):
        return value
    kind, _, text = value.partition(":")
    if kind == "str":
        return text
    if kind in ("float", "complex"):
        return (float if kind == "float" else complex)(text)
    return torch.device(text) if kind == "device" else getattr(torch, text)


def template(overload: Any, args: Sequence[Any], kwargs: dict[str, Any], is_operand: Callable[[Any], bool]) -> Any:
    """Return the operands of a call and its arguments as text, one for each of the schema, without final defaults."""
    operands: list[Any] = []

    def write(value: Any) -> Any:
        if is_operand(value):
            operands.append(value)
            return OPERAND
        if isinstance(value, (list, tuple)):
            return tuple([write(each) for each in value])
        return encode(value)

    entries = []
    least = 0
    for k, argument in enumerate(overload._schema.arguments):
        given = k < len(args) and not argument.kwarg_only
        if given or argument.name in kwargs:
            entries.append(write(args[k] if given else kwargs[argument.name]))
            least = len(entries)
        else:
            entries.append(encode(argument.default_value))
    return operands, tuple(entries[:least])


@remembered(4096, key=exact_key)
def caller(
    name: str, args: tuple[Any, ...], instead: Callable[..., Any] | None = None, as_given: bool = False
) -> Callable[..., Any]:
    """Return a function of the operands that calls the overload, and returns a tensor or a list of tensors.

    Args:
        instead: a replacement for the overload.
        as_given: whether the operands already have a layout that its kernel accepts.
    """
    overload = find_overload(name)
    arguments = overload._schema.arguments[: len(args)]
    if instead is not None:
        overload = instead
    positional = [entry for entry, argument in zip(args, arguments, strict=True) if not argument.kwarg_only]
    named = {a.name: entry for entry, a in zip(args, arguments, strict=True) if a.kwarg_only}
    laid_out = None if as_given else _LAYOUTS.get(name) or (_rows if name.startswith(ATTENTION) else None)
    if not named and all(entry == OPERAND for entry in positional) and laid_out is None:
        return lambda *tensors: _flat(overload(*tensors))
    rest = [entry for entry in (*positional, *named.values()) if entry != OPERAND]
    if OPERAND not in named.values() and not any(map(_has_operand, rest)):
        places = [k for k, entry in enumerate(positional) if entry == OPERAND]
        values = [None if entry == OPERAND else decode(entry) for entry in positional]
        keywords = {key: decode(entry) for key, entry in named.items()}

        def with_constants(*tensors: torch.Tensor) -> Any:
            given = values.copy()
            for place, x in zip(places, tensors, strict=True):
                given[place] = x if laid_out is None else laid_out(x)
            return _flat(overload(*given, **keywords))

        return with_constants

    def fill(entry: Any, rest: Iterator[torch.Tensor]) -> Any:
        if entry == OPERAND:
            return next(rest)
        if isinstance(entry, tuple):
            return [fill(each, rest) for each in entry]
        return decode(entry)

    def call(*tensors: torch.Tensor) -> Any:
        rest = iter(tensors if laid_out is None else map(laid_out, tensors))
        values = [fill(entry, rest) for entry in positional]
        return _flat(overload(*values, **{key: fill(entry, rest) for key, entry in named.items()}))

    return call


new_caller = inspect.unwrap(caller)
"""The same function, which keeps nothing: for constants with open sizes, which have no hash."""


def _with_own_memory(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format) if x.storage_offset() else x.contiguous()


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.dim() == 0 or x.stride(-1) == 1 else x.contiguous()


_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    # their constants describe the memory of a dense operand
    **dict.fromkeys(
        ("aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default"), _with_own_memory
    ),
    # they join elements that lie side by side
    **dict.fromkeys(
        ("aten.view_as_complex.default", "aten.view_as_complex_copy.default", "aten.view.dtype"), _with_own_memory
    ),
    # torch's functions make these operands dense before they call the operator, whose kernel ignores strides
    **dict.fromkeys(
        (
            "aten.native_group_norm.default", "aten.native_group_norm_backward.default", "aten._embedding_bag.default",
            "aten._embedding_bag_forward_only.default", "aten._pdist_forward.default", "aten._pdist_backward.default",
        ),
        torch.Tensor.contiguous,
    ),
}  # fmt: skip
"""By overload: the layout that its kernel assumes for operands. Attention kernels need a dense last axis. torch selects
them by strides, which a recording leaves open.
"""


def _has_operand(entry: Any) -> bool:
    return entry == OPERAND or (isinstance(entry, tuple) and any(map(_has_operand, entry)))


def _flat(result: Any) -> Any:
    """Return a tensor, or the tensors of a nested result, without missing entries.

    Some results, such as that of ifft, are only marked as conjugated or negated; here the marks are applied.
    """
    if isinstance(result, torch.Tensor):
        return result.resolve_conj().resolve_neg() if result.is_conj() or result.is_neg() else result
    out: list[torch.Tensor] = []
    for each in result:
        if isinstance(each, torch.Tensor):
            out.append(_flat(each))
        elif isinstance(each, (list, tuple)):
            out += _flat(each)
        elif each is not None:
            raise ArgumentError(message("torch", "a function that returns arrays", f"one that returns {each!r}"))
    return out


def places(result: Sequence[Any]) -> dict[int, int]:
    """Return, for each existing result, its index among the existing ones."""
    there = [k for k, each in enumerate(result) if each is not None]
    return {k: place for place, k in enumerate(there)}
