"""``jax.interpreters.batching``: rules for batches of primitives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gtrace.extend import ops
from gtrace.jax.adapt import internal
from gtrace.jax.primitives import AxisData as AxisData
from gtrace.jax.primitives import Primitive
from gtrace.jax.primitives import axis_primitive_batchers as axis_primitive_batchers
from gtrace.jax.primitives import fancy_primitive_batchers as fancy_primitive_batchers
from gtrace.jax.primitives import primitive_batchers as primitive_batchers

not_mapped = None
"""The axis of an operand without a batch."""


def moveaxis(x: Any, src: int, dst: int) -> Any:
    """Move the axis of a batch."""
    return x if src == dst else ops.moveaxis(x, src, dst)


def broadcast(x: Any, sz: int, axis: int = 0) -> Any:
    """Repeat an array along a new axis."""
    return moveaxis(ops.broadcast_to(x, (sz, *ops.asarray(x).shape)), 0, axis)


def bdim_at_front(x: Any, bdim: int | None, size: int) -> Any:
    """Return an operand with the batch on axis 0, repeated if it has none."""
    return broadcast(x, size) if bdim is None else moveaxis(x, bdim, 0)


def defvectorized(primitive: Primitive) -> None:
    """State that a primitive of one operand computes each element, so that a batch needs no rule."""

    def batch(args: Any, axes: Any, **params: Any) -> Any:
        return primitive.bind(*args, **params), axes[0]

    primitive_batchers[primitive] = batch


def defbroadcasting(primitive: Primitive) -> None:
    """State that a primitive computes each element of operands that have one shape, up to axes of size 1."""

    def batch(args: Any, axes: Any, **params: Any) -> Any:
        most = max([ops.asarray(x).ndim - (axis is not None) for x, axis in zip(args, axes, strict=True)])
        given = []
        for x, axis in zip(args, axes, strict=True):
            if axis is not None:
                x = moveaxis(x, axis, 0)
                x = ops.reshape(x, (x.shape[0], *[1] * (most + 1 - x.ndim), *x.shape[1:]))
            given.append(x)
        return primitive.bind(*given, **params), 0

    primitive_batchers[primitive] = batch


def register_vmappable(
    data_type: type, spec_type: type, axis_size_type: type, to_elt: Callable[..., Any], from_elt: Callable[..., Any],
    make_iota: Callable[..., Any] | None,
) -> None:  # fmt: skip
    """Do nothing: `vmap` takes apart what is a pytree."""


__getattr__ = internal("jax.interpreters.batching")
