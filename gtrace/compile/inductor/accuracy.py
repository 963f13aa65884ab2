"""Accurate decompositions of functions that Inductor's vector code for CPUs computes badly.

Its own lowerings of these functions lose digits near zero, or fail at infinities. The decompositions use functions that
it computes well, and agree with torch. They apply to floating-point tensors on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch


def decompositions(own: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return Inductor's decompositions, overridden by ours."""
    return {**own, **{op: _on_cpu(function, own.get(op)) for op, function in _ACCURATE.items()}}


def _on_cpu(function: Callable[..., Any], otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def decomposition(*args: torch.Tensor) -> Any:
        if all(x.device.type == "cpu" and x.is_floating_point() for x in args):
            return function(*args)
        return otherwise(*args) if otherwise is not None else NotImplemented

    return decomposition


def _expm1(x: torch.Tensor) -> torch.Tensor:
    # Inductor: exp(x) - 1, which cancels for small x
    return torch.tanh(x * 0.5) * (torch.exp(x) + 1)


def _atanh(x: torch.Tensor) -> torch.Tensor:
    # Inductor: a logarithm, whose argument rounds to 1 for small x
    return (torch.log1p(x) - torch.log1p(-x)) * 0.5


def _acosh(x: torch.Tensor) -> torch.Tensor:
    # Inductor: squares x, which overflows for large x. There the result is log(2 x) to the last digit
    near = torch.log1p((x - 1) + torch.sqrt(x - 1) * torch.sqrt(x + 1))
    return torch.where(x > 2.0**28, torch.log(x) + math.log(2.0), near)


def _erf(x: torch.Tensor) -> Any:
    # Inductor: a polynomial in float32 with an absolute error of 1e-7, which is large beside small results. Taylor's
    # series is right to the last digit up to 1/2
    if x.dtype is torch.float64:
        return NotImplemented
    square = x * x
    series = torch.full_like(x, 0.0)
    for k in range(6, -1, -1):
        series = series * square + (-1) ** k * 2 / (math.sqrt(math.pi) * math.factorial(k) * (2 * k + 1))
    return torch.where(torch.abs(x) < 0.5, x * series, 1 - torch.special.erfc(x))


def _remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # Inductor: x - floor(x / y) * y, which is NaN where y is infinite
    rest = torch.fmod(x, y)
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def _floor_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # Inductor: floor(x / y), which is 0 where y is infinite and the signs differ, and wrong where x / y rounds up to
    # an integer. This is how torch does it (c10::div_floor_floating).
    ratio = x / y
    rest = torch.fmod(x, y)
    quotient = (x - rest) / y
    quotient = torch.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    floor = torch.floor(quotient)
    floor = torch.where(quotient - floor > 0.5, floor + 1, floor)
    floor = torch.where(quotient == 0, torch.copysign(torch.zeros_like(floor), ratio), floor)
    # where the quotient overflows, the vector code's fmod is NaN
    return torch.where((y == 0) | (torch.isinf(ratio) & ~torch.isinf(x)), ratio, floor)


_ACCURATE: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.expm1.default: _expm1,
    torch.ops.aten.atanh.default: _atanh,
    torch.ops.aten.acosh.default: _acosh,
    torch.ops.aten.erf.default: _erf,
    torch.ops.aten.remainder.Tensor: _remainder,
    torch.ops.aten.floor_divide.default: _floor_divide,
}
