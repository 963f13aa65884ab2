"""Distributions under SciPy's names: densities and distribution functions, with their location and scale."""

from __future__ import annotations

import math
from typing import Any

from gtrace import special
from gtrace.core.ops.activations import sigmoid, softplus
from gtrace.core.ops.create import arange, asarray
from gtrace.core.ops.elementwise import (
    absolute,
    arctan,
    exp,
    expm1,
    log,
    log1p,
    multiply,
    neg,
    square,
    tan,
)
from gtrace.core.ops.logic import equal, logical_and, where
from gtrace.core.ops.promote import as_arrays
from gtrace.core.ops.reduce import sum as sum_over
from gtrace.core.ops.shape import expand_dims
from gtrace.core.trace.array import Array
from gtrace.numpy import linalg
from gtrace.scipy.distribution import Distribution
from gtrace.scipy.more_stats import *  # noqa: F403
from gtrace.scipy.more_stats import __all__ as _more

__all__ = [
    "Distribution", "bernoulli", "beta", "binom", "cauchy", "chi2", "dirichlet", "expon", "gamma", "geom", "gumbel_l",
    "gumbel_r", "laplace", "logistic", "multinomial", "multivariate_normal", "nbinom", "norm", "pareto", "poisson",
    "sem", "t", "truncnorm", "uniform", *_more,
]  # fmt: skip

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_POSITIVE = (0.0, math.inf)

norm = Distribution(
    "norm", lambda z: neg(square(z)) / 2 - HALF_LOG_2PI, cdf=special.ndtr, sf=lambda z: special.ndtr(neg(z)),
    logcdf=special.log_ndtr, logsf=lambda z: special.log_ndtr(neg(z)), ppf=special.ndtri,
)  # fmt: skip
uniform = Distribution(
    "uniform",
    lambda z: multiply(z, 0.0),
    cdf=lambda z: z,
    sf=lambda z: 1 - z,
    ppf=lambda q: q,
    support=lambda: (0.0, 1.0),
)
expon = Distribution(
    "expon", neg, cdf=lambda z: neg(expm1(neg(z))), sf=lambda z: exp(neg(z)), logsf=neg,
    ppf=lambda q: neg(log1p(neg(q))), support=lambda: _POSITIVE,
)  # fmt: skip
laplace = Distribution(
    "laplace", lambda z: neg(absolute(z)) - math.log(2.0),
    cdf=lambda z: where(z < 0, exp(neg(absolute(z))) / 2, 1 - exp(neg(absolute(z))) / 2),
    ppf=lambda q: where(q < 0.5, log(2 * q), neg(log(2 * (1 - q)))),
)  # fmt: skip
logistic = Distribution(
    "logistic", lambda z: neg(z) - 2 * softplus(neg(z)), cdf=sigmoid, sf=lambda z: sigmoid(neg(z)),
    logcdf=lambda z: neg(softplus(neg(z))), logsf=lambda z: neg(softplus(z)), ppf=special.logit,
)  # fmt: skip
cauchy = Distribution(
    "cauchy", lambda z: neg(log1p(square(z))) - math.log(math.pi), cdf=lambda z: 0.5 + arctan(z) / math.pi,
    sf=lambda z: 0.5 - arctan(z) / math.pi, ppf=lambda q: tan(math.pi * (q - 0.5)),
)  # fmt: skip
gumbel_r = Distribution(
    "gumbel_r", lambda z: neg(z) - exp(neg(z)), logcdf=lambda z: neg(exp(neg(z))),
    sf=lambda z: neg(expm1(neg(exp(neg(z))))), ppf=lambda q: neg(log(neg(log(q)))),
)  # fmt: skip
gumbel_l = Distribution(
    "gumbel_l", lambda z: z - exp(z), logsf=lambda z: neg(exp(z)), cdf=lambda z: neg(expm1(neg(exp(z)))),
    ppf=lambda q: log(neg(log1p(neg(q)))),
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
    lambda z, df: special.gammaln((df + 1) / 2) - special.gammaln(df / 2) - log(df * math.pi) / 2
    - (df + 1) / 2 * log1p(square(z) / df),
    shapes="df",
)  # fmt: skip
pareto = Distribution(
    "pareto", lambda z, b: log(b) - (b + 1) * log(z), logsf=lambda z, b: neg(b * log(z)),
    ppf=lambda q, b: exp(neg(log1p(neg(q))) / b), support=lambda b: (1.0, math.inf), shapes="b",
)  # fmt: skip
truncnorm = Distribution(
    "truncnorm", lambda z, a, b: neg(square(z)) / 2 - HALF_LOG_2PI - log(special.ndtr(b) - special.ndtr(a)),
    cdf=lambda z, a, b: (special.ndtr(z) - special.ndtr(a)) / (special.ndtr(b) - special.ndtr(a)),
    support=lambda a, b: (a, b), shapes="a b",
)  # fmt: skip
bernoulli = Distribution(
    "bernoulli", lambda k, p: special.xlogy(k, p) + special.xlog1py(1 - k, neg(p)),
    cdf=lambda k, p: where(k < 1, 1 - p, 1.0), support=lambda p: (0.0, 1.0), shapes="p", discrete=True,
)  # fmt: skip


