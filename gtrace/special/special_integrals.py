"""Integrals without a closed form: the incomplete beta function, and the exponential integrals."""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops.declare import Array, BadSample, Sample, bind, define
from gtrace.core.ops.elementwise import neg
from gtrace.core.ops.operands import as_arrays, cast, doubled, floating_like, promote, unary, widened
from gtrace.core.ops.samples import both, integral, scipy_special, unary_floats, uniform
from gtrace.core.ops.shape import as_int
from gtrace.special.gamma_functions import digamma, log_beta, log_beta_density, stirling_rest
from gtrace.special.quadrature import EULER, half_line, in_blocks

__all__ = ["betainc", "betaincc", "exp1", "expi", "expn"]

# -- incomplete beta function

_LARGE = 1e4
"""Parameters from which the terms of the density's logarithm are so large that their sum loses digits."""


def _moment(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, i: int, j: int) -> torch.Tensor:
    dtype = x.dtype
    a, b, x = torch.broadcast_tensors(doubled(a), doubled(b), doubled(x))
    lower = x * (a + b) <= a
    # on the upper side, the same with the roles of x and 1 - x exchanged
    first, second = torch.where(lower, a, b), torch.where(lower, b, a)
    near, far = torch.where(lower, x, 1.0 - x), torch.where(lower, 1.0 - x, x)
    log_near = torch.where(lower, torch.log(x), torch.log1p(-x))
    extra = (second - 1.0).clamp(min=0.0) * near / far
    rate = torch.where((second > 1.0) & (extra > 1.0), (first - extra).abs() + torch.sqrt(extra / far), first)
    s, weight = half_line(1.0 / rate)
    log_t = log_near.unsqueeze(-1) - s
    # how far x, and t = near * exp(-s), are below the mean, times the sum of both: no digit of 1 - t is lost
    total = first + second
    gap = (a - total * x).abs()
    off = gap.unsqueeze(-1) - (first - gap).unsqueeze(-1) * torch.expm1(-s)
    more = off / second.unsqueeze(-1)
    log_rest = _log_of_rest(first, second).unsqueeze(-1) + torch.log1p(more)
    # log(t**first * (1 - t)**second / beta), from its value at x on: all terms are below 0
    exponent = _log_size(first, second, log_near, gap).unsqueeze(-1) - gap.unsqueeze(-1) * s
    exponent = exponent - (first - gap).unsqueeze(-1) * _past_exp(s) - second.unsqueeze(-1) * _past_log1p(more)
    exponent = exponent - log_rest
    terms = torch.exp(exponent) * weight
    sided = lower.unsqueeze(-1)
    for count, (one, other) in ((i, (log_t, log_rest)), (j, (log_rest, log_t))):
        for _ in range(count):
            terms = terms * torch.where(sided, one, other)
    total = terms.sum(-1)
    total = torch.where(near == 0.0, 0.0, total)
    if i == j == 0:
        total = torch.where(x == 1.0, torch.where(lower, 1.0, total), total)
    return torch.where(lower, total, -total).to(dtype)


