"""Functions of torch on Arrays that gtrace computes itself, because their arguments' values are not constants there.

torch reads lengths and numbers of repeats as numbers, which would make each batch another program. Other rooms add
theirs to `OWN_FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.trace.array import Array
from gtrace.core.trace.record import thread

INTEGERS = torch.int32, torch.int64
"""Of lengths and numbers of repeats, as torch takes them."""


def _repeat_interleave(x: Any, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None) -> Any:
    """Return x with each element repeated so often as an array says."""
    if repeats is None or isinstance(repeats, int):
        return NotImplemented
    elements, counts = ops.asarray(x), ops.asarray(repeats)
    if dim is not None and not -elements.ndim <= dim < elements.ndim:
        return NotImplemented
    size = elements.size if dim is None else elements.shape[dim]
    if counts.aval.dtype not in INTEGERS or counts.shape not in ((1,), (size,)):
        return NotImplemented
    total = output_size
    if thread.trace.capture is None or not isinstance(repeats, Array):
        known = repeats if isinstance(repeats, Array) else torch.as_tensor(repeats).cpu()
        numbers = numpy.broadcast_to(numpy.asarray(known), (size,))
        total = int(numbers.sum())
        if (numbers < 0).any() or output_size not in (None, total):
            return NotImplemented
    return NotImplemented if total is None else ops.repeat(elements, counts, dim, total_repeat_length=total)


OWN_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.repeat_interleave: _repeat_interleave,
    torch.Tensor.repeat_interleave: _repeat_interleave,
}
"""By function of torch. They return NotImplemented for what they leave to torch, such as what it refuses."""
