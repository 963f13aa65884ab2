"""Densities that are estimated from samples."""

from __future__ import annotations

import math
from typing import Any

from gtrace.extend import Array, as_arrays, ops, promote_arrays
from gtrace.numpy import linalg
from gtrace.random.continuous import normal
from gtrace.random.discrete import choice
from gtrace.random.keys import split

neg = ops.negative

__all__ = ["gaussian_kde"]


class gaussian_kde:  # noqa: N801 - SciPy's name
    """A density from samples: a normal distribution around each.

    Args:
        dataset: (dimensions, samples), or samples alone.
        bw_method: the factor of the samples' deviation: "scott", "silverman", or a number.
        weights: of the samples.

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
        self.weights = raw / ops.sum(raw)
        self.neff = 1.0 / ops.sum(self.weights * self.weights)
        if bw_method in (None, "scott"):
            self.factor: Any = ops.power(self.neff, -1.0 / (self.d + 4))
        elif bw_method == "silverman":
            self.factor = ops.power(self.neff * (self.d + 2) / 4.0, -1.0 / (self.d + 4))
        else:
            self.factor = bw_method
        centred = self.dataset - (self.dataset @ self.weights)[:, None]
        spread = (centred * self.weights) @ centred.mT / (1 - ops.sum(self.weights * self.weights))
        self.covariance = spread * self.factor**2
        self._factor = linalg.cholesky(self.covariance)

    def logpdf(self, x: Any) -> Array:
        """Return the logarithm of the density at points (dimensions, points), or points alone."""
        points, data = promote_arrays("gaussian_kde", x, self.dataset, floating=True)
        points = points.reshape((self.d, -1))
        apart = ops.expand_dims(points, 2) - ops.expand_dims(data, 1)
        white = linalg.solve_triangular(self._factor, apart.reshape((self.d, -1)), lower=True)
        energy = ops.sum(white * white, 0).reshape((points.shape[1], self.n)) * 0.5
        norm = ops.sum(ops.log(linalg.diagonal(self._factor))) + 0.5 * self.d * math.log(2 * math.pi)
        return ops.logsumexp(neg(energy), 1, b=self.weights) - norm

    def pdf(self, x: Any) -> Array:
        """Return the density at points."""
        return ops.exp(self.logpdf(x))

    evaluate = __call__ = pdf

    def resample(self, key: Any, shape: tuple[int, ...] = ()) -> Array:
        """Return samples of the density, (dimensions, *shape)."""
        first, second = split(key)
        chosen = choice(first, self.n, shape, p=self.weights)
        noise = normal(second, (self.d, math.prod(shape)), self.dataset.dtype)
        return self.dataset[:, chosen] + (self._factor @ noise).reshape((self.d, *shape))
