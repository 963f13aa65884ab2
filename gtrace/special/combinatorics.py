"""Special functions made of the gamma function and of powers: binomials, Pochhammer's symbol, Box and Cox's powers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy

from gtrace.core import ops
from gtrace.core.ops.operands import as_arrays
from gtrace.core.trace.array import Array
from gtrace.special.gamma_functions import gammaln

__all__ = ["bernoulli", "boxcox", "boxcox1p", "comb", "gammasgn", "loggamma", "poch"]

loggamma = gammaln


def gammasgn(x: Any) -> Array:
    """Return the sign of the gamma function; NaN at its poles below 0.

    >>> gt.special.gammasgn(gt.array([1.5, -0.5])).tolist()
    [1.0, -1.0]
    """
    (x,) = as_arrays("gammasgn", x)
    whole = ops.floor(x)
    odd = ops.equal(ops.remainder(whole, 2.0), 1.0)
    below = ops.less(x, 0.0)
    pole = ops.logical_and(below, ops.equal(whole, x))
    return ops.where(pole, numpy.nan, ops.where(ops.logical_and(below, odd), -1.0, 1.0 + 0.0 * whole))


def poch(z: Any, m: Any) -> Array:
    """Return gamma(z + m) / gamma(z), the product z (z + 1) ... (z + m - 1) for whole m.

    >>> gt.round(gt.special.poch(2.0, 3.0), 3)
    Array(24., dtype=float32)
    """
    z, m = as_arrays("poch", z, m)
    value = ops.multiply(gammasgn(z) * gammasgn(z + m), ops.exp(ops.subtract(gammaln(z + m), gammaln(z))))
    pole = ops.logical_and(ops.equal(m, 0.0), ops.logical_and(ops.less_equal(z, 0.0), ops.equal(ops.floor(z), z)))
    return ops.where(pole, 1.0, value)


def comb(N: Any, k: Any, *, repetition: bool = False) -> Array:  # noqa: N803 - SciPy's name
    """Return the number of ways to choose k of N; with `repetition`, each may be chosen again.

    >>> gt.special.comb(5, 2)
    Array(10., dtype=float32)
    """
    n, k = as_arrays("comb", N, k)
    if repetition:
        return comb(n + k - 1, k)
    none = ops.logical_or(ops.logical_or(ops.less(k, 0), ops.less(n, 0)), ops.greater(k, n))
    k, n = ops.where(none, 0.0, k), ops.where(none, 0.0, n)
    value = ops.exp(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
    whole = ops.logical_and(ops.equal(ops.floor(n), n), ops.equal(ops.floor(k), k))
    return ops.where(none, 0.0, ops.where(whole, ops.round(value), value))


def boxcox(x: Any, lmbda: Any) -> Array:
    """Return (x ** lmbda - 1) / lmbda, or log(x) where lmbda is 0.

    >>> gt.round(gt.special.boxcox(3.0, 2.0), 4)
    Array(4., dtype=float32)
    """
    x, power = as_arrays("boxcox", x, lmbda)
    return _boxcox(ops.log(x), power)


def boxcox1p(x: Any, lmbda: Any) -> Array:
    """Return ``boxcox(1 + x, lmbda)``, exact for small x.

    >>> gt.round(gt.special.boxcox1p(2.0, 1.0), 4)
    Array(2., dtype=float32)
    """
    x, power = as_arrays("boxcox1p", x, lmbda)
    return _boxcox(ops.log1p(x), power)


def _boxcox(logarithm: Array, power: Array) -> Array:
    none = ops.equal(power, 0.0)
    safe = ops.where(none, 1.0, power)
    return ops.where(none, logarithm, ops.divide(ops.expm1(ops.multiply(safe, logarithm)), safe))


def bernoulli(n: int) -> Array:
    """Return the Bernoulli numbers B0 to Bn, at least two.

    >>> gt.round(gt.special.bernoulli(2), 4).tolist()
    [1.0, -0.5, 0.16670000553131104]
    """
    row: list[Fraction] = []
    out = []
    for m in range(max(int(n), 1) + 1):  # the triangle of Akiyama and Tanigawa
        row.append(Fraction(1, m + 1))
        for j in range(m, 0, -1):
            row[j - 1] = j * (row[j - 1] - row[j])
        out.append(-0.5 if m == 1 else float(row[0]))
    return ops.array(numpy.array(out, numpy.float32))
