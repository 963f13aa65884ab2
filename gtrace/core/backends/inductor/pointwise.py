"""Integer operations that Inductor lowers as one pointwise kernel.

Inductor recomputes a value for each of its uses, a few levels deep. A cipher uses each value two or three times, level
after level: as aten calls, a single cipher takes seconds to compile. So such a chain is one custom torch operation,
with one pointwise lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gtrace.core.base import torch_internals as internals

POINTWISE: dict[Any, Callable[..., Any]] = {}
"""For each torch operation on integers: its function of one element of each tensor, and of its int attributes."""


class _Element:
    """One element of an integer tensor in Inductor's IR. Python's operators on it record Inductor's."""

    def __init__(self, value: Any, dtype: torch.dtype) -> None:
        self.value = value
        self.dtype = dtype

    def to(self, dtype: torch.dtype) -> _Element:
        """Return it in another dtype: of fewer bits, the low ones."""
        return _Element(internals.OPS.get().to_dtype(self.value, dtype, src_dtype=self.dtype), dtype)


def _operator(name: str) -> Callable[[_Element, Any], _Element]:
    def apply(self: _Element, other: Any) -> _Element:
        ops = internals.OPS.get()
        y = other.value if isinstance(other, _Element) else ops.constant(other, self.dtype)
        return _Element(getattr(ops, name)(self.value, y), self.dtype)

    return apply


for _method, _name in {
    "add": "add", "sub": "sub", "mul": "mul", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}.items():  # fmt: skip
    setattr(_Element, f"__{_method}__", _operator(_name))


def register_pointwise() -> None:
    """Register lowerings for the operations in `POINTWISE` that Inductor does not know yet."""
    if not internals.CIPHERS.available():
        return
    lowerings, register = internals.LOWERINGS.get(), internals.REGISTER_LOWERING.get()
    for op, function in POINTWISE.items():
        if op not in lowerings:
            lowering = _lowering(internals.MAKE_POINTWISE.get(), function)
            register(op, broadcast=True, type_promotion_kind=None)(lowering)


def _lowering(make_pointwise: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def lowered(*args: Any) -> Any:
        tensors = [x for x in args if not isinstance(x, int)]
        attributes = args[len(tensors) :]
        dtype = tensors[0].get_dtype()

        def inner(*values: Any) -> Any:
            return function(*[_Element(v, dtype) for v in values], *attributes).value

        return make_pointwise(inner)(*tensors)

    return lowered
