"""Remainders of floats on a CPU, exact for all numbers.

torch's vectors divide first, and give NaN where the quotient is beyond the dtype: fmod(1e38, 0.1) is NaN among 16
numbers of float32, and right among 15. Inductor's vectors do the same, so what is compiled computes with float64, or by
multiples of the divisor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gtrace.core.base.rounding import rounded

FAR, FURTHEST = 2.0**1000, 2.0**500
"""Multiples of a divisor below 1: all quotients of float64, by one and then by the next, are finite."""


def _exact(name: str) -> Callable[..., Any]:
    function: Callable[..., torch.Tensor] = getattr(torch, name)

    # torch rounds a number beside tensors to their dtype
    @functools.wraps(function)
    def call(x: Any, y: Any) -> torch.Tensor:
        dtype = torch.result_type(x, y)
        if not dtype.is_floating_point or any(z.device.type != "cpu" for z in (x, y) if isinstance(z, torch.Tensor)):
            return function(x, y)
        # rounded here: a compiler that sees float32 become float64 takes the number with all its digits
        x, y = [z if isinstance(z, torch.Tensor) else torch.full((), rounded(z, dtype), dtype=dtype) for z in (x, y)]
        if x.__class__ is torch.Tensor:  # it has values; others are traced for a compiler
            found = function(x, y)
            if not found.isnan().any():
                return found
        if dtype is not torch.float64:
            return function(x.to(torch.float64), y.to(torch.float64)).to(dtype)
        # the remainder by a multiple has the same remainder
        far = torch.where(y.abs() < 1, y * FAR, y)
        furthest = torch.where(far.abs() < 1, far * FURTHEST, far)
        return function(torch.fmod(torch.fmod(x, furthest), far), y)

    return call


fmod, remainder = _exact("fmod"), _exact("remainder")

OVERLOADS = {
    "aten.fmod.Tensor": fmod, "aten.fmod.Scalar": fmod,
    "aten.remainder.Tensor": remainder, "aten.remainder.Scalar": remainder, "aten.remainder.Scalar_Tensor": remainder,
}  # fmt: skip
"""What is called in place of torch's overloads."""
