"""The gamma function, its logarithm and derivatives, and the incomplete gamma functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops.checks import real_only
from gtrace.core.ops.declare import Array, BadSample, Cpp, Sample, bind, define, of_floats
from gtrace.core.ops.elementwise import neg
from gtrace.core.ops.gather import constant_array
from gtrace.core.ops.operands import (
    as_arrays,
    binary,
    cast,
    doubled,
    floating_like,
    promote,
    promote_arrays,
    unary,
    widened,
)
from gtrace.core.ops.samples import binary_floats, both, integral, scipy_special, unary_floats, uniform
from gtrace.core.ops.shape import as_int, constant
from gtrace.special.entropies import xlog1py, xlogy
from gtrace.special.quadrature import EULER, half_line, in_blocks

__all__ = [
    "beta", "betaln", "digamma", "factorial", "gamma", "gammainc", "gammaincc", "gammaln", "multigammaln",
    "polygamma", "zeta",
]  # fmt: skip

# -- derivatives of the logarithm


gammaln = unary(
    "gammaln", widened(torch.special.gammaln), "Return the logarithm of the absolute value of the gamma function.",
    "round(float(gt.special.gammaln(5.0)), 4) => 3.1781",
    partials=(lambda x, out: digamma(x),), samples=unary_floats(0.2, 6.0), reference=scipy_special("gammaln"),
    cpp=of_floats("lgamma", 40, precise=True), jax="lgamma",
)  # fmt: skip
digamma = unary(
    "digamma", widened(torch.special.digamma), "Return the derivative of the logarithm of the gamma function.",
    "round(float(gt.special.digamma(1.0)), 4) => -0.5772",
    partials=(lambda x, out: polygamma(1, x),), samples=unary_floats(0.2, 6.0), reference=scipy_special("digamma"),
    jax="digamma",
)  # fmt: skip


_FAR = 1e8


def _hurwitz(order: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    # beyond this the terms of torch's sum underflow, or are NaN; the first two terms of the expansion have all digits
    far = (q > _FAR) & (order > 1.0)
    place, exponent = q.clamp(min=_FAR), torch.where(far, order, 2.0)
    tail = (1.0 / (exponent - 1.0) + 0.5 / place) * place ** (1.0 - exponent)
    return torch.where(far, tail, torch.special.zeta(order, q))


def _polygamma(x: torch.Tensor, n: int) -> torch.Tensor:
    # torch.special.polygamma has 9 digits for n = 1
    order = torch.tensor(n + 1.0, dtype=torch.float64, device=x.device)
    scale = float(math.factorial(n)) * (-1.0) ** (n + 1)
    return floating_like(_hurwitz(order, doubled(x)) * scale, x)


_polygamma_op = define(
    "polygamma", _polygamma, params=("n",), elementwise=True, partials=(lambda x, out, n: polygamma(n + 1, x),),
    samples=lambda: [Sample((n, uniform(0.5, 6.0, 3, 4))) for n in (1, 2, 5)],
    errors=lambda: [BadSample((-1, uniform(0.5, 6.0, 3)), {}, ArgumentError, r"an order >= 0")],
    reference=scipy_special("polygamma"), user=lambda n, x: polygamma(n, x),
)  # fmt: skip


def polygamma(n: Any, x: Any) -> Array:
    """Return the derivative of order n of the digamma function.

    Args:
        n: a Python integer >= 0.
        x: array.

    Raises:
        ArgumentError: n is no integer >= 0.

    >>> round(float(gt.special.polygamma(1, 1.0)), 4)
    1.6449
    """
    order = as_int("polygamma", "order", n)
    if order < 0:
        raise ArgumentError(message("polygamma", "an order >= 0", str(order), "Pass a non-negative integer."))
    (value,) = promote_arrays("polygamma", x, floating=True)
    return bind(_polygamma_op, (value,), (order,)) if order else digamma(value)


# -- logarithms for large arguments

_EVEN = 10.0


def stirling_rest(x: Any) -> Any:
    """Return the logarithm of the gamma function minus Stirling's formula, for x of at least 10."""
    u = 1.0 / (x * x)
    return (1 / 12 - u * (1 / 360 - u * (1 / 1260 - u * (1 / 1680 - u * (1 / 1188 - u * (691 / 360360)))))) / x


