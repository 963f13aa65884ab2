"""Bessel functions of orders 0 and 1.

torch's functions of the first and second kind have only 7 digits beyond x = 5. Here, up to 25 they are integrals over a
period, which the trapezoidal rule computes to all digits. Beyond that they are Hankel's asymptotic expansions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gtrace.core import ops
from gtrace.core.ops.elementwise import neg
from gtrace.core.ops.operands import unary, widened
from gtrace.core.ops.samples import both, scipy_special, unary_floats
from gtrace.core.trace.array import Array
from gtrace.special.quadrature import EULER, in_blocks

__all__ = [
    "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "i0", "i0e", "i1", "i1e", "modified_bessel_k0",
    "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
]  # fmt: skip


def _per_x(y: Array, x: Array) -> Array:
    """Return y / x for a function y that goes like x / 2 at 0."""
    zero = ops.equal(x, 0.0)
    return ops.where(zero, 0.5, y / ops.where(zero, 1.0, x))


_EVERYWHERE = both(unary_floats(), unary_floats(3.0, 9.0))
_POSITIVE = both(unary_floats(0.5, 2.0), unary_floats(3.0, 6.0))

# -- modified, of the first kind


def _odd(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return torch's function with the sign of a zero, which it loses."""
    return widened(lambda x: torch.copysign(function(x), x))


i0 = unary(
    "i0", widened(torch.special.i0), "Return the modified Bessel function of the first kind of order 0.",
    "round(float(gt.special.i0(1.0)), 4) => 1.2661", partials=(lambda x, out: i1(x),), reference=scipy_special("i0"),
)  # fmt: skip
i1 = unary(
    "i1", _odd(torch.special.i1), "Return the modified Bessel function of the first kind of order 1.",
    "round(float(gt.special.i1(1.0)), 4) => 0.5652", partials=(lambda x, out: ops.subtract(i0(x), _per_x(out, x)),),
    reference=scipy_special("i1"),
)  # fmt: skip
i0e = unary(
    "i0e", widened(torch.special.i0e), "Return exp(-|x|) * i0(x).", "round(float(gt.special.i0e(1.0)), 4) => 0.4658",
    partials=(lambda x, out: i1e(x) - ops.sign(x) * out,), reference=scipy_special("i0e"),
    jax="bessel_i0e",
)  # fmt: skip
i1e = unary(
    "i1e", _odd(torch.special.i1e), "Return exp(-|x|) * i1(x).", "round(float(gt.special.i1e(1.0)), 4) => 0.2079",
    partials=(lambda x, out: i0e(x) - ops.sign(x) * out - _per_x(out, x),),
    reference=scipy_special("i1e"), jax="bessel_i1e",
)  # fmt: skip

# -- of the first and the second kind

_NEAR, _NODES, _TERMS = 25.0, 32, 24


def _periodic(x: torch.Tensor, order: int, second: bool) -> torch.Tensor:
    """Return the function for |x| up to 25: means over a quarter of a period, at 32 places."""
    place = (torch.arange(_NODES, dtype=torch.float64, device=x.device) + 0.5) * (0.5 * math.pi / _NODES)
    height = torch.sin(place)
    phase = x.unsqueeze(-1) * height
    waves = torch.cos(phase) if order == 0 else torch.sin(phase) * height
    first = waves.mean(-1)
    if not second:
        return first
    # Neumann's expansion in the functions of even order, which are such means too
    k = torch.arange(1, _NODES, dtype=torch.float64, device=x.device)
    signs = 1.0 - 2.0 * torch.remainder(k, 2.0)
    weights = (torch.cos(2.0 * place.unsqueeze(-1) * k) * signs / k).sum(-1)
    out = (torch.log(0.5 * x) + EULER) * first - 2.0 * (waves * weights).mean(-1)
    if order == 1:
        out = out - torch.cos(phase).mean(-1) / x
    return out * (2.0 / math.pi)


