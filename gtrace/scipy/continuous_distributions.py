"""Continuous distributions under SciPy's names."""

from __future__ import annotations

import math

from gtrace import special
from gtrace.extend import Array, ops
from gtrace.scipy.distribution import HALF_LOG_2PI, Distribution, log1mexp
from gtrace.special.bessel_functions import i0e
from gtrace.special.gamma_functions import log_beta_density, log_density

neg = ops.negative

__all__ = [
    "norm", "uniform", "expon", "laplace", "logistic", "cauchy", "gumbel_r", "gumbel_l", "gamma", "chi2", "beta",
    "t", "pareto", "truncnorm", "gennorm", "vonmises", "wrapcauchy",
]  # fmt: skip

_POSITIVE = (0.0, math.inf)
norm = Distribution(
    "norm", lambda z: neg(ops.square(z)) / 2 - HALF_LOG_2PI, cdf=special.ndtr, sf=lambda z: special.ndtr(neg(z)),
    logcdf=special.log_ndtr, logsf=lambda z: special.log_ndtr(neg(z)), ppf=special.ndtri,
    isf=lambda q: neg(special.ndtri(q)),
)  # fmt: skip
uniform = Distribution(
    "uniform",
    lambda z: ops.multiply(z, 0.0),
    cdf=lambda z: z,
    sf=lambda z: 1 - z,
    ppf=lambda q: q,
    isf=lambda q: 1 - q,
    support=lambda: (0.0, 1.0),
)
expon = Distribution(
    "expon", neg, cdf=lambda z: neg(ops.expm1(neg(z))), sf=lambda z: ops.exp(neg(z)), logsf=neg,
    ppf=lambda q: neg(ops.log1p(neg(q))), isf=lambda q: neg(ops.log(q)), support=lambda: _POSITIVE,
)  # fmt: skip


def _below(z: Array) -> Array:
    """Return the logarithm of the probability of at most z, for Laplace's distribution."""
    inner = neg(ops.absolute(z))
    return ops.where(z < 0, inner - math.log(2.0), ops.log1p(neg(ops.exp(inner) / 2)))


def _half(z: Array) -> Array:
    tail = ops.exp(neg(ops.absolute(z))) / 2
    return ops.where(z < 0, tail, 1 - tail)


def _laplace_quantile(q: Array) -> Array:
    return ops.where(q < 0.5, ops.log(2 * q), neg(ops.log(2 * (1 - q))))


laplace = Distribution(
    "laplace", lambda z: neg(ops.absolute(z)) - math.log(2.0), cdf=_half, sf=lambda z: _half(neg(z)), logcdf=_below,
    logsf=lambda z: _below(neg(z)), ppf=_laplace_quantile, isf=lambda q: neg(_laplace_quantile(q)),
)  # fmt: skip
logistic = Distribution(
    "logistic", lambda z: neg(ops.absolute(z)) - 2 * ops.softplus(neg(ops.absolute(z))), cdf=ops.sigmoid,
    sf=lambda z: ops.sigmoid(neg(z)), logcdf=lambda z: neg(ops.softplus(neg(z))), logsf=lambda z: neg(ops.softplus(z)),
    ppf=special.logit, isf=lambda q: neg(special.logit(q)),
)  # fmt: skip


def _log1p_square(z: Array, scale: Array | float = 1.0) -> Array:
    """Return log(1 + (z / scale)²), for z whose squares overflow too."""
    size = ops.absolute(z)
    large = size > 1e9 * scale
    far = 2 * (ops.log(ops.where(large, size, 1.0)) - ops.log(scale))
    return ops.where(large, far, ops.log1p(ops.square(ops.where(large, 0.0, z) / scale)))


def _cauchy_quantile(q: Array) -> Array:
    q = q + 0.0  # for -0, whose tangent has the other sign
    low, high = q < 0.25, q > 0.75
    tail = 1 / ops.tan(math.pi * ops.where(low, q, ops.where(high, 1 - q, 0.25)))
    return ops.where(low, neg(tail), ops.where(high, tail, ops.tan(math.pi * (q - 0.5))))


cauchy = Distribution(
    "cauchy", lambda z: neg(_log1p_square(z)) - math.log(math.pi), cdf=lambda z: ops.arctan2(1.0, neg(z)) / math.pi,
    sf=lambda z: ops.arctan2(1.0, z) / math.pi, ppf=_cauchy_quantile, isf=lambda q: neg(_cauchy_quantile(q)),
)  # fmt: skip


