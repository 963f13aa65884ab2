"""Continuous distributions under SciPy's names."""

from __future__ import annotations

import math

from gtrace import special
from gtrace.core import ops
from gtrace.core.ops.elementwise import neg
from gtrace.scipy.distribution import HALF_LOG_2PI, Distribution
from gtrace.special.bessel_functions import i0e

__all__ = [
    "norm", "uniform", "expon", "laplace", "logistic", "cauchy", "gumbel_r", "gumbel_l", "gamma", "chi2", "beta",
    "t", "pareto", "truncnorm", "gennorm", "vonmises", "wrapcauchy",
]  # fmt: skip

_POSITIVE = (0.0, math.inf)
norm = Distribution(
    "norm", lambda z: neg(ops.square(z)) / 2 - HALF_LOG_2PI, cdf=special.ndtr, sf=lambda z: special.ndtr(neg(z)),
    logcdf=special.log_ndtr, logsf=lambda z: special.log_ndtr(neg(z)), ppf=special.ndtri,
)  # fmt: skip
uniform = Distribution(
    "uniform",
    lambda z: ops.multiply(z, 0.0),
    cdf=lambda z: z,
    sf=lambda z: 1 - z,
    ppf=lambda q: q,
    support=lambda: (0.0, 1.0),
)
expon = Distribution(
    "expon", neg, cdf=lambda z: neg(ops.expm1(neg(z))), sf=lambda z: ops.exp(neg(z)), logsf=neg,
    ppf=lambda q: neg(ops.log1p(neg(q))), support=lambda: _POSITIVE,
)  # fmt: skip
laplace = Distribution(
    "laplace", lambda z: neg(ops.absolute(z)) - math.log(2.0),
    cdf=lambda z: ops.where(z < 0, ops.exp(neg(ops.absolute(z))) / 2, 1 - ops.exp(neg(ops.absolute(z))) / 2),
    ppf=lambda q: ops.where(q < 0.5, ops.log(2 * q), neg(ops.log(2 * (1 - q)))),
)  # fmt: skip
logistic = Distribution(
    "logistic", lambda z: neg(z) - 2 * ops.softplus(neg(z)), cdf=ops.sigmoid, sf=lambda z: ops.sigmoid(neg(z)),
    logcdf=lambda z: neg(ops.softplus(neg(z))), logsf=lambda z: neg(ops.softplus(z)), ppf=special.logit,
)  # fmt: skip
cauchy = Distribution(
    "cauchy", lambda z: neg(ops.log1p(ops.square(z))) - math.log(math.pi), cdf=lambda z: 0.5 + ops.arctan(z) / math.pi,
    sf=lambda z: 0.5 - ops.arctan(z) / math.pi, ppf=lambda q: ops.tan(math.pi * (q - 0.5)),
)  # fmt: skip
gumbel_r = Distribution(
    "gumbel_r", lambda z: neg(z) - ops.exp(neg(z)), logcdf=lambda z: neg(ops.exp(neg(z))),
    sf=lambda z: neg(ops.expm1(neg(ops.exp(neg(z))))), ppf=lambda q: neg(ops.log(neg(ops.log(q)))),
)  # fmt: skip
gumbel_l = Distribution(
    "gumbel_l", lambda z: z - ops.exp(z), logsf=lambda z: neg(ops.exp(z)),
    cdf=lambda z: neg(ops.expm1(neg(ops.exp(z)))),
    ppf=lambda q: ops.log(neg(ops.log1p(neg(q)))),
)  # fmt: skip
gamma = Distribution(
    "gamma", lambda z, a: special.xlogy(a - 1, z) - z - special.gammaln(a), cdf=lambda z, a: special.gammainc(a, z),
    sf=lambda z, a: special.gammaincc(a, z), support=lambda a: _POSITIVE, shapes="a",
)  # fmt: skip
chi2 = Distribution(
    "chi2",
    lambda z, df: special.xlogy(df / 2 - 1, z / 2) - z / 2 - special.gammaln(df / 2) - math.log(2.0),
    cdf=lambda z, df: special.gammainc(df / 2, z / 2), sf=lambda z, df: special.gammaincc(df / 2, z / 2),
    support=lambda df: _POSITIVE, shapes="df",
)  # fmt: skip
beta = Distribution(
    "beta",
    lambda z, a, b: special.xlogy(a - 1, z) + special.xlog1py(b - 1, neg(z)) - special.betaln(a, b),
    cdf=lambda z, a, b: special.betainc(a, b, z), support=lambda a, b: (0.0, 1.0), shapes="a b",
)  # fmt: skip
t = Distribution(
    "t",
    lambda z, df: special.gammaln((df + 1) / 2) - special.gammaln(df / 2) - ops.log(df * math.pi) / 2
    - (df + 1) / 2 * ops.log1p(ops.square(z) / df),
    shapes="df",
)  # fmt: skip
pareto = Distribution(
    "pareto", lambda z, b: ops.log(b) - (b + 1) * ops.log(z), logsf=lambda z, b: neg(b * ops.log(z)),
    ppf=lambda q, b: ops.exp(neg(ops.log1p(neg(q))) / b), support=lambda b: (1.0, math.inf), shapes="b",
)  # fmt: skip
truncnorm = Distribution(
    "truncnorm", lambda z, a, b: neg(ops.square(z)) / 2 - HALF_LOG_2PI - ops.log(special.ndtr(b) - special.ndtr(a)),
    cdf=lambda z, a, b: (special.ndtr(z) - special.ndtr(a)) / (special.ndtr(b) - special.ndtr(a)),
    support=lambda a, b: (a, b), shapes="a b",
)  # fmt: skip
gennorm = Distribution(
    "gennorm", lambda z, beta: ops.log(0.5 * beta) - special.gammaln(1.0 / beta) - ops.power(ops.absolute(z), beta),
    cdf=lambda z, beta: 0.5 + 0.5 * ops.sign(z) * special.gammainc(1.0 / beta, ops.power(ops.absolute(z), beta)),
    shapes="beta",
)  # fmt: skip
vonmises = Distribution(
    "vonmises", lambda z, kappa: ops.multiply(kappa, ops.cos(z) - 1) - ops.log(2 * math.pi * i0e(kappa)), shapes="kappa"
)
wrapcauchy = Distribution(
    "wrapcauchy", lambda z, c: ops.log1p(neg(c * c)) - ops.log(2 * math.pi * (1 + c * c - 2 * c * ops.cos(z))),
    support=lambda c: (0.0, 2 * math.pi), shapes="c",
)  # fmt: skip
