"""Integrals of sines, cosines, Gaussians and logarithms, and Bessel functions of any order.

Near 0 they are power series; far from it, a sine and a cosine with factors that are integrals without oscillation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops.declare import Array, Sample, bind, define
from gtrace.core.ops.elementwise import neg
from gtrace.core.ops.operands import as_arrays, cast, doubled, promote, unary, widened
from gtrace.core.ops.samples import both, scipy_special, unary_floats, uniform
from gtrace.core.ops.shape import as_int
from gtrace.special.quadrature import EULER, half_line, in_blocks

__all__ = ["bessel_jn", "dawsn", "fresnel", "owens_t", "sici", "spence"]

_EVERYWHERE = both(unary_floats(0.3, 3.0), unary_floats(-6.0, -0.5))
_POSITIVE = both(unary_floats(0.3, 3.0), unary_floats(4.5, 9.0))

# -- sine and cosine integrals

_SERIES_TO = 4.0


def _powers(x: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Return the sum of (-1)**k * x**n / (n * n!) over n = first, first + 2, ..."""
    term = x**first / math.factorial(first)
    total = torch.zeros_like(x)
    for n in range(first, first + 2 * count, 2):
        total = total + term / n
        term = -term * x * x / ((n + 1) * (n + 2))
    return total


