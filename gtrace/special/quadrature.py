"""A rule for integrals over a half line, on tensors; sums with many terms an element; and a constant."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core.ops.declare import Aval

EULER = 0.5772156649015329
"""The constant of Euler and Mascheroni."""

_NODES = 120
_FIRST, _LAST = -4.0, 5.0


def half_line(scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return nodes and weights along a new last axis, for integrands over (0, infinity) that decay within `scale`.

    It is a double exponential rule (Takahasi and Mori, 1974): equidistant u become s = exp(u - exp(-u)). These are
    dense at 0, and wide apart where an exponential has decayed. For smooth integrands the error is about 1e-12.
    """
    step = (_LAST - _FIRST) / (_NODES - 1)
    u = torch.arange(_NODES, dtype=torch.float64, device=scale.device) * step + _FIRST
    s = torch.exp(u - torch.exp(-u))
    width = scale.unsqueeze(-1)
    return s * width, s * (1.0 + torch.exp(-u)) * step * width


BLOCK = 1 << 13
"""How many elements the interpreter computes at a time."""


def in_blocks(function: Callable[..., torch.Tensor]) -> Callable[..., Callable[..., torch.Tensor] | None]:
    """Return the `Rules.direct` of an elementwise operation that computes many terms for each element.

    All terms at once may take a hundred times the memory of the result. So large operands are computed in blocks. The
    compiler needs no blocks, because it turns the sum into a loop.
    """

    def direct(avals: tuple[Aval, ...], **params: Any) -> Callable[..., torch.Tensor] | None:
        shape = numpy.broadcast_shapes(*[a.shape for a in avals])
        size = math.prod(shape)
        if size <= BLOCK:
            return None

        def call(*operands: torch.Tensor) -> torch.Tensor:
            flat = [x if x.ndim == 0 else x.expand(shape).reshape(size) for x in operands]
            blocks = [
                function(*[x if x.ndim == 0 else x[start : start + BLOCK] for x in flat], **params)
                for start in range(0, size, BLOCK)
            ]
            return torch.cat(blocks).reshape(shape)

        return call

    return direct
