"""Elementwise functions for random samples: inverse error function, next float, fused multiply-add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from gtrace.core.ir.cpp import Cpp
from gtrace.core.ops.checks import floats_only, real_only
from gtrace.core.ops.declare import Array, BadSample, Sample, bind, define
from gtrace.core.ops.elementwise import exp, multiply, square
from gtrace.core.ops.operands import binary, promote, unary
from gtrace.core.ops.samples import scipy_special, unary_floats, uniform

# -- inverse error function

# The polynomials of M. Giles, "Approximating the erfinv function" (GPU Computing Gems, 2010), highest power first, as
# in XLA. The formula of torch.erfinv differs from them by up to 60 units in the last place of float32.
_CENTER32 = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL32 = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
_CENTER64 = (
    -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18, 1.115787767802518096e-17,
    -1.333171662854620906e-16, 2.0972767875968561637e-17, 6.6376381343583238325e-15, -4.0545662729752068639e-14,
    -8.1519341976054721522e-14, 2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
    1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08, 4.2347877827932403518e-07,
    -1.3654692000834678645e-06, -1.3882523362786468719e-05, 0.0001867342080340571352, -0.00074070253416626697512,
    -0.0060336708714301490533, 0.24015818242558961693, 1.6536545626831027356,
)  # fmt: skip
_MIDDLE64 = (
    2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07, 1.8239629214389227755e-08,
    1.5027403968909827627e-06, -4.013867526981545969e-06, 2.9234449089955446044e-06, 1.2475304481671778723e-05,
    -4.7318229009055733981e-05, 6.8284851459573175448e-05, 2.4031110387097893999e-05, -0.0003550375203628474796,
    0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066, -0.0037512085075692412107,
    0.005370914553590063617, 1.0052589676941592334, 3.0838856104922207635,
)  # fmt: skip
_TAIL64 = (
    -2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09, -3.7894654401267369937e-09,
    7.6157012080783393804e-09, -1.4960026627149240478e-08, 2.9147953450901080826e-08, -6.7711997758452339498e-08,
    2.2900482228026654717e-07, -9.9298272942317002539e-07, 4.5260625972231537039e-06, -1.9681778105531670567e-05,
    7.5995277030017761139e-05, -0.00021503011930044477347, -0.00013871931833623122026, 1.0103004648645343977,
    4.8499064014085844221,
)  # fmt: skip


def _polynomial(w: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
    out = w * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        out = out * w + c
    return out


def _erfinv(x: torch.Tensor) -> torch.Tensor:
    dtype = x.dtype
    if dtype is torch.float64:
        w = -torch.log1p(-x * x)
        root = w.sqrt()
        tail = torch.where(w < 16.0, _polynomial(root - 3.25, _MIDDLE64), _polynomial(root - 5.0, _TAIL64))
        factor = torch.where(w < 6.25, _polynomial(w - 3.125, _CENTER64), tail)
    else:
        x = x.float()
        w = -torch.log1p(-x * x)
        factor = torch.where(w < 5.0, _polynomial(w - 2.5, _CENTER32), _polynomial(w.sqrt() - 3.0, _TAIL32))
    out = torch.where(x.abs() == 1.0, x * math.inf, x * factor)
    return out.to(dtype) if dtype.is_floating_point else out


def _erfinv_source() -> str:
    """Return the same function in C++, for native loops."""

    def polynomial(w: str, coefficients: Sequence[float]) -> str:
        out = f"{{T}}({coefficients[0]!r})"
        for c in coefficients[1:]:
            out = f"({out} * {w} + {{T}}({c!r}))"
        return out

    # compute both cases, so that the compiler can vectorize a loop
    narrow = f"w < 5 ? {polynomial('(w - T_(2.5))', _CENTER32)} : {polynomial('(m::sqrt(w) - T_(3))', _TAIL32)}"
    tail = (
        f"w < 16 ? {polynomial('(m::sqrt(w) - T_(3.25))', _MIDDLE64)} : {polynomial('(m::sqrt(w) - T_(5))', _TAIL64)}"
    )
    wide = f"w < 6.25 ? {polynomial('(w - T_(3.125))', _CENTER64)} : ({tail})"
    return (
        "[](auto x) {{ using T_ = {T}; const T_ w = -m::log1p(-x * x);"
        f" const T_ factor = sizeof(T_) == 4 ? ({narrow}) : ({wide});"
        " return m::fabs(x) == 1 ? x * highest<T_>() : x * factor; }}({0})"
    )


erfinv = unary(
    "erfinv", _erfinv, "Return the number whose error function is x.",
    "import gtrace.core.ops.draw_functions as special; round(float(special.erfinv(0.5)), 4) => 0.4769",
    check=real_only, partials=(lambda x, out: multiply(exp(square(out)), 0.5 * math.sqrt(math.pi)),),
    samples=unary_floats(-0.9, 0.9),
    reference=scipy_special("erfinv"), cpp=Cpp(_erfinv_source(), "f", 40), jax="erf_inv",
)  # fmt: skip

# -- neighbouring floats


nextafter = binary(
    "nextafter", torch.nextafter, "Return the float next to x in the direction of y.",
    "float(gt.nextafter(gt.array(1.0), 2.0)) > 1 => True", floating=True, check=floats_only,
    nondiff="piecewise constant steps: it marks a bound, which gradients do not move",
    samples=lambda: [Sample((uniform(-2, 2, 3, 4), uniform(-2, 2, 4, seed=1))), Sample((uniform(-2, 2, 5), numpy.inf))],
    reference=numpy.nextafter, cpp=Cpp("m::nextafter({0}, {1})", "f", 10), jax="nextafter",
)  # fmt: skip

# -- fused multiply-add


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float64 values as sums of two numbers with 26 significant bits, whose products are exact."""
    high = ((x.view(torch.int64) + (1 << 26)) & -(1 << 27)).view(torch.float64)
    return high, x - high