class _Poisson(Distribution):
    """The distribution of Poisson, with its entropy."""

    def entropy(self, mu: Any, loc: Any = 0) -> Array:
        """Return the entropy.

        >>> from gtrace.scipy.stats import poisson
        >>> round(float(poisson.entropy(2.0)), 4)
        1.7049
        """
        (mean,) = as_arrays("poisson.entropy", mu)
        small = mean <= _NEAR
        # the mean of the logarithm of the probability, term by term; beyond, Evans' asymptotic series
        near = where(small & (mean > 0), mean, 1.0)[..., None]
        k = arange(4 * int(_NEAR), dtype=mean.aval.dtype)
        logs = self._logpdf(k, near)
        near_sum = neg((exp(logs) * logs).sum(-1))
        far = where(small, _NEAR, mean)
        series = log(far) / 2 + 0.5 + HALF_LOG_2PI - (1 / far + (0.5 + 19 / 30 / far) / square(far)) / 12
        found = where(small, where(mean > 0, near_sum, 0.0), series)
        return where(mean < 0, math.nan, found)


_NEAR = 60.0
"""Up to this mean, the terms of the entropy are added."""

poisson = _Poisson(
    "poisson", lambda k, mu: special.xlogy(k, mu) - mu - special.gammaln(k + 1),
    cdf=lambda k, mu: special.gammaincc(k + 1, mu), support=lambda mu: _POSITIVE, shapes="mu", discrete=True,
)  # fmt: skip
geom = Distribution(
    "geom", lambda k, p: special.xlog1py(k - 1, neg(p)) + log(p), sf=lambda k, p: exp(k * log1p(neg(p))),
    support=lambda p: (1.0, math.inf), shapes="p", discrete=True,
)  # fmt: skip
binom = Distribution(
    "binom",
    lambda k, n, p: special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1) + special.xlogy(k, p)
    + special.xlog1py(n - k, neg(p)),
    support=lambda n, p: (0.0, n), shapes="n p", discrete=True,
)  # fmt: skip
nbinom = Distribution(
    "nbinom",
    lambda k, n, p: special.gammaln(k + n) - special.gammaln(k + 1) - special.gammaln(n) + special.xlogy(n, p)
    + special.xlog1py(k, neg(p)),
    support=lambda n, p: _POSITIVE, shapes="n p", discrete=True,
)  # fmt: skip