def _double_log(t: Array) -> Array:
    """Return log(1 - exp(-exp(t)))."""
    small = t < -8.0  # the logarithm of exp(t) - exp(2 t) / 2 + exp(3 t) / 6
    inner = ops.exp(t)
    return ops.where(small, t - inner / 2 + ops.square(inner) / 24, log1mexp(ops.where(small, 1.0, inner)))


gumbel_r = Distribution(
    "gumbel_r", lambda z: neg(z) - ops.exp(neg(z)), logcdf=lambda z: neg(ops.exp(neg(z))),
    sf=lambda z: neg(ops.expm1(neg(ops.exp(neg(z))))), logsf=lambda z: _double_log(neg(z)),
    ppf=lambda q: neg(ops.log(neg(ops.log(q)))), isf=lambda q: neg(ops.log(neg(ops.log1p(neg(q))))),
)  # fmt: skip
gumbel_l = Distribution(
    "gumbel_l", lambda z: z - ops.exp(z), logsf=lambda z: neg(ops.exp(z)),
    cdf=lambda z: neg(ops.expm1(neg(ops.exp(z)))), logcdf=_double_log,
    ppf=lambda q: ops.log(neg(ops.log1p(neg(q)))), isf=lambda q: ops.log(neg(ops.log(q))),
)  # fmt: skip
gamma = Distribution(
    "gamma", lambda z, a: log_density(ops, special.gammaln, a, z), cdf=lambda z, a: special.gammainc(a, z),
    sf=lambda z, a: special.gammaincc(a, z), support=lambda a: _POSITIVE, shapes="a", wide=True,
)  # fmt: skip
chi2 = Distribution(
    "chi2",
    lambda z, df: log_density(ops, special.gammaln, df / 2, z / 2) - math.log(2.0),
    cdf=lambda z, df: special.gammainc(df / 2, z / 2), sf=lambda z, df: special.gammaincc(df / 2, z / 2),
    support=lambda df: _POSITIVE, shapes="df", wide=True,
)  # fmt: skip
beta = Distribution(
    "beta", lambda z, a, b: log_beta_density(a, b, z),
    cdf=lambda z, a, b: special.betainc(a, b, z), sf=lambda z, a, b: special.betaincc(a, b, z),
    support=lambda a, b: (0.0, 1.0), shapes="a b", wide=True,
)  # fmt: skip


def _half_step(x: Array) -> Array:
    """Return log Γ(x + 1/2) - log Γ(x); for large x by the asymptotic series, as the logarithms are large too."""
    large = x > 20.0
    y = ops.where(large, x, 20.0)
    u = 1 / ops.square(y)
    series = (-1 / 8 + u * (1 / 192 + u * (-1 / 640 + u * (17 / 14336 - u * (31 / 18432))))) / y
    small = ops.where(large, 1.0, x)
    return ops.where(large, ops.log(y) / 2 + series, special.gammaln(small + 0.5) - special.gammaln(small))


_FAR = 1e10
"""From here on, in units of the square root of df, the tail of t is a power to all digits."""


def _t_tail(z: Array, df: Array) -> Array:
    """Return the probability of more than |z|."""
    size = ops.absolute(z) / ops.sqrt(df)
    far, inner = size > _FAR, size < 1  # where 1 / (1 + size**2) or its complement is small, and has all digits
    middle = ops.square(ops.where(far | inner, 1.0, size))
    close = ops.square(ops.where(inner, size, 1.0))
    half = ops.where(inner, special.betaincc(0.5, df / 2, close / (1 + close)),
                     special.betainc(df / 2, 0.5, 1 / (1 + middle)))  # fmt: skip
    logarithm = ops.log(ops.where(far, ops.absolute(z), 1.0)) - ops.log(df) / 2  # the size itself may overflow
    power = neg(df) * logarithm - ops.log(df / 2) - special.betaln(df / 2, 0.5)
    return ops.where(far, ops.exp(power), half) / 2


def _t_below(z: Array, df: Array) -> Array:
    tail = _t_tail(z, df)
    return ops.where(z < 0, tail, 1 - tail)


