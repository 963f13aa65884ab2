"""Distributions beside those of `stats`, ranks, modes and kernel densities."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gtrace import special
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops.arg_reduce import argmax
from gtrace.core.ops.create import asarray
from gtrace.core.ops.elementwise import absolute, cos, divide, exp, log, log1p, multiply, neg, power, sign, subtract
from gtrace.core.ops.index import take_along_axis
from gtrace.core.ops.join_split import concat
from gtrace.core.ops.log_sums import logsumexp
from gtrace.core.ops.logic import equal, less, less_equal, not_equal
from gtrace.core.ops.promote import as_arrays, promote_arrays
from gtrace.core.ops.reduce import sum as sum_over
from gtrace.core.ops.scans import cumsum
from gtrace.core.ops.shape import expand_dims, ravel
from gtrace.core.trace.array import Array
from gtrace.numpy import linalg
from gtrace.numpy.functional import apply_along_axis
from gtrace.random.continuous import normal
from gtrace.random.discrete import choice
from gtrace.random.keys import split
from gtrace.scipy.distribution import Distribution
from gtrace.special.bessel_functions import i0e

__all__ = ["ModeResult", "betabinom", "gaussian_kde", "gennorm", "mode", "rankdata", "vonmises", "wrapcauchy"]

gennorm = Distribution(
    "gennorm", lambda z, beta: log(0.5 * beta) - special.gammaln(1.0 / beta) - power(absolute(z), beta),
    cdf=lambda z, beta: 0.5 + 0.5 * sign(z) * special.gammainc(1.0 / beta, power(absolute(z), beta)), shapes="beta",
)  # fmt: skip
vonmises = Distribution(
    "vonmises", lambda z, kappa: multiply(kappa, cos(z) - 1) - log(2 * math.pi * i0e(kappa)), shapes="kappa"
)
wrapcauchy = Distribution(
    "wrapcauchy", lambda z, c: log1p(neg(c * c)) - log(2 * math.pi * (1 + c * c - 2 * c * cos(z))),
    support=lambda c: (0.0, 2 * math.pi), shapes="c",
)  # fmt: skip
betabinom = Distribution(
    "betabinom",
    lambda k, n, a, b: neg(log1p(n)) - special.betaln(n - k + 1, k + 1) + special.betaln(k + a, n - k + b)
    - special.betaln(a, b),
    support=lambda n, a, b: (0.0, n), shapes="n a b", discrete=True,
)  # fmt: skip


class ModeResult(NamedTuple):
    """What `mode` returns."""

    mode: Array
    count: Array  # type: ignore[assignment] # SciPy's name, which hides the tuple's method


def mode(a: Any, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False) -> ModeResult:
    """Return the most frequent value along an axis, of equally frequent ones the smallest, and how often it comes.

    >>> import gtrace as gt
    >>> from gtrace.scipy.stats import mode
    >>> mode(gt.array([3., 1., 3., 1.])).mode
    Array(1., dtype=float32)
    """
    if nan_policy != "propagate":
        raise ArgumentError(message("mode", "propagate as nan_policy", repr(nan_policy), "Remove NaN before."))
    x = asarray(a)
    shape = x.shape
    if axis is None:
        x, axis = ravel(x), 0
    x = x.swapaxes(axis, -1).sort(-1) if x.ndim > 1 else x.sort(-1)
    counts = sum_over(equal(x[..., :, None], x[..., None, :]).astype("int32"), -1)
    place = argmax(counts, -1, keepdims=True)
    from_sorted = [take_along_axis(y, place, -1) for y in (x, counts)]
    if not keepdims:
        return ModeResult(*[y[..., 0] for y in from_sorted])
    if len(shape) != x.ndim:
        return ModeResult(*[y.reshape((1,) * len(shape)) for y in from_sorted])
    return ModeResult(*[y.swapaxes(axis, -1) for y in from_sorted])


def rankdata(a: Any, method: str = "average", *, axis: int | None = None) -> Array:
    """Return the ranks of the elements, from 1. Equal ones share the average, least or most of theirs.

    Args:
        method: "average", "min", "max", "dense" (ranks without gaps) or "ordinal" (in the order of their places).

    >>> import gtrace as gt
    >>> from gtrace.scipy.stats import rankdata
    >>> rankdata(gt.array([0., 2., 3., 2.]))
    Array([1. , 2.5, 4. , 2.5], dtype=float32)
    """
    x = asarray(a)
    if axis is None:
        x, axis = ravel(x), 0
    if method not in ("average", "min", "max", "dense", "ordinal"):
        expected = "average, min, max, dense or ordinal as method"
        raise ArgumentError(message("rankdata", expected, repr(method), "Pass one of them."))
    return apply_along_axis(lambda row: _ranks(row, method), axis, x)


def _ranks(row: Array, method: str) -> Array:
    order = row.argsort()
    place = order.argsort()
    if method == "ordinal":
        return place + 1
    sorted_ = row[order]
    fresh = concat([asarray([True]), not_equal(sorted_[1:], sorted_[:-1])])
    dense = cumsum(fresh.astype("int32"))[place]
    if method == "dense":
        return dense
    least = sum_over(less(row[None, :], row[:, None]).astype("int32"), 1) + 1
    most = sum_over(less_equal(row[None, :], row[:, None]).astype("int32"), 1)
    return least if method == "min" else most if method == "max" else (least + most) * 0.5


class gaussian_kde:  # noqa: N801 - SciPy's name
    """A density from samples: a normal distribution around each.

    Args:
        dataset: (dimensions, samples), or samples alone.
        bw_method: the factor of the samples' deviation: "scott", "silverman", or a number.
        weights: of the samples.

    >>> import gtrace as gt
    >>> from gtrace.scipy.stats import gaussian_kde
    >>> gaussian_kde(gt.array([-1., 0., 1.])).evaluate(gt.array([0.])).shape
    (1,)
    """

    def __init__(self, dataset: Any, bw_method: Any = None, weights: Any = None) -> None:
        (x,) = as_arrays("gaussian_kde", dataset)
        self.dataset = x[None, :] if x.ndim == 1 else x
        self.d, self.n = self.dataset.shape
        ones_ = self.dataset[0] * 0 + 1
        (raw,) = as_arrays("gaussian_kde", ones_ if weights is None else weights)
        self.weights = divide(raw, sum_over(raw))
        self.neff = 1.0 / sum_over(self.weights * self.weights)
        if bw_method in (None, "scott"):
            self.factor: Any = power(self.neff, -1.0 / (self.d + 4))
        elif bw_method == "silverman":
            self.factor = power(self.neff * (self.d + 2) / 4.0, -1.0 / (self.d + 4))
        else:
            self.factor = bw_method
        centred = self.dataset - (self.dataset @ self.weights)[:, None]
        spread = (centred * self.weights) @ centred.mT / (1 - sum_over(self.weights * self.weights))
        self.covariance = spread * self.factor**2
        self._factor = linalg.cholesky(self.covariance)

    def logpdf(self, x: Any) -> Array:
        """Return the logarithm of the density at points (dimensions, points), or points alone."""
        points, data = promote_arrays("gaussian_kde", x, self.dataset, floating=True)
        points = points.reshape((self.d, -1))
        apart = expand_dims(points, 2) - expand_dims(data, 1)
        white = linalg.solve_triangular(self._factor, apart.reshape((self.d, -1)), lower=True)
        energy = sum_over(white * white, 0).reshape((points.shape[1], self.n)) * 0.5
        norm = sum_over(log(linalg.diagonal(self._factor))) + 0.5 * self.d * math.log(2 * math.pi)
        return subtract(logsumexp(neg(energy), 1, b=self.weights), norm)

    def pdf(self, x: Any) -> Array:
        """Return the density at points."""
        return exp(self.logpdf(x))

    evaluate = __call__ = pdf

    def resample(self, key: Any, shape: tuple[int, ...] = ()) -> Array:
        """Return samples of the density, (dimensions, *shape)."""
        first, second = split(key)
        chosen = choice(first, self.n, shape, p=self.weights)
        noise = normal(second, (self.d, math.prod(shape)), self.dataset.dtype)
        return self.dataset[:, chosen] + (self._factor @ noise).reshape((self.d, *shape))