def _deviance(k: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    # beside x = k by the series of the logarithm, without large terms
    gap, near = x - k, (x - k) / (x + k)
    square = near * near
    series = square * 0.0
    for n in range(17, 1, -2):
        series = square * (1.0 / n + series)
    return torch.where(near.abs() < 0.1, near * (gap - 2.0 * k * series), gap - k * torch.log(x / k))


deviance = binary(
    "deviance", _deviance, "Return k * log(k / x) + x - k, for positive k and x.",
    "import gtrace.special.gamma_functions as special; round(float(special.deviance(2.0, 1.0)), 4) => 0.3863",
    floating=True, check=real_only, samples=binary_floats(0.3, 4.0, 0.3, 4.0),
    partials=(
        lambda k, x, out: neg(ops.log1p(ops.subtract(x, k) / k)),
        lambda k, x, out: ops.subtract(x, k) / x,
    ),
    reference=lambda k, x: k * numpy.log(k / x) + x - k, cpp=Cpp("deviance<{T}>({0}, {1})", "f", 30),
)  # fmt: skip


def log_density(m: Any, logarithm: Callable[[Any], Any], a: Any, x: Any) -> Any:
    """Return (a - 1) * log(x) - x - log(gamma(a)), of which the densities of counts and of gamma are made.

    For large a these terms are far larger than their sum. Then it is computed from the distance of x to a - 1, as in
    Loader, Fast and Accurate Computation of Binomial Probabilities (2000).

    Args:
        m: the module of the functions, `ops` or `torch`.
        logarithm: that of the gamma function.
        a, x: of float64.
    """
    large = m.logical_and(a - 1.0 >= _EVEN, a < math.inf)
    first, k = m.where(large, 1.0, a), m.where(large, a - 1.0, _EVEN)
    none = m.logical_or(large, m.logical_and(x == 0.0, first == 1.0))
    plain = (first - 1.0) * m.log(m.where(none, 1.0, x)) - x - logarithm(first)
    distance = (deviance if m is ops else _deviance)(k, m.where(large, x, _EVEN))
    return m.where(large, -distance - stirling_rest(k) - 0.5 * m.log(2.0 * math.pi * k), plain)


# -- incomplete integrals


def _lower_side(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x < a.clamp(min=1.0)


def _beyond_linear(s: torch.Tensor) -> torch.Tensor:
    """Return exp(-s) - 1 + s."""
    near = s.clamp(-0.05, 0.05)
    series = torch.zeros_like(near)
    for k in range(9, 1, -1):
        series = 1.0 / math.factorial(k) - near * series
    return torch.where(s.abs() < 0.05, near * near * series, torch.expm1(-s) + s)


def _moment(a: torch.Tensor, x: torch.Tensor, order: int, shift: int) -> torch.Tensor:
    dtype = a.dtype
    a, x = torch.broadcast_tensors(doubled(a), doubled(x))
    lower = _lower_side(a, x)
    # upwards the integrand falls faster than exponentially: nodes that are closer give one more digit
    width = torch.where(lower, 1.0, 0.35) / ((a - x).abs() + x.sqrt())
    s, weight = half_line(torch.where(x < 1.0, 1.0 / a, width))
    s = torch.where(lower.unsqueeze(-1), s, -s)
    a, x = a.unsqueeze(-1), x.unsqueeze(-1)
    # far out the exponent overflows, to minus infinity
    exponent = (x - a - shift) * s - x * _beyond_linear(s)
    terms = torch.exp(exponent) * weight
    for _ in range(order):
        terms = terms * s
    return terms.sum(-1).to(dtype)


def _moment_reference(a: Any, x: Any, order: int, shift: int) -> numpy.ndarray:
    def density(t: float, a: float, x: float) -> float:
        return math.log(x / t) ** order * (t / x) ** (a + shift) * math.exp(x - t) / t

    return integral(density, lambda a, x: (0.0, x) if x < max(a, 1.0) else (x, math.inf), a, x)


_moment_op = define(
    "gamma_moment", _moment, direct=in_blocks(_moment), params=("order", "shift"), arity=2, elementwise=True,
    partials=(
        lambda a, x, out, order, shift: neg(_moment_of(a, x, order + 1, shift)),
        lambda a, x, out, order, shift: ops.subtract(out, _moment_of(a, x, order, shift + 1)),
    ),
    samples=lambda: [
        Sample((uniform(2.0, 6.0, 3, 4), uniform(0.2, 1.8, 4, seed=1), 0, 0)),
        Sample((uniform(0.5, 2.0, 3), uniform(2.5, 9.0, 3, seed=1), 1, 1)),
    ],
    errors=lambda: [BadSample((uniform(1, 2, 2, 3), uniform(1, 2, 4), 0, 0), {}, ValueError, r"broadcast")],
    reference=_moment_reference, user=lambda a, x, order, shift: _moment_of(a, x, order, shift),
)  # fmt: skip


def _moment_of(a: Any, x: Any, order: int, shift: int) -> Array:
    """Return the integral of s**order * exp(-(a + shift) * s + x * (1 - exp(-s))) over s.

    It goes from 0 to infinity where x < max(a, 1), else over -s from 0 to infinity.
    """
    return bind(_moment_op, promote("gamma_moment", a, x, floating=True), (order, shift))


def log_sample_slope(a: Any, log_x: Any, x: Any) -> Array:
    """Return the derivative of log(x) by a along which the regularized lower integral P(a, x) stays the same.

    Substituting t = x exp(-s) in the integral of log(t) t**(a - 1) exp(-t) gives two integrals without large terms.
    """
    total = ops.subtract(log_x, digamma(a)) * _moment_of(a, x, 0, 0)
    rest = _moment_of(a, x, 1, 0) - total
    return ops.where(ops.less(x, ops.maximum(a, 1.0)), rest, neg(rest))


def _front(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return x ** a * exp(-x) / gamma(a)."""
    return x * torch.exp(log_density(torch, torch.special.gammaln, a, x))


_ZETA = torch.special.zeta(torch.arange(2, 32, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)).tolist()
"""The values of Riemann's zeta function at 2, 3, ..., less 1."""


def _upper_for_small(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the regularized upper integral for a < 0.5 and x < 1, where 1 less the lower one would lose all digits."""
    a, x = a.clamp(max=0.5), x.clamp(max=1.0)
    logarithm = torch.zeros_like(a)
    for k in range(len(_ZETA) + 1, 1, -1):
        logarithm = _ZETA[k - 2] / k - a * logarithm
    logarithm = a * (a * logarithm + 1.0 - EULER) - torch.log1p(a)  # that of gamma(1 + a)
    series, power = torch.zeros_like(x), torch.ones_like(x)
    for n in range(1, 19):
        power = power * -x / n
        series = series + power / (a + n)
    exponent = a * torch.log(x) - logarithm
    return -torch.expm1(exponent) - torch.exp(exponent) * a * series


def _incomplete(upper: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    # torch's own have 9 digits where x is close to a large a
    def function(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        lower = _lower_side(a, x)
        # P(a, x) = P(a + 1, x) + x ** a * exp(-x) / gamma(a + 1): the integral for a small a is long
        small = lower & (a < 1.0)
        longer = torch.where(small, a + 1.0, a)
        part = _front(longer, x) * _moment(longer, x, 0, 0)
        part = torch.where(small, part + torch.exp(a * torch.log(x) - x - torch.special.gammaln(a + 1.0)), part)
        out = torch.where(lower, 1.0 - part, part) if upper else torch.where(lower, part, 1.0 - part)
        if upper:
            out = torch.where((a < 0.5) & (x < 1.0), _upper_for_small(a, x), out)
        # all of the mass lies at 0 for a = 0, and below infinity
        all_below = ((a == 0.0) & (x > 0.0)) | ((x == math.inf) & (a < math.inf) & (a >= 0.0))
        none_below = ((x == 0.0) & (a > 0.0)) | ((a == math.inf) & (x < math.inf) & (x >= 0.0))
        known = torch.where(all_below, 0.0 if upper else 1.0, 1.0 if upper else 0.0)
        out = torch.where(all_below | none_below, known.to(out.dtype), out)
        return torch.where((a < 0.0) | (x < 0.0), math.nan, out.clamp(0.0, 1.0))

    return widened(function)


def _density(a: Any, x: Any, power: float) -> Array:
    """Return x ** (a - power) * exp(-x) / gamma(a)."""
    a, x = as_arrays("gammainc", a, x)
    kind = a.aval.dtype
    a, x = cast(a, torch.float64), cast(x, torch.float64)
    zero = ops.equal(x, 0.0)
    inside = ops.exp(log_density(ops, gammaln, a, ops.where(zero, 1.0, x)))
    inside = inside if power else ops.multiply(inside, x)
    at_zero = ops.where(ops.less(a, power), math.inf, cast(ops.equal(a, power), torch.float64))
    return cast(ops.where(zero, at_zero, inside), kind)


def _by_a(a: Any, x: Any) -> Array:
    a, x = as_arrays("gammainc", a, x)
    kind = a.aval.dtype
    a, inside = cast(a, torch.float64), cast(ops.where(ops.equal(x, 0.0), 1.0, x), torch.float64)
    slope = ops.multiply(log_sample_slope(a, ops.log(inside), inside), _density(a, inside, 0.0))
    return cast(ops.where(ops.equal(x, 0.0), 0.0, neg(slope)), kind)


_LOWER, _UPPER = _incomplete(False), _incomplete(True)
gammainc = binary(
    "gammainc", _LOWER, "Return the regularized lower incomplete gamma function P(a, x).",
    "round(float(gt.special.gammainc(1.0, 2.0)), 4) => 0.8647", floating=True,
    direct=in_blocks(_LOWER), partials=(lambda a, x, out: _by_a(a, x), lambda a, x, out: _density(a, x, 1.0)),
    samples=binary_floats(2.0, 5.0, 0.2, 1.8), reference=scipy_special("gammainc"), jax="igamma",
)  # fmt: skip
gammaincc = binary(
    "gammaincc", _UPPER, "Return the regularized upper incomplete gamma function, 1 - P(a, x).",
    "round(float(gt.special.gammaincc(1.0, 2.0)), 4) => 0.1353", floating=True,
    direct=in_blocks(_UPPER), partials=(lambda a, x, out: neg(_by_a(a, x)), lambda a, x, out: neg(_density(a, x, 1.0))),
    samples=binary_floats(2.0, 5.0, 0.2, 1.8), reference=scipy_special("gammaincc"), jax="igammac",
)  # fmt: skip


# -- the function itself


def _gamma(x: torch.Tensor) -> torch.Tensor:
    size = torch.exp(torch.special.gammaln(x))
    odd = torch.remainder(torch.floor(x), 2.0) == 1.0
    signed = torch.where((x < 0) & odd, -size, size)
    # at its poles the function has no sign, except by that of zero
    pole = (x < 0) & (torch.floor(x) == x)
    return torch.where(pole, math.nan, torch.where(x == 0, 1.0 / x, signed))


gamma = unary(
    "gamma", widened(_gamma), "Return the gamma function.", "round(float(gt.special.gamma(5.0)), 4) => 24.0",
    partials=(lambda x, out: ops.multiply(out, digamma(x)),),
    samples=both(unary_floats(0.3, 3.0), unary_floats(-0.9, -0.1)), reference=scipy_special("gamma"),
)  # fmt: skip


def _no_order_derivative(x: Any, q: Any, out: Array) -> NoReturn:
    fix = "Hold the order fixed: gt.stop_gradient(x)."
    raise ArgumentError(message("zeta", "derivatives in the second argument", "one in the order", fix))


_zeta = binary(
    "zeta", widened(_hurwitz), "Return the Hurwitz zeta function of order x.",
    "round(float(gt.special.zeta(2.0, 1.0)), 4) => 1.6449", floating=True,
    partials=(_no_order_derivative, lambda x, q, out: neg(ops.multiply(x, _zeta(ops.add(x, 1.0), q)))),
    samples=lambda: [Sample((order, uniform(0.5, 4.0, 3, 4))) for order in (2.0, 3.5)], reference=scipy_special("zeta"),
    jax="zeta",
)  # fmt: skip


def zeta(x: Any, q: Any = 1.0) -> Array:
    """Return the Hurwitz zeta function, the sum of (k + q) ** -x over k = 0, 1, ...; for q = 1, that of Riemann.

    It is differentiable in q.

    Args:
        x: array, greater than 1.
        q: array.

    Raises:
        ArgumentError: a derivative in x is asked for.

    >>> round(float(gt.special.zeta(2.0)), 4)
    1.6449
    """
    return _zeta(x, q)


# -- functions made of it


def _sign(x: Array) -> Array:
    """Return the sign of the gamma function."""
    odd = ops.logical_and(x < 0.0, ops.equal(ops.floor(x) % 2.0, 1.0))
    return ops.where(odd, constant(-1.0, x.aval), 1.0)


def log_beta(m: Any, logarithm: Callable[[Any], Any], a: Any, b: Any) -> Any:
    """Return the logarithm of the beta function, for large arguments without large terms (as R computes it).

    Args:
        m: the module of the functions, `ops` or `torch`.
        logarithm: that of the gamma function.
        a, b: of float64.
    """
    low, high = m.minimum(a, b), m.maximum(a, b)
    plain = logarithm(a) + logarithm(b) - logarithm(a + b)
    large = m.logical_and(m.logical_and(high >= _EVEN, high < math.inf), low > 0)
    small = m.logical_and(large, low < _EVEN)
    high, first, second = m.where(large, high, _EVEN), m.where(small, low, 1.0), m.where(large, low, _EVEN)
    one = first + high
    gap = stirling_rest(high) - stirling_rest(one) + (high - 0.5) * m.log1p(-first / one)
    uneven = logarithm(first) + gap + first - first * m.log(one)
    second = m.where(small, _EVEN, second)
    total = second + high
    rest = stirling_rest(second) + stirling_rest(high) - stirling_rest(total)
    even = rest + (second - 0.5) * m.log(second / total) + high * m.log1p(-second / total)
    even = even + (0.5 * math.log(2.0 * math.pi) - 0.5 * m.log(high))
    return m.where(large, m.where(small, uneven, even), plain)


def whole_below(z: Array) -> Array:
    """Whether z is 0, -1, -2, ..., or minus infinity."""
    return ops.logical_and(z <= 0.0, ops.equal(ops.floor(z), z))


def _with_sign(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the logarithm of the absolute value of the beta function, and its sign, of float64 arguments.

    At whole a <= 0 the function is infinite, but for whole b from 1 to -a. There it is (-1)**b * beta(1 - a - b, b).
    """
    first, second = whole_below(a), whole_below(b)
    pole, other = ops.where(first, a, b), ops.where(first, b, a)
    mirror = 1.0 - pole - other
    whole = ops.logical_and(ops.equal(ops.floor(other), other), ops.logical_and(other > 0.0, mirror > 0.0))
    poles = ops.logical_or(first, second)
    finite = ops.logical_and(ops.logical_and(poles, whole), ops.isfinite(mirror))
    odd = ops.equal(other % 2.0, 1.0)
    sign = ops.multiply(_sign(a), _sign(b)) * _sign(a + b)
    sign = ops.where(poles, ops.where(ops.logical_and(finite, odd), -1.0, 1.0), sign)
    infinite = ops.logical_and(ops.logical_not(poles), ops.equal(ops.maximum(a, b), math.inf))
    known = ops.logical_or(poles, infinite)
    # the places of the mirrored values are single points, without a slope
    one = ops.where(known, ops.where(finite, ops.stop_gradient(mirror), 1.0), a)
    two = ops.where(known, ops.where(finite, ops.stop_gradient(other), 1.0), b)
    low, high = ops.minimum(one, two), ops.maximum(one, two)
    far = ops.logical_and(low < 0.0, high > 1e4 * ops.maximum(1.0, ops.absolute(low)) ** (4 / 3))
    value = log_beta(ops, gammaln, ops.where(far, 1.0, one), ops.where(far, 1.0, two))
    value = ops.where(far, _log_beta_far(ops.where(far, low, -0.5), ops.where(far, high, _FAR)), value)
    value = ops.where(ops.logical_and(poles, ops.logical_not(finite)), math.inf, value)
    below = ops.minimum(a, b) > 0.0  # far out the function goes like gamma(b) * a ** -b
    value = ops.where(infinite, ops.where(below, -math.inf, math.inf), value)
    missing = ops.logical_or(ops.isnan(a), ops.isnan(b))
    return ops.where(missing, math.nan, value), ops.stop_gradient(sign)


def _log_beta_far(b: Array, a: Array) -> Array:
    """Return the logarithm of the beta function for b < 0 and a far larger a, by Stirling's series."""
    rest = 1.0 - b
    return gammaln(b) - b * ops.log(a) + b * rest / (2.0 * a) * (1.0 + (1.0 - 2.0 * b) / (6.0 * a))


def betaln(a: Any, b: Any) -> Array:
    """Return the logarithm of the absolute value of the beta function.

    >>> round(float(gt.special.betaln(2.0, 3.0)), 4)
    -2.4849
    """
    a, b = as_arrays("betaln", a, b)
    # in float64, because the terms are much larger than their sum
    return cast(_with_sign(cast(a, torch.float64), cast(b, torch.float64))[0], a.aval.dtype)


def log_beta_density(a: Array, b: Array, x: Array) -> Array:
    """Return the logarithm of the density at x of the beta distribution, of float64 arguments; as in `log_density`."""
    large = ops.logical_and(ops.minimum(a, b) - 1.0 >= _EVEN, ops.maximum(a, b) < math.inf)
    one, two, y = ops.where(large, 1.0, a), ops.where(large, 1.0, b), ops.where(large, 0.5, x)
    plain = xlogy(one - 1.0, y) + xlog1py(two - 1.0, neg(y)) - betaln(one, two)
    k, others = ops.where(large, a - 1.0, _EVEN), ops.where(large, b - 1.0, _EVEN)
    n, y = k + others, ops.where(large, x, 0.5)
    rest = stirling_rest(n) - stirling_rest(k) - stirling_rest(others) + ops.log1p(n)
    rest = rest + 0.5 * ops.log(n / k / others / (2.0 * math.pi))
    return ops.where(large, rest - deviance(k, n * y) - deviance(others, n * (1.0 - y)), plain)


def beta(a: Any, b: Any) -> Array:
    """Return the beta function, gamma(a) * gamma(b) / gamma(a + b).

    >>> round(float(gt.special.beta(2.0, 3.0)), 4)
    0.0833
    """
    a, b = as_arrays("beta", a, b)
    size, sign = _with_sign(cast(a, torch.float64), cast(b, torch.float64))
    return cast(sign * ops.exp(size), a.aval.dtype)


def factorial(n: Any) -> Array:
    """Return n!, the gamma function at n + 1, floating; 0 for negative n, as in SciPy.

    >>> gt.special.factorial(gt.array([0, 3, 5]))
    Array([  1.,   6., 120.], dtype=float32)
    """
    (x,) = as_arrays("factorial", n)
    negative = ops.less(x, 0.0)
    return ops.where(negative, 0.0, gamma(ops.where(negative, 0.0, x) + 1.0))


def multigammaln(a: Any, d: Any) -> Array:
    """Return the logarithm of the multivariate gamma function of dimension d.

    Args:
        a: array, greater than (d - 1) / 2.
        d: a Python integer >= 1.

    Raises:
        ArgumentError: d is no integer >= 1.

    >>> round(float(gt.special.multigammaln(3.0, 2)), 4)
    1.5502
    """
    count = as_int("multigammaln", "dimension", d)
    if count < 1:
        raise ArgumentError(message("multigammaln", "a dimension >= 1", str(count), "Pass a positive integer."))
    (x,) = as_arrays("multigammaln", a)
    halves = constant_array(numpy.arange(count) * 0.5, x.aval.device)
    terms = gammaln(ops.expand_dims(x, -1) - cast(halves, x.aval.dtype))
    return ops.sum(terms, -1) + count * (count - 1) / 4.0 * math.log(math.pi)
