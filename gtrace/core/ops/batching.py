"""Shared batching rules: they add a batch axis in front of all other axes.

A rule is called as ``rule(op, size, batched, operands, **params)``. Operands that `batched` flags have the batch, of
`size` elements, as axis 0, and so has the result. At least one operand is batched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core.ir.graph import Scalar
from gtrace.core.ir.op import REGISTRY, Op
from gtrace.core.ops.declare import Array, bind

Rule = Callable[..., Array]


def _reshaped(x: Array, shape: tuple[int, ...]) -> Array:
    return x if shape == x.aval.shape else bind(REGISTRY["reshape"], (x,), (shape,))


def places(size: int, device: torch.device) -> Array:
    """Return 0, 1, ... as int64, as part of the program."""
    return bind(REGISTRY["arange"], (), (0, size, 1, "i64", str(device)))


def spread(x: Array, size: int) -> Array:
    """Return `x` repeated along a new axis 0."""
    return bind(REGISTRY["broadcast_to"], (x,), ((size, *x.aval.shape),))


def align(size: int, batched: Sequence[bool], operands: Sequence[Any]) -> list[Any]:
    """Return the operands with the batch added to unbatched arrays; scalars stay."""
    return [x if flag or x.__class__ is Scalar else spread(x, size) for x, flag in zip(operands, batched, strict=True)]


def elementwise(op: Op, size: int, batched: Sequence[bool], operands: Sequence[Any], **params: Any) -> Array:
    """Batch an operation whose operands broadcast against each other from the right."""
    ndim = max(len(x.aval.shape) - flag for x, flag in zip(operands, batched, strict=True))
    arranged = []
    for x, flag in zip(operands, batched, strict=True):
        if flag:
            shape = x.aval.shape
            x = _reshaped(x, (size, *(1,) * (ndim - len(shape) + 1), *shape[1:]))
        arranged.append(x)
    return bind(op, arranged, tuple(params.values()))


def unchanged(op: Op, size: int, batched: Sequence[bool], operands: Sequence[Any], **params: Any) -> Array:
    """Batch an operation that accepts any leading axes."""
    return bind(op, align(size, batched, operands), tuple(params.values()))


def shifted(*names: str) -> Rule:
    """Return the rule of an operation whose attributes `names` are axes, counted from the front."""

    def rule(op: Op, size: int, batched: Sequence[bool], operands: Sequence[Any], **params: Any) -> Array:
        for name in names:
            axes = params[name]
            params[name] = tuple(a + 1 for a in axes) if isinstance(axes, tuple) else axes + 1
        return bind(op, align(size, batched, operands), tuple(params.values()))

    return rule


def prefixed(**prefixes: Callable[[int], Any]) -> Rule:
    """Return the rule of an operation whose attributes have one entry per axis; the batch axis gets an entry too.

    Args:
        prefixes: for each such attribute, a function from the size of the batch to its entry.
    """

    def rule(op: Op, size: int, batched: Sequence[bool], operands: Sequence[Any], **params: Any) -> Array:
        for name, entry in prefixes.items():
            params[name] = (entry(size), *params[name])
        return bind(op, align(size, batched, operands), tuple(params.values()))

    return rule


def whole(size: int) -> tuple[int, int, int]:
    """Return the bounds of a slice that takes the whole batch."""
    return 0, size, 1
