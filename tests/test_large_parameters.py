"""Densities of distributions with parameters up to 1e12, against mpmath at 50 digits."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import gtrace as gt
from gtrace.scipy import stats
from gtrace.special import gammainc

log, log1p, loggamma = mpmath.log, mpmath.log1p, mpmath.loggamma


def log_beta(a, b):
    return loggamma(a) + loggamma(b) - loggamma(a + b)


def log_choose(n, k):
    return loggamma(n + 1) - loggamma(k + 1) - loggamma(n - k + 1)


FORMULAS = {
    "poisson": lambda k, mu: k * log(mu) - mu - loggamma(k + 1),
    "gamma": lambda z, a: (a - 1) * log(z) - z - loggamma(a),
    "chi2": lambda z, df: (df / 2 - 1) * log(z / 2) - z / 2 - loggamma(df / 2) - log(2),
    "beta": lambda z, a, b: (a - 1) * log(z) + (b - 1) * log1p(-z) - log_beta(a, b),
    "binom": lambda k, n, p: log_choose(n, k) + k * log(p) + (n - k) * log1p(-p),
    "nbinom": lambda k, n, p: loggamma(n + k) - loggamma(k + 1) - loggamma(n) + n * log(p) + k * log1p(-p),
    "betabinom": lambda k, n, a, b: log_choose(n, k) + log_beta(k + a, n - k + b) - log_beta(a, b),
    "t": lambda z, df: (
        loggamma((df + 1) / 2) - loggamma(df / 2) - log(df * mpmath.pi) / 2 - (df + 1) / 2 * log1p(z * z / df)
    ),
}


def cases(name, size):
    """Return arguments at the mode, beside it and far out, and some for a rare event among `size`."""
    for off in (0.0, 1.5, -4.0, 15.0):
        spread = off * size**0.5
        common, rare = float(round(0.3 * size + 0.4 * spread)), off if off > 0 else 7.0
        yield from {
            "poisson": [(size + round(spread), size), (rare // 1, 3.0)],
            "gamma": [(size + spread, size), (rare, 3.0)],
            "chi2": [(2 * size + spread, 2 * size)],
            "beta": [(0.3 + 0.4 * off * size**-0.5, 0.3 * size, 0.7 * size), (rare / size, 2.5, size)],
            "binom": [(common, size, 0.3), (rare // 1, size, 3 / size)],
            "nbinom": [(float(round((7 * size + 4 * spread) / 3)), size, 0.3), (rare // 1, 2.5, 0.1)],
            "betabinom": [(common, size, 0.2 * size, 0.5 * size), (common, size, 2.0, 3.0)],
            "t": [(1.3 + off, size)],
        }[name]


def exact(name, args):
    with mpmath.workdps(50):
        return FORMULAS[name](*map(mpmath.mpf, args))


def moved_by_rounding(name, args, epsilon):
    """Return how far the result moves with the last digit of an argument."""
    counts = getattr(stats, name).discrete
    ups = [[x + x * epsilon * (i == j) for j, x in enumerate(map(mpmath.mpf, args))] for i in range(len(args))]
    return max(float(abs(exact(name, up) - exact(name, args))) for up in ups[counts:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FORMULAS)
def test_densities_keep_their_digits_for_large_parameters(name, dtype):
    epsilon = float(np.finfo(dtype).eps)
    distribution = getattr(stats, name)
    for size in (1e2, 1e6, 1e9, 1e12) if dtype is np.float64 else (1e2, 1e6):
        for args in cases(name, size):
            given = [dtype(x) for x in args]
            with mpmath.workdps(50):
                expected = exact(name, map(float, given))
                bound = 8 * epsilon * max(1.0, abs(float(expected))) + 2 * moved_by_rounding(name, args, 2.0**-53)
            found = (distribution.logpmf if distribution.discrete else distribution.logpdf)(*map(gt.array, given))
            assert abs(float(found) - float(expected)) <= bound, (args, float(found), float(expected))


@pytest.mark.parametrize("name", FORMULAS)
def test_slopes_of_densities_keep_their_digits_for_large_parameters(name):
    distribution = getattr(stats, name)
    function = distribution.logpmf if distribution.discrete else distribution.logpdf
    args = list(cases(name, 1e8))[2]
    for k in range(distribution.discrete, len(args)):
        found = float(gt.grad(function, argnums=k)(*[gt.array(np.float64(x)) for x in args]))
        with mpmath.workdps(50):
            step = mpmath.mpf(args[k]) * mpmath.mpf(10) ** -18
            up, down = ([*args[:k], args[k] + sign * step, *args[k + 1 :]] for sign in (1, -1))
            expected = float((exact(name, up) - exact(name, down)) / (2 * step))
        # what is left of t by df is 1e-16 of two terms that cancel
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-17 if name == "t" else 0)


def test_densities_of_vectors_keep_their_digits_for_large_parameters():
    for size in (1e2, 1e6, 1e9, 1e12):
        off = np.array([1.0, -2.0, 1.0]) * size**0.5
        p = np.array([0.25, 0.25, 0.5])
        x, z = np.round(size * p + off), p + np.round(off / size / 30 * 2**30) / 2**30
        with mpmath.workdps(50):
            terms = [k * log(q) - loggamma(k + 1) for k, q in zip(map(mpmath.mpf, x), p, strict=True)]
            counts = loggamma(mpmath.mpf(size) + 1) + sum(terms)
            terms = [(a - 1) * log(q) - loggamma(a) for a, q in zip(map(mpmath.mpf, size * p), z, strict=True)]
            parts = loggamma(mpmath.mpf(size)) + sum(terms)
        np.testing.assert_allclose(float(stats.multinomial.logpmf(x, size, p)), float(counts), rtol=1e-10)
        np.testing.assert_allclose(float(stats.dirichlet.logpdf(z, size * p)), float(parts), rtol=1e-10)


def test_slopes_at_the_ends_of_ranges():
    for function, x, expected in (
        (lambda mu: stats.poisson.logpmf(0.0, mu), 0.0, -1.0),
        (lambda z: stats.gamma.logpdf(z, 1.0), 0.0, -1.0),
        (lambda p: stats.binom.logpmf(0.0, 3.0, p), 0.0, -3.0),
        (lambda p: stats.binom.logpmf(3.0, 3.0, p), 1.0, 3.0),
    ):
        assert float(gt.grad(function)(x)) == expected


@pytest.mark.parametrize("a", [1e3, 1e6, 1e9])
def test_slopes_of_the_incomplete_gamma_function_for_large_parameters(a):
    for x in (a - 3 * a**0.5, a + a**0.5 / 2):
        with mpmath.workdps(40):
            expected = mpmath.exp((mpmath.mpf(a) - 1) * log(x) - x - loggamma(a))
        wide = gt.array(np.array([a, x]))
        found = gt.grad(lambda z: gammainc(wide[0], z))(wide[1])  # noqa: B023
        np.testing.assert_allclose(float(found), float(expected), rtol=1e-13)


def test_densities_at_the_ends_of_ranges_with_large_parameters():
    for name, args, expected in (
        ("beta", (0.0, 20.0, 30.0), -np.inf), ("beta", (1.0, 20.0, 30.0), -np.inf), ("gamma", (0.0, 20.0), -np.inf),
        ("poisson", (20.0, 0.0), -np.inf), ("binom", (20.0, 40.0, 1.0), -np.inf), ("binom", (40.0, 40.0, 1.0), 0.0),
        ("nbinom", (0.0, 30.0, 1.0), 0.0), ("nbinom", (20.0, 30.0, 1.0), -np.inf),
    ):  # fmt: skip
        distribution = getattr(stats, name)
        function = distribution.logpmf if distribution.discrete else distribution.logpdf
        assert float(function(*(gt.array(np.float64(x)) for x in args))) == expected
