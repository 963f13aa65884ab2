"""Images with their channels last in memory, where torch's convolutions on a CPU are faster for them.

torch computes such a convolution by oneDNN, which has the channels last, or in blocks, inside. Of images with the
channels first it copies operands and results; for large ones that takes longer than the convolution. What follows,
element by element or by pooling, keeps the layout, so that a network changes it once. The choice depends on the sizes
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LEAST_ELEMENTS = 1 << 14
"""Of the images: a call for fewer takes a few microseconds, which a copy would only add to."""

IMAGES = {
    "aten.convolution.default": (1, (0,)),
    "aten.convolution_backward.default": (2, (0, 1)),
}
"""By overload: the place of the weights among the operands, and those of images."""


def channels_last(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call of an overload that takes its images with the channels last."""
    if name not in IMAGES:
        return call
    weights, places = IMAGES[name]

    def laid_out(*tensors: torch.Tensor) -> Any:
        if _is_faster(tensors[places[-1]], tensors[weights]):
            given = list(tensors)
            for k in places:
                given[k] = tensors[k].contiguous(memory_format=torch.channels_last)
            return call(*given)
        return call(*tensors)

    return laid_out


def _is_faster(images: torch.Tensor, weights: torch.Tensor) -> bool:
    if images.dim() != 4 or images.dtype is not torch.float32 or images.device.type != "cpu":
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    count = images.numel()
    # weights would be copied as well; sizes that are open are taken for large ones, without an assumption on them
    return not isinstance(count, int) or count >= max(LEAST_ELEMENTS, weights.numel())