def _fma(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    if x.dtype is torch.float32:
        # the product is exact in float64; the sum is rounded twice, which changes about one result in 2**29
        return (x.double() * y.double() + z.double()).float()
    if x.dtype is not torch.float64:
        return (x.float() * y.float() + z.float()).to(x.dtype)
    x, y, z = torch.broadcast_tensors(x, y, z)
    (x_high, x_low), (y_high, y_low) = _halves(x.contiguous()), _halves(y.contiguous())
    product = x * y
    lost = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    total = product + z
    shift = total - product
    rest = (product - (total - shift)) + (z - shift) + lost
    return torch.where(torch.isfinite(rest), total + rest, total)


def _fma_samples() -> list[Sample]:
    x, y, z = uniform(-2, 2, 3, 4), uniform(-2, 2, 4, seed=1), uniform(-2, 2, 3, 1, seed=2)
    return [Sample((x, y, z)), Sample((uniform(-2, 2, 5), 3.0, uniform(-2, 2, seed=3)))]


_fma_op = define(
    "fma", _fma, arity=3, elementwise=True, check=real_only,
    partials=(lambda x, y, z, out: y, lambda x, y, z, out: x, lambda x, y, z, out: 1), samples=_fma_samples,
    errors=lambda: [BadSample((numpy.ones((2, 3)), numpy.ones(4), 1.0), {}, ValueError, r"broadcast")],
    reference=lambda x, y, z: x * y + z, user=lambda x, y, z: fma(x, y, z), cpp=Cpp("m::fma({0}, {1}, {2})", "f", 2),
)  # fmt: skip


def fma(x: Any, y: Any, z: Any) -> Array:
    """Return x * y + z, rounded once, like a processor's fused multiply-add.

    >>> float(fma(0.1, 10.0, -1.0))
    1.4901161193847656e-08
    """
    return bind(_fma_op, promote("fma", x, y, z, floating=True))
