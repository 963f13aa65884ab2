"""Distributions under SciPy's names: densities and distribution functions, with their location and scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gtrace import special
from gtrace.errors import ArgumentError, message
from gtrace.numpy import linalg
from gtrace.ops.activations import sigmoid, softplus
from gtrace.ops.create import asarray
from gtrace.ops.elementwise import (
    absolute,
    arctan,
    divide,
    exp,
    expm1,
    floor,
    log,
    log1p,
    multiply,
    neg,
    square,
    subtract,
    tan,
)
from gtrace.ops.logic import equal, greater, less, logical_and, logical_or, where
from gtrace.ops.promote import as_arrays
from gtrace.ops.reduce import sum as sum_over
from gtrace.ops.shape import expand_dims
from gtrace.trace.array import Array

__all__ = [
    "Distribution", "bernoulli", "beta", "binom", "cauchy", "chi2", "dirichlet", "expon", "gamma", "geom", "gumbel_l",
    "gumbel_r", "laplace", "logistic", "multinomial", "multivariate_normal", "nbinom", "norm", "pareto", "poisson",
    "sem", "t", "truncnorm", "uniform",
]  # fmt: skip

Function = Callable[..., Any]
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def _after(outer: Function, inner: Function | None) -> Function | None:
    return None if inner is None else lambda *args: outer(inner(*args))


def _first(*functions: Function | None) -> Function | None:
    return next((function for function in functions if function is not None), None)


def _rest(p: Array) -> Array:
    return subtract(1.0, p)


class Distribution:
    """A distribution of numbers. The methods take x or a probability, the shape parameters, `loc` and `scale`.

    Args:
        name: SciPy's.
        logpdf: of the standard form, from (z, *shape parameters); of counts, the logarithm of the probability of k.
        cdf, sf: the probabilities of at most z, and of more.
        logcdf, logsf: their logarithms.
        ppf: the inverse of `cdf`.
        support: from shape parameters to the ends of the range outside which the density is 0.
        shapes: the names of the shape parameters.
        discrete: the numbers are integers, there is a `loc` and no `scale`.

    >>> import gtrace as gt
    >>> from gtrace.scipy.stats import norm
    >>> norm.logpdf(gt.array([0., 1.]))
    Array([-0.9189385, -1.4189385], dtype=float32)
    >>> norm.cdf(2.0, loc=2.0, scale=3.0)
    Array(0.5, dtype=float32)
    """

    def __init__(
        self,
        name: str,
        logpdf: Function,
        *,
        cdf: Function | None = None,
        sf: Function | None = None,
        logcdf: Function | None = None,
        logsf: Function | None = None,
        ppf: Function | None = None,
        support: Function | None = None,
        shapes: str = "",
        discrete: bool = False,
    ) -> None:
        self.name, self.shapes, self.discrete = name, tuple(shapes.split()), discrete
        self._logpdf, self._support, self._ppf = logpdf, support, ppf
        self._cdf = _first(cdf, _after(exp, logcdf), _after(_rest, sf), _after(_rest, _after(exp, logsf)))
        self._sf = _first(sf, _after(exp, logsf), _after(_rest, cdf), _after(_rest, _after(exp, logcdf)))
        self._logcdf = _first(logcdf, _after(log, self._cdf))
        self._logsf = _first(logsf, _after(log, self._sf))

    def __repr__(self) -> str:
        return f"<distribution {self.name}>"

    def _arguments(self, method: str, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Array], Array, Array]:
        """Return the shape parameters, the location and the scale."""
        names = (*self.shapes, "loc") if self.discrete else (*self.shapes, "loc", "scale")
        given = {**dict(zip(names, args, strict=False)), **named}
        twice = [name for name in names[: len(args)] if name in named]
        if len(args) > len(names) or twice or set(given) - set(names) or set(self.shapes) - set(given):
            got = f"{len(args)} parameters" + (f" and {', '.join(named)}" if named else "")
            raise ArgumentError(
                message(f"{self.name}.{method}", ", ".join(names), got, "loc and scale may be left out.")
            )
        return [given[name] for name in self.shapes], given.get("loc", 0.0), given.get("scale", 1.0)

    def _call(self, method: str, function: Function | None, x: Any, args: Any, named: Any, low: Any, high: Any) -> Any:
        if function is None:
            got = f"{self.name}.{method}"
            raise ArgumentError(message(got, "a function that is there", "none", "It has no closed form here."))
        shapes, loc, scale = self._arguments(method, args, named)
        x, loc, scale, *shapes = as_arrays(f"{self.name}.{method}", x, loc, scale, *shapes)
        z = divide(subtract(x, loc), scale)
        if self.discrete and method not in ("logpmf", "pmf"):
            z = floor(z)
        out = function(z, *shapes)
        if method in ("logpdf", "pdf"):
            out = subtract(out, log(scale))
        if self._support is not None:
            start, end = self._support(*shapes)
            below, above = less(z, start), greater(z, end)
            if method in ("logpmf", "pmf"):
                below = logical_or(below, subtract(z, floor(z)) != 0)
            out = where(below, low, where(above, high, out))
        return out

    def logpdf(self, x: Any, *args: Any, **named: Any) -> Array:
        """Return the logarithm of the density at x."""
        return self._call("logpdf", self._logpdf, x, args, named, -math.inf, -math.inf)

    def pdf(self, x: Any, *args: Any, **named: Any) -> Array:
        """Return the density at x."""
        return exp(self.logpdf(x, *args, **named))

    def logpmf(self, k: Any, *args: Any, **named: Any) -> Array:
        """Return the logarithm of the probability of k; of anything but an integer in the range it is -inf."""
        return self._call("logpmf", self._logpdf, k, args, named, -math.inf, -math.inf)

    def pmf(self, k: Any, *args: Any, **named: Any) -> Array:
        """Return the probability of k."""
        return exp(self.logpmf(k, *args, **named))

    def cdf(self, x: Any, *args: Any, **named: Any) -> Array:
        """Return the probability of at most x."""
        return self._call("cdf", self._cdf, x, args, named, 0.0, 1.0)

    def sf(self, x: Any, *args: Any, **named: Any) -> Array:
        """Return the probability of more than x."""
        return self._call("sf", self._sf, x, args, named, 1.0, 0.0)

    def logcdf(self, x: Any, *args: Any, **named: Any) -> Array:
        """Return the logarithm of the probability of at most x."""
        return self._call("logcdf", self._logcdf, x, args, named, -math.inf, 0.0)

    def logsf(self, x: Any, *args: Any, **named: Any) -> Array:
        """Return the logarithm of the probability of more than x."""
        return self._call("logsf", self._logsf, x, args, named, 0.0, -math.inf)

    def ppf(self, q: Any, *args: Any, **named: Any) -> Array:
        """Return the number of which at most a part q of all lies below."""
        return self._quantile("ppf", q, args, named)

    def isf(self, q: Any, *args: Any, **named: Any) -> Array:
        """Return the number of which a part q of all lies above."""
        return self._quantile("isf", subtract(1.0, asarray(q)), args, named)

    def _quantile(self, method: str, q: Any, args: Any, named: Any) -> Array:
        if self._ppf is None:
            got = f"{self.name}.{method}"
            raise ArgumentError(message(got, "a function that is there", "none", "It has no closed form here."))
        shapes, loc, scale = self._arguments(method, args, named)
        q, loc, scale, *shapes = as_arrays(f"{self.name}.{method}", q, loc, scale, *shapes)
        return self._ppf(q, *shapes) * scale + loc


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
poisson = Distribution(
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