def _hankel(x: torch.Tensor, order: int, second: bool) -> torch.Tensor:
    """Return the function for x beyond 25."""
    inverse = 1.0 / x
    factor, parts = 1.0, [torch.zeros_like(x), torch.zeros_like(x)]
    terms = []
    for k in range(_TERMS + 1):
        terms.append(factor * (-1.0) ** (k // 2))
        factor *= (4.0 * order * order - (2 * k + 1) ** 2) / (8.0 * (k + 1))
    for k in reversed(range(_TERMS + 1)):
        parts[k % 2] = parts[k % 2] * inverse * inverse + terms[k]
    even, odd = parts[0], parts[1] * inverse
    total, difference = torch.sin(x) + torch.cos(x), torch.sin(x) - torch.cos(x)
    cosine, sine = (total, difference) if order == 0 else (difference, -total)
    return (even * sine + odd * cosine if second else even * cosine - odd * sine) * torch.sqrt(inverse / math.pi)


def _bessel(order: int, second: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        size = x if second else x.abs()
        near = _periodic(size.clamp(max=_NEAR), order, second)
        out = torch.where(size > _NEAR, _hankel(size.clamp(min=_NEAR), order, second), near)
        out = torch.where(size == math.inf, 0.0, out)
        if second:
            return torch.where(x == 0.0, -math.inf, torch.where(x < 0.0, math.nan, out))
        return torch.where(torch.signbit(x), -out, out) if order == 1 else out

    return widened(function)


_J0, _J1, _Y0, _Y1 = (_bessel(order, second) for second in (False, True) for order in (0, 1))
bessel_j0 = unary(
    "bessel_j0", _J0, "Return the Bessel function of the first kind of order 0.",
    "round(float(gt.special.bessel_j0(1.0)), 4) => 0.7652",
    direct=in_blocks(_J0),
    partials=(lambda x, out: neg(bessel_j1(x)),), samples=_EVERYWHERE, reference=scipy_special("j0"),
)  # fmt: skip
bessel_j1 = unary(
    "bessel_j1", _J1, "Return the Bessel function of the first kind of order 1.",
    "round(float(gt.special.bessel_j1(1.0)), 4) => 0.4401",
    direct=in_blocks(_J1),
    partials=(lambda x, out: ops.subtract(bessel_j0(x), _per_x(out, x)),), samples=_EVERYWHERE,
    reference=scipy_special("j1"),
)  # fmt: skip
bessel_y0 = unary(
    "bessel_y0", _Y0, "Return the Bessel function of the second kind of order 0, x > 0.",
    "round(float(gt.special.bessel_y0(1.0)), 4) => 0.0883",
    direct=in_blocks(_Y0),
    partials=(lambda x, out: neg(bessel_y1(x)),), samples=unary_floats(0.5, 2.0), reference=scipy_special("y0"),
)  # fmt: skip
bessel_y1 = unary(
    "bessel_y1", _Y1, "Return the Bessel function of the second kind of order 1, x > 0.",
    "round(float(gt.special.bessel_y1(1.0)), 4) => -0.7812",
    direct=in_blocks(_Y1),
    partials=(lambda x, out: bessel_y0(x) - ops.divide(out, x),), samples=_POSITIVE,
    reference=scipy_special("y1"),
)  # fmt: skip

# -- modified, of the second kind

modified_bessel_k0 = unary(
    "modified_bessel_k0", widened(torch.special.modified_bessel_k0),
    "Return the modified Bessel function of the second kind of order 0, for x > 0.",
    "round(float(gt.special.modified_bessel_k0(1.0)), 4) => 0.421",
    partials=(lambda x, out: neg(modified_bessel_k1(x)),), samples=_POSITIVE, reference=scipy_special("k0"),
)  # fmt: skip
modified_bessel_k1 = unary(
    "modified_bessel_k1", widened(torch.special.modified_bessel_k1),
    "Return the modified Bessel function of the second kind of order 1, for x > 0.",
    "round(float(gt.special.modified_bessel_k1(1.0)), 4) => 0.6019",
    partials=(lambda x, out: neg(modified_bessel_k0(x) + ops.divide(out, x)),), samples=_POSITIVE,
    reference=scipy_special("k1"),
)  # fmt: skip
scaled_modified_bessel_k0 = unary(
    "scaled_modified_bessel_k0", widened(torch.special.scaled_modified_bessel_k0),
    "Return exp(x) * modified_bessel_k0(x).", "round(float(gt.special.scaled_modified_bessel_k0(1.0)), 4) => 1.1445",
    partials=(lambda x, out: ops.subtract(out, scaled_modified_bessel_k1(x)),), samples=_POSITIVE,
    reference=scipy_special("k0e"),
)  # fmt: skip
scaled_modified_bessel_k1 = unary(
    "scaled_modified_bessel_k1", widened(torch.special.scaled_modified_bessel_k1),
    "Return exp(x) * modified_bessel_k1(x).", "round(float(gt.special.scaled_modified_bessel_k1(1.0)), 4) => 1.6362",
    partials=(lambda x, out: out - ops.divide(out, x) - scaled_modified_bessel_k0(x),),
    samples=_POSITIVE, reference=scipy_special("k1e"),
)  # fmt: skip