t = Distribution(
    "t",
    lambda z, df: _half_step(df / 2) - ops.log(df * math.pi) / 2 - (df + 1) / 2 * _log1p_square(z, ops.sqrt(df)),
    cdf=_t_below, sf=lambda z, df: _t_below(neg(z), df), shapes="df", wide=True,
)  # fmt: skip
pareto = Distribution(
    "pareto", lambda z, b: ops.log(b) - (b + 1) * ops.log(z), cdf=lambda z, b: neg(ops.expm1(neg(b * ops.log(z)))),
    logcdf=lambda z, b: log1mexp(b * ops.log(z)), logsf=lambda z, b: neg(b * ops.log(z)),
    ppf=lambda q, b: ops.exp(neg(ops.log1p(neg(q))) / b), isf=lambda q, b: ops.exp(neg(ops.log(q)) / b),
    support=lambda b: (1.0, math.inf), shapes="b", wide=True,
)  # fmt: skip


def _log_mass(a: Array, b: Array) -> Array:
    """Return the logarithm of the probability that a standard normal number is between a and b."""
    near = ops.maximum(ops.absolute(a), ops.absolute(b)) <= 1
    around = ops.logical_or(ops.logical_and(a <= 0, b >= 0), near)
    # within one tail: the logarithms of the tails beyond both ends, on the side where these are small
    right = a > 0
    low, high = ops.where(right, neg(b), a), ops.where(right, neg(a), b)
    low, high = ops.where(around, -2.0, low), ops.where(around, -1.0, high)
    outer = special.log_ndtr(high)
    gap = ops.where(ops.isinf(outer), 1.0, outer - special.log_ndtr(low))
    tail = outer + log1mexp(gap)
    # around 0: what is on both sides, or 1 without both tails
    left, far = ops.where(around, a, -1.0), ops.where(around, b, 1.0)
    wide = ops.logical_and(left < -1, far > 1)
    sides = (special.erf(far * math.sqrt(0.5)) - special.erf(left * math.sqrt(0.5))) / 2
    rest = ops.where(wide, special.ndtr(left) + special.ndtr(neg(far)), 0.0)
    central = ops.where(wide, ops.log1p(neg(rest)), ops.log(ops.where(wide, 1.0, sides)))
    return ops.where(around, central, tail)


def _both(z: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """Return the logarithms of the probabilities of less and of more than z, between a and b."""
    z, whole = ops.clip(z, a, b), _log_mass(a, b)
    return _log_mass(a, z) - whole, _log_mass(z, b) - whole


def _log_part(part: Array, rest: Array) -> Array:
    """Return the logarithm of a probability; if it is near 1, by that of its complement."""
    small = part < math.log(0.5)
    return ops.where(small, part, log1mexp(neg(ops.where(small, -1.0, rest))))


truncnorm = Distribution(
    "truncnorm", lambda z, a, b: neg(ops.square(z)) / 2 - HALF_LOG_2PI - _log_mass(a, b),
    logcdf=lambda z, a, b: _log_part(*_both(z, a, b)), logsf=lambda z, a, b: _log_part(*_both(z, a, b)[::-1]),
    support=lambda a, b: (a, b), shapes="a b", valid=ops.less, wide=True,
)  # fmt: skip


def _gennorm_tail(z: Array, beta: Array) -> Array:
    tail = special.gammaincc(1.0 / beta, ops.absolute(z) ** beta) / 2
    return ops.where(z < 0, tail, 1 - tail)


gennorm = Distribution(
    "gennorm", lambda z, beta: ops.log(0.5 * beta) - special.gammaln(1.0 / beta) - ops.absolute(z) ** beta,
    cdf=_gennorm_tail, sf=lambda z, beta: _gennorm_tail(neg(z), beta), shapes="beta", wide=True,
)  # fmt: skip
vonmises = Distribution(
    "vonmises",
    lambda z, kappa: kappa * (-2 * ops.square(ops.sin(z / 2))) - ops.log(2 * math.pi * i0e(kappa)),
    shapes="kappa",
    valid=lambda kappa: kappa >= 0,
    wide=True,
)


def _wrapped(z: Array, c: Array) -> Array:
    around = ops.square(1 - c) + 4 * c * ops.square(ops.sin(z / 2))
    return ops.log1p(neg(c * c)) - ops.log(2 * math.pi * around)


wrapcauchy = Distribution(
    "wrapcauchy", _wrapped, support=lambda c: (0.0, 2 * math.pi), shapes="c",
    valid=lambda c: ops.logical_and(c > 0, c < 1),
)  # fmt: skip
