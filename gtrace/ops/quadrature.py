"""A rule for integrals over a half line, on tensors, and a constant."""

from __future__ import annotations

import torch

EULER = 0.5772156649015329
"""The constant of Euler and Mascheroni."""

_NODES = 120
_FIRST, _LAST = -4.0, 5.0


def half_line(scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return nodes and weights along a new last axis, for integrands over (0, infinity) that decay within `scale`.

    It is a double exponential rule (Takahasi and Mori, 1974): equidistant u become s = exp(u - exp(-u)), which are
    dense at 0, and wide apart where an exponential has decayed. For smooth integrands the error is about 1e-12.
    """
    step = (_LAST - _FIRST) / (_NODES - 1)
    u = torch.arange(_NODES, dtype=torch.float64, device=scale.device) * step + _FIRST
    s = torch.exp(u - torch.exp(-u))
    width = scale.unsqueeze(-1)
    return s * width, s * (1.0 + torch.exp(-u)) * step * width