class multivariate_normal:  # noqa: N801 - SciPy's name of a distribution
    """The normal distribution of vectors.

    >>> import gtrace as gt
    >>> from gtrace.scipy.stats import multivariate_normal
    >>> multivariate_normal.logpdf(gt.zeros(2), gt.zeros(2), gt.eye(2))
    Array(-1.837877, dtype=float32)
    """

    @staticmethod
    def logpdf(x: Any, mean: Any, cov: Any) -> Array:
        """Return the logarithm of the density at vectors x, of shape (..., n), for a covariance (n, n), (n,) or ()."""
        x, mean, cov = as_arrays("multivariate_normal.logpdf", x, mean, cov)
        if not mean.shape:
            return neg(square(x - mean)) / (2 * cov) - (HALF_LOG_2PI + log(cov) / 2)
        n = mean.shape[-1]
        if cov.ndim < 2:
            size = n if not cov.shape else 1
            return neg(sum_over(square(x - mean) / cov, -1)) / 2 - n * HALF_LOG_2PI - sum_over(log(cov) / 2 * size)
        factor = linalg.cholesky(cov)
        y = linalg.solve_triangular(factor, expand_dims(x - mean, -1), lower=True)[..., 0]
        logdet = sum_over(log(linalg.diagonal(factor)), -1)
        return neg(sum_over(square(y), -1)) / 2 - n * HALF_LOG_2PI - logdet

    @staticmethod
    def pdf(x: Any, mean: Any, cov: Any) -> Array:
        """Return the density at vectors x."""
        return exp(multivariate_normal.logpdf(x, mean, cov))


class dirichlet:  # noqa: N801 - as above
    """The Dirichlet distribution of probabilities that sum to 1.

    >>> import gtrace as gt
    >>> from gtrace.scipy.stats import dirichlet
    >>> gt.round(dirichlet.pdf(gt.array([0.5, 0.5]), gt.array([1., 1.])), 4)
    Array(1., dtype=float32)
    """

    @staticmethod
    def logpdf(x: Any, alpha: Any) -> Array:
        """Return the logarithm of the density at x, probabilities along axis 0."""
        x, alpha = as_arrays("dirichlet.logpdf", x, alpha)
        weights = alpha[(..., *(None,) * (x.ndim - 1))] if x.ndim > 1 else alpha
        norm_ = sum_over(special.gammaln(alpha)) - special.gammaln(sum_over(alpha))
        inside = logical_and(absolute(sum_over(x, 0) - 1) < 1e-5, (x >= 0).all(0))
        return where(inside, sum_over(special.xlogy(weights - 1, x), 0) - norm_, -math.inf)

    @staticmethod
    def pdf(x: Any, alpha: Any) -> Array:
        """Return the density at x."""
        return exp(dirichlet.logpdf(x, alpha))


class multinomial:  # noqa: N801 - as above
    """The multinomial distribution of counts.

    >>> import gtrace as gt
    >>> from gtrace.scipy.stats import multinomial
    >>> multinomial.pmf(gt.array([1., 1.]), 2, gt.array([0.5, 0.5]))
    Array(0.5, dtype=float32)
    """

    @staticmethod
    def logpmf(x: Any, n: Any, p: Any) -> Array:
        """Return the logarithm of the probability of counts x, along the last axis, in n trials."""
        x, n, p = as_arrays("multinomial.logpmf", x, n, p)
        terms = special.gammaln(n + 1) + sum_over(special.xlogy(x, p) - special.gammaln(x + 1), -1)
        return where(equal(sum_over(x, -1), n), terms, -math.inf)

    @staticmethod
    def pmf(x: Any, n: Any, p: Any) -> Array:
        """Return the probability of counts x."""
        return exp(multinomial.logpmf(x, n, p))


def sem(a: Any, axis: int | None = 0, ddof: int = 1) -> Array:
    """Return the standard error of the mean along an axis.

    >>> import gtrace as gt
    >>> from gtrace.scipy.stats import sem
    >>> sem(gt.array([1., 3.]))
    Array(1., dtype=float32)
    """
    x = asarray(a)
    count = x.size if axis is None else x.shape[axis]
    return x.std(axis, ddof=ddof) / math.sqrt(count)
