"""Upsampling of tensors with open sizes: torch's composed functions read sizes in C++, where they must be numbers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gtrace.core.base import torch_internals as internals
from gtrace.interop.aten.open_sizes import is_open

_NAMES = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip


@contextlib.contextmanager
def upsampling_by_sizes() -> Iterator[None]:
    """Let torch's functions call the operators that take sizes if those are open. Traces run one at a time."""
    functions = internals.LAYER_FUNCTIONS.get()
    own = {name: found for name in _NAMES if (found := getattr(functions, name, None)) is not None}
    for name, original in own.items():
        setattr(functions, name, _by_sizes(name, original))
    try:
        yield
    finally:
        for name, original in own.items():
            setattr(functions, name, original)


def _by_sizes(name: str, original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor, sizes: Sequence[Any] | None, *rest: Any) -> torch.Tensor:
        if not any(map(is_open, (*x.shape, *(sizes or ())))):
            return original(x, sizes, *rest)
        *aligned, scales = rest  # whether corners are aligned, if the operator takes that
        if sizes is None:
            sizes = [math.floor(n * scale) for n, scale in zip(x.shape[2:], scales, strict=True)]
        found: torch.Tensor = getattr(torch.ops.aten, name).default(
            x, sizes, *aligned, *(scales or [None] * (x.dim() - 2))
        )
        return found

    return call
