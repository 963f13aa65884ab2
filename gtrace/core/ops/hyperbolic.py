"""torch's hyperbolic functions without premature overflow.

torch's vector code overflows with exp, slightly before sinh and cosh do (pytorch/pytorch#183763).
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def finite(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return torch's sinh or cosh without premature overflow."""

    def call(x: torch.Tensor) -> torch.Tensor:
        if not x.dtype.is_floating_point:
            return function(x)
        if x.dtype is not torch.float64:
            return function(x.to(torch.float64)).to(x.dtype)
        half = torch.exp(x.abs() * 0.5)
        far = half * 0.5 * half  # exp(-700) does not change the sum
        return torch.where(x.abs() < 700.0, function(x), torch.copysign(far, x) if function is torch.sinh else far)

    return call
