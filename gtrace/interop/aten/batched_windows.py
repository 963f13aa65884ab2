"""Convolution and pooling for batches of operands, without tracing; see `handwritten_layers`.

Examples become additional images if they share the weights, and additional groups of channels otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gtrace.core import ops
from gtrace.core.trace.array import Array
from gtrace.interop.aten.handwritten_layers import (
    AVG_POOL,
    AVG_POOL_BACKWARD,
    CONVOLUTION,
    CONVOLUTION_BACKWARD,
    MAX_POOL,
    MAX_POOL_BACKWARD,
)
from gtrace.interop.aten.overloads import OPERAND
from gtrace.interop.aten.translate import call_aten


def batch_size(batched: Sequence[bool], operands: Sequence[Array]) -> int:
    """Return the number of examples."""
    return next(x.shape[0] for x, flag in zip(operands, batched, strict=True) if flag)


def whole(x: Array, flag: bool, size: int) -> Array:
    """Return an operand with a batch axis."""
    return x if flag else ops.broadcast_to(x, (size, *x.shape))


def as_images(x: Array) -> Array:
    """(batch, images, channels, *spatial) -> (batch * images, channels, *spatial)"""
    return ops.reshape(x, (-1, *x.shape[2:]))


def as_channels(x: Array) -> Array:
    """(batch, images, channels, *spatial) -> (images, batch * channels, *spatial)"""
    return ops.reshape(ops.swapaxes(x, 0, 1), (x.shape[1], -1, *x.shape[3:]))


def of_channels(x: Array, size: int) -> Array:
    """(images, batch * channels, *spatial) -> (batch, images, channels, *spatial)"""
    return ops.swapaxes(ops.reshape(x, (x.shape[0], size, -1, *x.shape[2:])), 0, 1)


def _convolution(overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]) -> Array:
    x, weight, *biases = operands
    size, transposed, groups = batch_size(batched, operands), args[6], args[8]
    own = any(batched[2:])  # each example has its own bias
    if not batched[1] and batched[0]:
        images = [as_images(x), weight, *([] if own else biases)]
        found = call_aten(overload, (*args[:2], None if own else args[2], *args[3:]), images)
        out = ops.reshape(found, (size, -1, *found.shape[1:]))
        rest = biases if own else []
    else:
        constants = *args[:2], None, *args[3:8]
        if groups == 1 and not transposed and not batched[0]:
            found = call_aten(overload, (*constants, 1), [x, as_images(whole(weight, batched[1], size))])
        else:
            channels = as_channels(whole(x, batched[0], size))
            weights = as_images(whole(weight, batched[1], size))
            found = call_aten(overload, (*constants, size * groups), [channels, weights])
        out, rest = of_channels(found, size), biases
    for bias in rest:
        shape = (size if own else 1, 1, bias.shape[-1], *(1 for _ in out.shape[3:]))
        out = out + ops.reshape(bias, shape)
    return out


def _convolution_backward(
    overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]
) -> list[tuple[Array, bool]]:
    size, sizes, groups, wanted = batch_size(batched, operands), args[4:9], args[9], args[10]
    ct, x, weight = operands
    ct, x = (whole(one, flag, size) for one, flag in zip((ct, x), batched, strict=False))

    def call(operands: Sequence[Array], groups: int, wanted: tuple[bool, bool, bool]) -> list[Array]:
        found: list[Array] = call_aten(overload, (OPERAND, OPERAND, OPERAND, None, *sizes, groups, wanted), operands)
        return found

    results: dict[int, Array] = {}
    own = wanted[0] and batched[2], wanted[1], False
    if any(own):
        shape = weight.shape[batched[2] :]
        # the gradient of the weights depends only on their shape
        like = (size * shape[0], *shape[1:])
        weights = ops.reshape(weight, like) if own[0] else ops.zeros(like, x.aval.dtype, device=x.aval.device)
        found = iter(call([as_channels(ct), as_channels(x), weights], size * groups, own))
        if own[0]:
            results[0] = of_channels(next(found), size)
        if own[1]:
            results[1] = ops.reshape(next(found), (size, *shape))
    if wanted[0] and not batched[2]:
        results[0] = ops.reshape(call([as_images(ct), as_images(x), weight], groups, (True, False, False))[0], x.shape)
    if wanted[2]:
        results[2] = ops.sum(ct, axis=(1, *range(3, ct.ndim)))
    return [(results[k], True) for k in range(3) if wanted[k]]


def _pooling(overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]) -> Any:
    size = batch_size(batched, operands)
    operands = [whole(x, flag, size) for x, flag in zip(operands, batched, strict=True)]
    several = operands[0].ndim == 5  # otherwise each example is one image

    def split(x: Array) -> Array:
        return ops.reshape(x, (size, -1, *x.shape[1:])) if several else x

    found = call_aten(overload, args, [as_images(x) for x in operands] if several else operands)
    return [(split(x), True) for x in found] if isinstance(found, list) else split(found)


BATCHES: dict[str, Callable[..., Any]] = {
    CONVOLUTION: _convolution,
    CONVOLUTION_BACKWARD: _convolution_backward,
    MAX_POOL: _pooling,
    MAX_POOL_BACKWARD: _pooling,
    AVG_POOL: _pooling,
    AVG_POOL_BACKWARD: _pooling,
}
