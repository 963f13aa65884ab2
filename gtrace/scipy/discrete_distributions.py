"""Discrete distributions under SciPy's names."""

from __future__ import annotations

import math
from typing import Any

from gtrace import special
from gtrace.core import ops
from gtrace.core.ops.elementwise import neg
from gtrace.core.ops.operands import as_arrays
from gtrace.core.trace.array import Array
from gtrace.scipy.distribution import HALF_LOG_2PI, Distribution, log1mexp

__all__ = ["bernoulli", "poisson", "geom", "binom", "nbinom", "betabinom"]

_POSITIVE = (0.0, math.inf)


def _probability(p: Array) -> Array:
    return ops.logical_and(p >= 0, p <= 1)


bernoulli = Distribution(
    "bernoulli", lambda k, p: special.xlogy(k, p) + special.xlog1py(1 - k, neg(p)),
    cdf=lambda k, p: ops.where(k < 1, 1 - p, 1.0), sf=lambda k, p: ops.where(k < 1, p, 0.0),
    support=lambda p: (0.0, 1.0), shapes="p", valid=_probability, discrete=True,
)  # fmt: skip
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
    "poisson", lambda k, mu: special.xlogy(k, mu) - mu - special.gammaln(k + 1),
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


def _log_choose(n: Array, k: Array) -> Array:
    """Return the logarithm of the number of ways to choose k of n."""
    return neg(ops.log1p(n)) - special.betaln(n - k + 1, k + 1)


def _binom_below(k: Array, n: Array, p: Array) -> Array:
    inner = k < n
    return ops.where(inner, special.betainc(ops.where(inner, n - k, 1.0), k + 1, 1 - p), 1.0)


def _binom_above(k: Array, n: Array, p: Array) -> Array:
    inner = k < n
    return ops.where(inner, special.betainc(k + 1, ops.where(inner, n - k, 1.0), p), 0.0)


binom = Distribution(
    "binom", lambda k, n, p: _log_choose(n, k) + special.xlogy(k, p) + special.xlog1py(n - k, neg(p)),
    cdf=_binom_below, sf=_binom_above, support=lambda n, p: (0.0, n), shapes="n p",
    valid=lambda n, p: ops.logical_and(n >= 0, _probability(p)), wide=True, discrete=True,
)  # fmt: skip
nbinom = Distribution(
    "nbinom",
    lambda k, n, p: special.xlogy(n, p) + special.xlog1py(k, neg(p)) - special.betaln(k + 1, n) - ops.log(k + n),
    cdf=lambda k, n, p: special.betainc(n, k + 1, p), sf=lambda k, n, p: special.betainc(k + 1, n, 1 - p),
    support=lambda n, p: _POSITIVE, shapes="n p",
    valid=lambda n, p: ops.logical_and(n > 0, ops.logical_and(p > 0, p <= 1)), wide=True, discrete=True,
)  # fmt: skip
betabinom = Distribution(
    "betabinom",
    lambda k, n, a, b: _log_choose(n, k) + special.betaln(k + a, n - k + b) - special.betaln(a, b),
    support=lambda n, a, b: (0.0, n), shapes="n a b",
    valid=lambda n, a, b: ops.logical_and(n >= 0, ops.logical_and(a > 0, b > 0)), wide=True, discrete=True,
)  # fmt: skip
