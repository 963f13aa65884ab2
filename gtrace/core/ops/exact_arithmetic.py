"""torch's sums, powers and complex functions, where its own are NaN for numbers that have a result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_Function = Callable[..., torch.Tensor]


def _dtype(x: Any, y: Any) -> torch.dtype:
    kind: torch.dtype = (x if isinstance(x, torch.Tensor) else y).dtype
    return kind


def by_parts(function: _Function) -> _Function:
    """Return a sum or a difference that adds real and imaginary parts of complex numbers apart.

    torch multiplies one operand by 1 + 0j, and so makes NaN of a part beside an infinite one.
    """

    def call(x: Any, y: Any, **out: torch.Tensor) -> torch.Tensor:
        kind = _dtype(x, y)
        if not kind.is_complex:
            return function(x, y, **out)
        device = (x if isinstance(x, torch.Tensor) else y).device
        pairs = [torch.view_as_real(torch.as_tensor(z, dtype=kind, device=device).resolve_conj()) for z in (x, y)]
        return torch.view_as_complex(function(*pairs))

    return call


def negative(x: torch.Tensor) -> torch.Tensor:
    """Return -x; torch's loop over long complex tensors loses the signs of zero parts."""
    return torch.view_as_complex(-torch.view_as_real(x.resolve_conj())) if x.is_complex() else torch.neg(x)


def unless_complex(function: _Function) -> Callable[..., _Function | None]:
    """Return the `Rules.direct` of an operation that is torch's own for real numbers."""
    return lambda avals: None if any(a.complex for a in avals) else function


def power(x: Any, y: Any) -> torch.Tensor:
    """Return x ** y; 1 for y = 0. torch's complex power is NaN for two zeros."""
    out = torch.pow(x, y)
    if not out.is_complex():
        return out
    return torch.where(torch.as_tensor(y == 0, device=out.device), 1.0, out)


def complex_sign(x: torch.Tensor) -> torch.Tensor:
    """Return x / abs(x), and 0 for 0. Infinities have the direction of the infinite part; two such parts give NaN."""
    parts = torch.view_as_real(x.resolve_conj())
    infinite = parts.isinf()
    signs = torch.where(infinite, torch.copysign(torch.ones_like(parts), parts), 0.0)
    parts = torch.where(infinite.any(-1, keepdim=True), signs, parts)
    # scaled, because the modulus of two large parts is infinite
    size = parts.abs().amax(-1, keepdim=True)
    parts = parts / torch.where(size == 0.0, 1.0, size)
    length = parts.square().sum(-1, keepdim=True).sqrt()
    out = torch.where(infinite.all(-1, keepdim=True), torch.nan, parts / torch.where(length == 0.0, 1.0, length))
    return torch.view_as_complex(torch.where(length == 0.0, 0.0, out))  # +0, whatever the signs of x


def expm1(x: torch.Tensor) -> torch.Tensor:
    """Return e ** x - 1. Complex infinities, NaN and real numbers give what annex G of the C standard states."""
    out = torch.expm1(x)
    if not x.is_complex():
        return out
    re, im = x.real, x.imag
    far = im.isinf() | im.isnan()
    out = torch.where(im == 0.0, torch.complex(torch.expm1(re), im), out)
    out = torch.where(far & (re == -torch.inf), -1.0, out)
    return torch.where(far & (re == torch.inf), complex(torch.inf, torch.nan), out)


def log1p(x: torch.Tensor) -> torch.Tensor:
    """Return log(1 + x); infinite where a part of x is, as the modulus is, also beside a NaN."""
    out = torch.log1p(x)
    if not x.is_complex():
        return out
    angle = torch.atan2(x.imag, x.real + 1.0)
    infinite = x.real.isinf() | x.imag.isinf()
    return torch.where(infinite, torch.complex(torch.full_like(angle, torch.inf), angle), out)


def arccos(x: torch.Tensor) -> torch.Tensor:
    """Return the arc cosine; its imaginary part has the other sign than that of x, also where it is zero."""
    out = torch.acos(x)
    return torch.complex(out.real, torch.copysign(out.imag, -x.imag)) if x.is_complex() else out
