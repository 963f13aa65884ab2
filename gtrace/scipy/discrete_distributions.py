"""Discrete distributions under SciPy's names."""

from __future__ import annotations

import math
from typing import Any

from gtrace import special
from gtrace.extend import Array, as_arrays, ops
from gtrace.scipy.distribution import HALF_LOG_2PI, Distribution, log1mexp
from gtrace.special.gamma_functions import log_density

neg = ops.negative

__all__ = ["bernoulli", "poisson", "geom", "binom", "nbinom", "betabinom"]

_POSITIVE = (0.0, math.inf)


def _probability(p: Array) -> Array:
    return ops.logical_and(p >= 0, p <= 1)


bernoulli = Distribution(
    "bernoulli", lambda k, p: special.xlogy(k, p) + special.xlog1py(1 - k, neg(p)),
    cdf=lambda k, p: ops.where(k < 1, 1 - p, 1.0), sf=lambda k, p: ops.where(k < 1, p, 0.0),
    support=lambda p: (0.0, 1.0), shapes="p", valid=_probability, discrete=True,
)  # fmt: skip


def _log_poisson(k: Array, mean: Array) -> Array:
    """Return k * log(mean) - mean - log(k!)."""
    return log_density(ops, special.gammaln, k + 1, mean)


def _log_binom(k: Array, others: Array, p: Array) -> Array:
    """Return the logarithm of the probability of k of k + `others`, whose mean is a part p."""
    n = k + others
    return _log_poisson(k, n * p) + _log_poisson(others, n * (1 - p)) - _log_poisson(n, n)


_NEAR = 60.0
"""Up to this mean, the terms of the entropy are added."""


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
        near = ops.where(small & (mean > 0), mean, 1.0)[..., None]
        k = ops.arange(4 * int(_NEAR), dtype=mean.aval.dtype)
        logs = self._logpdf(k, near)
        near_sum = neg((ops.exp(logs) * logs).sum(-1))
        far = ops.where(small, _NEAR, mean)
        series = ops.log(far) / 2 + 0.5 + HALF_LOG_2PI - (1 / far + (0.5 + 19 / 30 / far) / ops.square(far)) / 12
        found = ops.where(small, ops.where(mean > 0, near_sum, 0.0), series)
        return ops.where(mean < 0, math.nan, found)


poisson = _Poisson(
    "poisson", _log_poisson,
    cdf=lambda k, mu: special.gammaincc(k + 1, mu), sf=lambda k, mu: special.gammainc(k + 1, mu),
    support=lambda mu: _POSITIVE, shapes="mu", valid=lambda mu: mu >= 0, wide=True, discrete=True,
)  # fmt: skip
geom = Distribution(
    "geom", lambda k, p: special.xlog1py(k - 1, neg(p)) + ops.log(p), logsf=lambda k, p: special.xlog1py(k, neg(p)),
    cdf=lambda k, p: neg(ops.expm1(special.xlog1py(k, neg(p)))),
    logcdf=lambda k, p: log1mexp(neg(special.xlog1py(k, neg(p)))),
    support=lambda p: (1.0, math.inf), shapes="p", valid=lambda p: ops.logical_and(p > 0, p <= 1), wide=True,
    discrete=True,
)  # fmt: skip


def _binom_below(k: Array, n: Array, p: Array) -> Array:
    inner = k < n
    return ops.where(inner, special.betaincc(k + 1, ops.where(inner, n - k, 1.0), p), 1.0)


def _binom_above(k: Array, n: Array, p: Array) -> Array:
    inner = k < n
    return ops.where(inner, special.betainc(k + 1, ops.where(inner, n - k, 1.0), p), 0.0)


binom = Distribution(
    "binom", lambda k, n, p: _log_binom(k, n - k, p),
    cdf=_binom_below, sf=_binom_above, support=lambda n, p: (0.0, n), shapes="n p",
    valid=lambda n, p: ops.logical_and(n >= 0, _probability(p)), wide=True, discrete=True,
)  # fmt: skip
nbinom = Distribution(
    "nbinom", lambda k, n, p: _log_binom(n, k, p) + ops.log(n / (n + k)),
    cdf=lambda k, n, p: special.betainc(n, k + 1, p), sf=lambda k, n, p: special.betaincc(n, k + 1, p),
    support=lambda n, p: _POSITIVE, shapes="n p",
    valid=lambda n, p: ops.logical_and(n > 0, ops.logical_and(p > 0, p <= 1)), wide=True, discrete=True,
)  # fmt: skip


def _log_betabinom(k: Array, n: Array, a: Array, b: Array) -> Array:
    """Return the logarithm of the probability, by three binomial ones of any p. With this p none is far out."""
    first, second = k + a, n - k + b
    p = ops.stop_gradient(first / (first + second))
    three = _log_binom(k, n - k, p) + _log_binom(a, b, p) - _log_binom(first, second, p)
    return three + ops.log(a / first) + ops.log(b / second) - ops.log((a + b) / (first + second))


betabinom = Distribution(
    "betabinom", _log_betabinom,
    support=lambda n, a, b: (0.0, n), shapes="n a b",
    valid=lambda n, a, b: ops.logical_and(n >= 0, ops.logical_and(a > 0, b > 0)), wide=True, discrete=True,
)  # fmt: skip