def _log_of_rest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return log(b / (a + b))."""
    part = torch.minimum(a, b) / (a + b)
    return torch.where(a < b, torch.log1p(-part), torch.log(part))


def _log_size(a: torch.Tensor, b: torch.Tensor, log_x: torch.Tensor, gap: torch.Tensor) -> torch.Tensor:
    """Return log(x**a * (1 - mean)**b / beta(a, b)) + gap, where the mean is a / (a + b).

    For large a and b its terms are far larger than it is. Then it follows from the distance to the mean, as in Didonato
    and Morris, Algorithm 708, ACM Transactions on Mathematical Software 18 (1992), section 4.

    Args:
        gap: a - (a + b) * x.
    """
    plain = a * log_x + b * _log_of_rest(a, b) - log_beta(torch, torch.special.gammaln, a, b) + gap
    rest = stirling_rest(a) + stirling_rest(b) - stirling_rest(a + b)
    peak = 0.5 * (torch.log(a) + _log_of_rest(a, b) - math.log(2.0 * math.pi)) - rest
    return torch.where(torch.minimum(a, b) > _LARGE, peak - a * _past_log1p(-gap / a), plain)


def _past_log1p(x: torch.Tensor) -> torch.Tensor:
    """Return x - log(1 + x)."""
    series = x * x * (1 / 2 - x * (1 / 3 - x * (1 / 4 - x * (1 / 5 - x * (1 / 6 - x * (1 / 7 - x / 8))))))
    return torch.where(x.abs() < 0.01, series, x - torch.log1p(x))


def _past_exp(x: torch.Tensor) -> torch.Tensor:
    """Return exp(-x) - 1 + x."""
    series = x * x * (1 / 2 - x * (1 / 6 - x * (1 / 24 - x * (1 / 120 - x * (1 / 720 - x / 5040)))))
    return torch.where(x.abs() < 0.01, series, torch.expm1(-x) + x)


def _by_x(a: Any, b: Any, x: Any, i: int, j: int) -> Array:
    a, b, x = as_arrays("betainc", a, b, x)
    kind = x.aval.dtype
    a, b, x = (cast(z, torch.float64) for z in (a, b, x))
    density = ops.exp(log_beta_density(a, b, x))
    for count, factor in ((i, ops.log(x)), (j, ops.log1p(neg(x)))):
        if count:
            density = density * ops.power(factor, count)
    return cast(density, kind)


def _by_shape(one: Any, a: Any, b: Any, raised: Array, out: Array) -> Array:
    one, a, b = as_arrays("betainc", one, a, b)
    return raised - out * ops.subtract(digamma(one), digamma(ops.add(a, b)))


def _beta_samples() -> list[Sample]:
    a, b = uniform(1.5, 4.0, 3, 4), uniform(1.5, 4.0, 4, seed=1)
    return [
        Sample((a, b, uniform(0.05, 0.2, 3, 4, seed=2), 0, 0)),
        Sample((a, b, uniform(0.8, 0.95, 3, 4, seed=2), 0, 1)),
        Sample((a, b, uniform(0.05, 0.2, 3, 1, seed=2), 1, 0)),
    ]


def _moment_reference(a: Any, b: Any, x: Any, i: int, j: int) -> numpy.ndarray:
    def density(t: float, a: float, b: float, x: float) -> float:
        size = math.exp(math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))
        return math.log(t) ** i * math.log1p(-t) ** j * t ** (a - 1) * (1 - t) ** (b - 1) / size

    return integral(density, lambda a, b, x: (0.0, x) if x * (a + b) <= a else (1.0, x), a, b, x)


_moment_op = define(
    "beta_moment", _moment, direct=in_blocks(_moment), params=("i", "j"), arity=3, elementwise=True,
    partials=(
        lambda a, b, x, out, i, j: _by_shape(a, a, b, _moment_of(a, b, x, i + 1, j), out),
        lambda a, b, x, out, i, j: _by_shape(b, a, b, _moment_of(a, b, x, i, j + 1), out),
        lambda a, b, x, out, i, j: _by_x(a, b, x, i, j),
    ),
    samples=_beta_samples,
    errors=lambda: [
        BadSample((uniform(1, 2, 2, 3), uniform(1, 2, 4), 0.5, 0, 0), {}, ValueError, r"broadcast"),
    ],
    reference=_moment_reference, user=lambda a, b, x, i, j: _moment_of(a, b, x, i, j),
)  # fmt: skip


def _moment_of(a: Any, b: Any, x: Any, i: int, j: int) -> Array:
    """Return the integral of log(t)**i * log(1 - t)**j times the beta density, from 0 to x, or minus that from x to 1.

    It is the former up to the mean of the distribution. With that choice no digits are lost in either tail.
    """
    return bind(_moment_op, promote("betainc", a, b, x, floating=True), (i, j))


def betainc(a: Any, b: Any, x: Any) -> Array:
    """Return the regularized incomplete beta function, the distribution function of the beta distribution at x.

    It is computed by numerical integration, with an error of about 1e-12, and is differentiable in all arguments.

    Args:
        a, b: positive arrays.
        x: array of numbers in [0, 1].

    >>> round(float(gt.special.betainc(2.0, 3.0, 0.5)), 4)
    0.6875
    """
    return _regularized("betainc", a, b, x, complement=False)


def betaincc(a: Any, b: Any, x: Any) -> Array:
    """Return 1 - betainc(a, b, x), the probability beyond x, with all digits of a small one.

    Args:
        a, b, x: as for `betainc`.

    >>> round(float(gt.special.betaincc(2.0, 3.0, 0.5)), 4)
    0.3125
    """
    return _regularized("betaincc", a, b, x, complement=True)


def _regularized(name: str, a: Any, b: Any, x: Any, complement: bool) -> Array:
    a, b, x = as_arrays(name, a, b, x)
    # all of the mass is at 0 for a = 0 and b = inf, and at 1 for b = 0 and a = inf
    at_zero = ops.logical_or(ops.equal(a, 0.0), ops.equal(b, math.inf))
    at_one = ops.logical_or(ops.equal(b, 0.0), ops.equal(a, math.inf))
    jump = ops.logical_or(at_zero, at_one)
    inside = ops.logical_and(ops.greater_equal(x, 0.0), ops.less_equal(x, 1.0))
    inside = ops.logical_and(inside, ops.logical_and(ops.greater_equal(a, 0.0), ops.greater_equal(b, 0.0)))
    inside = ops.logical_and(inside, ops.logical_not(ops.logical_and(at_zero, at_one)))
    one, two = ops.where(jump, 1.0, a), ops.where(jump, 1.0, b)
    part = _moment_of(one, two, ops.where(inside, x, math.nan), 0, 0)
    # above the mean the part is minus what is left to 1: its sign says so, but for 0
    upper = ops.multiply(x, one + two) > one
    upper = ops.where(ops.equal(part, 0.0), upper, ops.less(part, 0.0))
    one_side = ops.logical_not(upper) if complement else upper
    found = ops.add(neg(part) if complement else part, cast(one_side, part.aval.dtype))
    step = ops.where(at_zero, ops.greater(x, 0.0), ops.greater_equal(x, 1.0))
    step = ops.logical_not(step) if complement else step
    return ops.where(ops.logical_and(jump, inside), cast(step, found.aval.dtype), found)


# -- exponential integrals

_SMALL_TERMS = 20


def _expn(x: torch.Tensor, n: int) -> torch.Tensor:
    wide = doubled(x)
    near, far = wide.clamp(max=1.0), wide.clamp(min=1.0)
    s, weight = half_line(1.0 / (far + n))
    integral = (torch.exp(-far.unsqueeze(-1) * s) * (1.0 + s) ** -n * weight).sum(-1) * torch.exp(-far)
    # the power series (Abramowitz and Stegun, 5.1.12); its first term is below all digits for large n
    factor = (-1.0) ** (n - 1) / float(math.factorial(n - 1)) if n < 100 else 0.0
    out = near ** (n - 1) * factor
    harmonic = sum(1.0 / k for k in range(1, n)) - EULER
    out = torch.where((wide == 0.0) & (n > 1), 0.0, out * (harmonic - torch.log(near)))
    power = torch.ones_like(near)
    for k in range(_SMALL_TERMS):
        if k != n - 1:
            out = out - power / (k - n + 1)
        power = power * -near / (k + 1)
    out = torch.where(wide > 1.0, integral, out)
    return floating_like(torch.where(wide < 0.0, math.nan, torch.where(wide == math.inf, 0.0, out)), x)


def _expn_errors() -> list[BadSample]:
    return [BadSample((-1, uniform(0.5, 6.0, 3)), {}, ArgumentError, r"an order >= 0")]


_expn_op = define(
    "expn", _expn, direct=in_blocks(_expn), params=("n",), elementwise=True,
    partials=(lambda x, out, n: neg(expn(n - 1, x)),),
    samples=lambda: [Sample((n, uniform(0.3, 6.0, 3, 4))) for n in (1, 2, 5)], errors=_expn_errors,
    reference=scipy_special("expn"), user=lambda n, x: expn(n, x),
)  # fmt: skip


def expn(n: Any, x: Any) -> Array:
    """Return the exponential integral of order n: the integral of exp(-x * t) / t ** n over t from 1 to infinity.

    Args:
        n: a Python integer >= 0.
        x: array of numbers >= 0; NaN for others.

    Raises:
        ArgumentError: n is no integer >= 0.

    >>> round(float(gt.special.expn(2, 1.0)), 4)
    0.1485
    """
    order = as_int("expn", "order", n)
    if order < 0:
        raise ArgumentError(message("expn", "an order >= 0", str(order), "Pass a non-negative integer."))
    (value,) = as_arrays("expn", x)
    if order:
        return bind(_expn_op, (value,), (order,))
    inside = ops.greater(value, 0.0)
    plain = ops.exp(neg(ops.where(inside, value, 1.0))) / ops.where(inside, value, 1.0)
    return ops.where(inside, plain, ops.where(ops.equal(value, 0.0), math.inf, math.nan))


def exp1(x: Any) -> Array:
    """Return the exponential integral E1, that of order 1, for x >= 0.

    >>> round(float(gt.special.exp1(1.0)), 4)
    0.2194
    """
    return expn(1, x)


_SERIES, _ASYMPTOTIC = 140, 35
_FAR = 40.0


def _expi(x: torch.Tensor) -> torch.Tensor:
    size = x.abs()
    k = torch.arange(1, _SERIES + 1, dtype=torch.float64, device=x.device)
    near = size.clamp(max=_FAR).unsqueeze(-1)
    series = (torch.exp(k * torch.log(near) - torch.special.gammaln(k + 1.0)) / k).sum(-1)
    k = torch.arange(_ASYMPTOTIC, dtype=torch.float64, device=x.device)
    far = size.clamp(min=_FAR).unsqueeze(-1)
    asymptotic = torch.exp(torch.special.gammaln(k + 1.0) - k * torch.log(far)).sum(-1) * torch.exp(x - torch.log(size))
    positive = torch.where(x > _FAR, asymptotic, series + torch.log(size) + EULER)
    positive = torch.where(x == math.inf, x, positive)
    return torch.where(x < 0.0, -_expn(size, 1), positive)


_WIDE_EXPI = widened(_expi)
expi = unary(
    "expi", _WIDE_EXPI, "Return the exponential integral Ei, the principal value of that of exp(t) / t up to x.",
    "round(float(gt.special.expi(1.0)), 4) => 1.8951",
    direct=in_blocks(_WIDE_EXPI), partials=(lambda x, out: ops.exp(x) / x,),
    samples=both(unary_floats(0.6, 6.0), unary_floats(-4.0, -0.3)),
    reference=scipy_special("expi"),
)  # fmt: skip