def _slow(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the integrals of exp(-x * t) / (1 + t * t), and of t times that, over t > 0."""
    t, weight = half_line(1.0 / x)
    terms = torch.exp(-x.unsqueeze(-1) * t) / (1.0 + t * t) * weight
    return terms.sum(-1), (terms * t).sum(-1)


def _si(x: torch.Tensor) -> torch.Tensor:
    size = x.abs()
    f, g = _slow(size.clamp(min=_SERIES_TO))
    far = math.pi / 2 - f * torch.cos(size) - g * torch.sin(size)
    far = torch.where(size == math.inf, math.pi / 2, far)
    found = torch.where(size < _SERIES_TO, _powers(size.clamp(max=_SERIES_TO), 1, 20), far)
    return torch.copysign(found, x)


def _ci(x: torch.Tensor) -> torch.Tensor:
    size = x.abs()
    f, g = _slow(size.clamp(min=_SERIES_TO))
    far = torch.where(size == math.inf, 0.0, f * torch.sin(size) - g * torch.cos(size))
    near = EULER + torch.log(size) - _powers(size.clamp(max=_SERIES_TO), 2, 20)
    return torch.where(x == -math.inf, math.nan, torch.where(size < _SERIES_TO, near, far))


def _sinc(x: Array) -> Array:
    zero = ops.equal(x, 0.0)
    return ops.where(zero, 1.0, ops.sin(x) / ops.where(zero, 1.0, x))


_sine_integral = unary(
    "sine_integral", widened(_si), "Return the integral of sin(t) / t from 0 to x.",
    "round(float(gt.special.sici(1.0)[0]), 4) => 0.9461", direct=in_blocks(widened(_si)),
    partials=(lambda x, out: _sinc(x),), samples=_EVERYWHERE, reference=lambda x: scipy_special("sici")(x)[0],
)  # fmt: skip
_cosine_integral = unary(
    "cosine_integral", widened(_ci), "Return the cosine integral of abs(x).",
    "round(float(gt.special.sici(1.0)[1]), 4) => 0.3374", direct=in_blocks(widened(_ci)),
    partials=(lambda x, out: ops.cos(x) / x,),
    samples=_POSITIVE, reference=lambda x: scipy_special("sici")(x)[1],
)  # fmt: skip


def sici(x: Any) -> tuple[Array, Array]:
    """Return the sine and the cosine integral: that of sin(t) / t from 0, and minus that of cos(t) / t from x on.

    The cosine integral of a negative number is that of its absolute value.

    >>> [round(float(y), 4) for y in gt.special.sici(2.0)]
    [1.6054, 0.423]
    """
    return _sine_integral(x), _cosine_integral(x)


# -- Fresnel integrals

_NEAR = 1.6
_STEP = 0.1


def _fresnel_parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factors of sine and cosine in the Fresnel integrals (Abramowitz and Stegun, 7.3.5) at x > 1."""
    step = (_STEP * (2.5 / x).clamp(max=1.0)).unsqueeze(-1)
    u = (torch.arange(60, dtype=torch.float64, device=x.device) + 0.5) * step
    terms = torch.exp(-0.5 * math.pi * (x.unsqueeze(-1) * u) ** 2) / (1.0 + u**4) * (step * math.sqrt(2.0) / math.pi)
    return terms.sum(-1), (terms * u * u).sum(-1)


def _fresnel(x: torch.Tensor, sine: bool) -> torch.Tensor:
    size = x.abs()
    near, far = size.clamp(max=_NEAR), size.clamp(min=_NEAR, max=1e8)
    half = math.pi / 2
    term = half * near**3 if sine else near
    total = torch.zeros_like(near)
    for k in range(25):
        total = total + term / (4 * k + (3 if sine else 1))
        n = 2 * k + (1 if sine else 0)
        term = -term * (half * near * near) ** 2 / ((n + 1) * (n + 2))
    f, g = _fresnel_parts(far)
    angle = half * torch.remainder(far * far, 4.0)
    s, c = torch.sin(angle), torch.cos(angle)
    beyond = 0.5 - f * c - g * s if sine else 0.5 + f * s - g * c
    beyond = torch.where(size > 1e8, 0.5, beyond)
    return torch.copysign(torch.where(size < _NEAR, total, beyond), x)


def _angle(x: Array) -> Array:
    return ops.square(x) * (math.pi / 2)


def _beyond(x: Any, which: int) -> Any:
    # SciPy's overflow where the argument is squared
    return scipy_special("fresnel")(numpy.clip(x, -1e100, 1e100))[which]


_FRESNEL = {sine: widened(lambda x, sine=sine: _fresnel(x, sine)) for sine in (True, False)}
_fresnel_s = unary(
    "fresnel_s", _FRESNEL[True], "Return the integral of sin(pi * t * t / 2) from 0 to x.",
    "round(float(gt.special.fresnel(1.0)[0]), 4) => 0.4383", direct=in_blocks(_FRESNEL[True]),
    partials=(lambda x, out: ops.sin(_angle(x)),), samples=_EVERYWHERE, reference=lambda x: _beyond(x, 0),
)  # fmt: skip
_fresnel_c = unary(
    "fresnel_c", _FRESNEL[False], "Return the integral of cos(pi * t * t / 2) from 0 to x.",
    "round(float(gt.special.fresnel(1.0)[1]), 4) => 0.7799", direct=in_blocks(_FRESNEL[False]),
    partials=(lambda x, out: ops.cos(_angle(x)),), samples=_EVERYWHERE, reference=lambda x: _beyond(x, 1),
)  # fmt: skip


def fresnel(x: Any) -> tuple[Array, Array]:
    """Return the Fresnel integrals: those of the sine and of the cosine of pi * t * t / 2 from 0 to x.

    >>> [round(float(y), 4) for y in gt.special.fresnel(2.0)]
    [0.3434, 0.4883]
    """
    return _fresnel_s(x), _fresnel_c(x)


# -- Dawson's integral, the dilogarithm, Owen's function

_GRID = 0.2


def _dawsn(x: torch.Tensor) -> torch.Tensor:
    # the sum of Gaussians of Rybicki (1989), about the even multiple of the step that is next to x
    size = x.abs().clamp(max=1e7)
    even = 2.0 * torch.round(size / (2.0 * _GRID))
    odd = torch.arange(-35, 36, 2, dtype=torch.float64, device=x.device)
    rest = (size - even * _GRID).unsqueeze(-1) - odd * _GRID
    total = (torch.exp(-rest * rest) / (even.unsqueeze(-1) + odd)).sum(-1) / math.sqrt(math.pi)
    # near 0, where these cancel, the power series
    near = size.clamp(max=_GRID)
    series = torch.zeros_like(near)
    for k in range(10, -1, -1):
        series = (1.0 - 2.0 * near * near * series) / (2 * k + 1)
    total = torch.where(x.abs() > 1e7, 0.5 / x.abs(), torch.where(size < _GRID, near * series, total))
    return torch.copysign(total, x)


dawsn = unary(
    "dawsn", widened(_dawsn), "Return Dawson's integral: exp(-x * x) times the integral of exp(t * t) from 0 to x.",
    "round(float(gt.special.dawsn(1.0)), 4) => 0.5381", direct=in_blocks(widened(_dawsn)),
    partials=(lambda x, out: 1.0 - ops.multiply(x, out) * 2.0,), samples=_EVERYWHERE,
    reference=scipy_special("dawsn"),
)  # fmt: skip


def _spence(x: torch.Tensor) -> torch.Tensor:
    # by reflections to arguments between 0.5 and 1.5, where the series in 1 - x converges fast
    inverted = x > 1.5
    y = torch.where(inverted, 1.0 / x, x)
    reflected = y < 0.5
    z = torch.where(reflected, 1.0 - y, y)
    u = 1.0 - z
    total = torch.zeros_like(u)
    for k in range(50, 0, -1):
        total = (total + 1.0 / k**2) * u
    log_y = torch.log(torch.where(reflected & (y > 0.0), y, 1.0))
    total = torch.where(reflected, math.pi**2 / 6 - log_y * torch.log1p(-y.clamp(max=0.5)) - total, total)
    total = torch.where(inverted, -0.5 * torch.log(x.clamp(min=1.5)) ** 2 - total, total)
    return torch.where(x < 0.0, math.nan, total)


def _spence_partial(x: Array, out: Array) -> Array:
    near = ops.absolute(x - 1.0) < 1e-4
    v = x - 1.0
    series = -1.0 + v * (0.5 - v / 3.0)
    return ops.where(near, series, ops.log(x) / ops.where(near, 1.0, 1.0 - x))


spence = unary(
    "spence", widened(_spence), "Return Spence's function, the dilogarithm of 1 - x, for x >= 0.",
    "round(float(gt.special.spence(0.0)), 4) => 1.6449", direct=in_blocks(widened(_spence)),
    partials=(_spence_partial,), samples=both(unary_floats(0.1, 0.45), unary_floats(1.2, 5.0)),
    reference=lambda x: numpy.where(x == numpy.inf, -numpy.inf, scipy_special("spence")(x)),
)  # fmt: skip

_NODES, _WEIGHTS = numpy.polynomial.legendre.leggauss(32)


def _owens(h: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    dtype = h.dtype
    h, a = torch.broadcast_tensors(doubled(h).abs(), doubled(a))
    size = a.abs()
    steep = size > 1.0
    # beyond a = 1, from the function at (a * h, 1 / a)
    scaled = torch.where(h == 0.0, 0.0, size * h)
    first, second = torch.where(steep, scaled, h), torch.where(steep, 1.0 / size, size)
    # beyond 9 deviations the integrand has no digits left
    width = torch.minimum(second, 9.0 / first)
    nodes = torch.tensor(0.5 + 0.5 * _NODES, dtype=torch.float64, device=h.device)
    weights = torch.tensor(0.5 * _WEIGHTS, dtype=torch.float64, device=h.device)
    x = width.unsqueeze(-1) * nodes
    inner = torch.exp(-0.5 * (first * first).unsqueeze(-1) * (1.0 + x * x)) / (1.0 + x * x) * weights
    found = inner.sum(-1) * width / (2.0 * math.pi)
    near, far = (0.5 * torch.special.erfc(y / math.sqrt(2.0)) for y in (h, first))
    found = torch.where(steep, 0.5 * (near + far) - near * far - found, found)
    return torch.copysign(found, a).to(dtype)


def _owens_by_h(h: Any, a: Any, out: Array) -> Array:
    tail = ops.erf(ops.multiply(a, h) / math.sqrt(2.0)) * (0.5 / math.sqrt(2.0 * math.pi))
    return neg(ops.exp(ops.square(h) * -0.5) * tail)


def _owens_by_a(h: Any, a: Any, out: Array) -> Array:
    rise = ops.square(a) + 1.0
    return ops.exp(ops.square(h) * rise * -0.5) / (rise * (2.0 * math.pi))


_owens_op = define(
    "owens_t", _owens, direct=in_blocks(_owens), arity=2, elementwise=True,
    partials=(_owens_by_h, _owens_by_a),
    samples=lambda: [
        Sample((uniform(-2, 2, 3, 4), uniform(0.1, 0.9, 4, seed=1))),
        Sample((uniform(0.2, 2, 3, 4), uniform(-4, -1.2, 3, 1, seed=1))),
    ],
    reference=scipy_special("owens_t"), user=lambda h, a: owens_t(h, a),
)  # fmt: skip


def owens_t(h: Any, a: Any) -> Array:
    """Return Owen's function: how likely it is that X > h and 0 < Y < a * X, for independent normal X and Y.

    >>> round(float(gt.special.owens_t(1.0, 2.0)), 4)
    0.0785
    """
    return bind(_owens_op, promote("owens_t", h, a, floating=True))


# -- Bessel functions of any order


def bessel_jn(z: Any, *, v: int, n_iter: int = 50) -> Array:
    """Return the Bessel functions of the first kind of the orders 0 to v, along a new first axis.

    Each is the mean of cos(n * t - z * sin(t)) over a half period, by the trapezoidal rule with 512 points. It has all
    digits up to about abs(z) + v = 400.

    Args:
        v: a Python integer >= 0.
        n_iter: ignored; in JAX, the steps of a recurrence.

    Raises:
        ArgumentError: a negative v.

    >>> gt.round(gt.special.bessel_jn(gt.array([1.0]), v=1), 4)
    Array([[0.7652],
           [0.4401]], dtype=float32)
    """
    orders = as_int("bessel_jn", "v", v)
    if orders < 0:
        raise ArgumentError(message("bessel_jn", "an order >= 0", str(orders), "Pass a non-negative integer."))
    (x,) = as_arrays("bessel_jn", z)
    kind = x.aval.dtype
    wide = ops.expand_dims(cast(x, torch.float64), (0, -1))
    points = ops.array((numpy.arange(512) + 0.5) * (math.pi / 512))
    n = cast(ops.arange(orders + 1, device=x.aval.device), torch.float64).reshape((-1, *(1,) * (x.ndim + 1)))
    return cast(ops.mean(ops.cos(n * points - wide * ops.sin(points)), -1), kind)
