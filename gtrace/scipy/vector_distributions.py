"""Distributions of vectors under SciPy's names."""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace import special
from gtrace.extend import Array, as_arrays, cast, ops
from gtrace.numpy import linalg
from gtrace.scipy.distribution import HALF_LOG_2PI
from gtrace.special.gamma_functions import log_density

neg = ops.negative

__all__ = ["multivariate_normal", "dirichlet", "multinomial"]


class multivariate_normal:  # noqa: N801 - SciPy's name of a distribution
    """The normal distribution of vectors.

    >>> from gtrace.scipy.stats import multivariate_normal
    >>> multivariate_normal.logpdf(gt.zeros(2), gt.zeros(2), gt.eye(2))
    Array(-1.837877, dtype=float32)
    """

    @staticmethod
    def logpdf(x: Any, mean: Any, cov: Any) -> Array:
        """Return the logarithm of the density at vectors x, of shape (..., n), for a covariance (n, n), (n,) or ()."""
        x, mean, cov = as_arrays("multivariate_normal.logpdf", x, mean, cov)
        if not mean.shape:
            return neg(ops.square(x - mean)) / (2 * cov) - (HALF_LOG_2PI + ops.log(cov) / 2)
        n = mean.shape[-1]
        if cov.ndim < 2:
            size = n if not cov.shape else 1
            return (
                neg(ops.sum(ops.square(x - mean) / cov, -1)) / 2 - n * HALF_LOG_2PI - ops.sum(ops.log(cov) / 2 * size)
            )
        factor = linalg.cholesky(cov)
        y = linalg.solve_triangular(factor, ops.expand_dims(x - mean, -1), lower=True)[..., 0]
        logdet = ops.sum(ops.log(linalg.diagonal(factor)), -1)
        return neg(ops.sum(ops.square(y), -1)) / 2 - n * HALF_LOG_2PI - logdet

    @staticmethod
    def pdf(x: Any, mean: Any, cov: Any) -> Array:
        """Return the density at vectors x."""
        return ops.exp(multivariate_normal.logpdf(x, mean, cov))


class dirichlet:  # noqa: N801 - as above
    """The Dirichlet distribution of probabilities that sum to 1.

    >>> from gtrace.scipy.stats import dirichlet
    >>> gt.round(dirichlet.pdf(gt.array([0.5, 0.5]), gt.array([1., 1.])), 4)
    Array(1., dtype=float32)
    """

    @staticmethod
    def logpdf(x: Any, alpha: Any) -> Array:
        """Return the logarithm of the density at x, probabilities along axis 0, of which the last may be left out."""
        x, alpha = as_arrays("dirichlet.logpdf", x, alpha)
        if x.shape[0] + 1 == alpha.shape[0]:
            x = ops.concat([x, 1 - ops.sum(x, 0, keepdims=True)])
        kind = x.aval.dtype
        x, alpha = cast(x, torch.float64), cast(alpha, torch.float64)
        weights = alpha[(..., *(None,) * (x.ndim - 1))] if x.ndim > 1 else alpha
        total, left = ops.sum(alpha), ops.sum(x, 0) - 1
        # as densities of gamma at the means: the terms of the formula itself are far larger than their sum
        apart = ops.sum(log_density(ops, special.gammaln, weights, total * x), 0)
        whole = log_density(ops, special.gammaln, total, total) - (alpha.shape[0] - 1) * ops.log(total)
        inside = ops.logical_and(ops.absolute(left) < 1e-5, (x >= 0).all(0))
        return cast(ops.where(inside, apart + total * left - whole, -math.inf), kind)

    @staticmethod
    def pdf(x: Any, alpha: Any) -> Array:
        """Return the density at x."""
        return ops.exp(dirichlet.logpdf(x, alpha))


class multinomial:  # noqa: N801 - as above
    """The multinomial distribution of counts.

    >>> from gtrace.scipy.stats import multinomial
    >>> multinomial.pmf(gt.array([1., 1.]), 2, gt.array([0.5, 0.5]))
    Array(0.5, dtype=float32)
    """

    @staticmethod
    def logpmf(x: Any, n: Any, p: Any) -> Array:
        """Return the logarithm of the probability of counts x, along the last axis, in n trials."""
        x, n, p = as_arrays("multinomial.logpmf", x, n, p)
        kind = x.aval.dtype
        x, n, p = (cast(z, torch.float64) for z in (x, n, p))
        # as probabilities of Poisson's distributions, as above
        apart = ops.sum(log_density(ops, special.gammaln, x + 1, n[..., None] * p), -1)
        terms = apart + n * (ops.sum(p, -1) - 1) - log_density(ops, special.gammaln, n + 1, n)
        return cast(ops.where(ops.equal(ops.sum(x, -1), n), terms, -math.inf), kind)

    @staticmethod
    def pmf(x: Any, n: Any, p: Any) -> Array:
        """Return the probability of counts x."""
        return ops.exp(multinomial.logpmf(x, n, p))
