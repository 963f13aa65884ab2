"""Sums and means over axes of a few elements, which torch's kernels compute one element of the result at a time.

The arrays along such an axis are added instead, which takes a tenth of the time or less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from gtrace.ir.aval import Aval

LONGEST = 4
"""Elements of an axis up to which that takes less."""

LEAST = 1 << 13
"""Elements of an array from which on the kernel takes longer than several calls."""


def are_short(a: Aval, axes: Sequence[int]) -> bool:
    """Whether to add what lies along these axes."""
    return (
        bool(axes)
        and a.device.type == "cpu"
        and a.dtype in (torch.float32, torch.float64)
        and a.size >= LEAST
        and all(2 <= a.shape[axis] <= LONGEST for axis in axes)
    )


def short_sum(a: Aval, axes: Sequence[int], keepdims: bool, mean: bool = False) -> Callable[..., torch.Tensor]:
    """Return a function that sums an array over short axes, or takes the mean."""
    ordered = sorted(axes)
    count = math.prod(a.shape[axis] for axis in axes)

    def call(x: torch.Tensor) -> torch.Tensor:
        for axis in reversed(ordered):
            first, second, *others = x.unbind(axis)
            x = first + second
            for other in others:
                x += other
        if mean:
            x /= count
        for axis in ordered if keepdims else ():
            x = x.unsqueeze(axis)
        return x

    return call


def short_sum_to(a: Aval, shape: tuple[int, ...]) -> Callable[..., torch.Tensor] | None:
    """Return a function that sums an array to a shape with 1 in place of short axes; None: torch's kernel is for it."""
    if len(shape) != len(a.shape):
        return None
    axes = [k for k, n in enumerate(shape) if n != a.shape[k]]
    return short_sum(a, axes, keepdims=True) if are_short(a, axes) else None
