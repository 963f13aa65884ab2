"""Special functions made of the gamma function and of powers: binomials, Pochhammer's symbol, Box and Cox's powers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.ops.operands import as_arrays, cast
from gtrace.core.trace.array import Array
from gtrace.core.trace.promotion import default_dtype
from gtrace.special.gamma_functions import betaln, gammaln, whole_below

__all__ = ["bernoulli", "boxcox", "boxcox1p", "comb", "gammasgn", "loggamma", "poch"]


_FAR = 10.0
"""Beyond it the difference of two logarithms is taken from the beta function, which has no large terms."""


def loggamma(x: Any) -> Array:
    """Return the logarithm of the gamma function; NaN for negative numbers, where it is complex.

    >>> import gtrace as gt
    >>> gt.special.loggamma(gt.array([-0.5, 1.0]))
    Array([nan,  0.], dtype=float32)
    """
    (x,) = as_arrays("loggamma", x)
    return ops.where(ops.less(x, 0.0), numpy.nan, gammaln(x))


def gammasgn(x: Any) -> Array:
    """Return the sign of the gamma function; NaN at its poles below 0.

    >>> gt.special.gammasgn(gt.array([1.5, -0.5])).tolist()
    [1.0, -1.0]
    """
    (x,) = as_arrays("gammasgn", x)
    odd = ops.logical_and(ops.less(x, 0.0), ops.equal(ops.floor(x) % 2.0, 1.0))
    pole = ops.logical_and(whole_below(x), ops.not_equal(x, 0.0))
    sign = ops.where(ops.equal(x, 0.0), ops.copysign(1.0, x), ops.where(odd, -1.0, 1.0))
    return ops.where(ops.logical_or(pole, ops.isnan(x)), numpy.nan, sign)


def poch(z: Any, m: Any) -> Array:
    """Return gamma(z + m) / gamma(z), the product z (z + 1) ... (z + m - 1) for whole m.

    >>> gt.round(gt.special.poch(2.0, 3.0), 3)
    Array(24., dtype=float32)
    """
    z, m = as_arrays("poch", z, m)
    kind = z.aval.dtype
    z, m = cast(z, torch.float64), cast(m, torch.float64)  # the terms are much larger than their difference
    end = z + m
    below, end_below = whole_below(z), whole_below(end)
    poles = ops.logical_or(below, end_below)
    both = ops.logical_and(below, end_below)
    # by reflection the quotient of two poles is one of finite numbers
    start, stop = (
        ops.where(both, 1.0 - end, ops.where(poles, 1.0, z)),
        ops.where(both, 1.0 - z, ops.where(poles, 1.0, end)),
    )
    size = ops.exp(gammaln(stop) - gammaln(start))
    low, step = ops.minimum(start, stop), ops.absolute(m)
    far = ops.logical_and(low > _FAR, step > 0.0)
    step = ops.where(far, step, 1.0)
    raised = gammaln(step) - betaln(ops.where(far, low, 1.0), step)
    size = ops.where(far, ops.exp(ops.where(ops.greater(m, 0.0), raised, -raised)), size)
    odd = ops.equal(ops.remainder(m, 2.0), 1.0)
    sign = ops.where(both, ops.where(odd, -1.0, 1.0), gammasgn(start) * gammasgn(stop))
    value = ops.where(ops.logical_and(poles, ops.logical_not(both)), ops.where(below, 0.0, numpy.inf), sign * size)
    value = ops.where(ops.equal(ops.minimum(z, end), -numpy.inf), numpy.nan, value)
    value = ops.where(ops.logical_and(ops.isinf(z), ops.equal(m, 0.0)), 1.0, value)
    return cast(value, kind)


def comb(N: Any, k: Any, *, repetition: bool = False) -> Array:  # noqa: N803 - SciPy's name
    """Return the number of ways to choose k of N; with `repetition`, each may be chosen again.

    >>> gt.special.comb(5, 2)
    Array(10., dtype=float32)
    """
    n, k = as_arrays("comb", N, k)
    kind = n.aval.dtype
    n, k = cast(n, torch.float64), cast(k, torch.float64)
    none = ops.logical_or(ops.less(k, 0), ops.less(n, 0))
    n = n + k - 1 if repetition else n
    none = ops.logical_or(none, ops.logical_and(ops.greater(k, n), ops.greater(k, 0)))
    trivial = ops.logical_or(none, ops.equal(k, 0.0))
    part, rest = ops.where(trivial, 1.0, k), ops.where(trivial, 1.0, n - k + 1)
    value = ops.exp(-betaln(rest, part)) / part
    whole = ops.logical_and(ops.equal(ops.floor(n), n), ops.equal(ops.floor(k), k))
    value = ops.where(trivial, 1.0, ops.where(whole, ops.round(value), value))
    missing = ops.logical_or(ops.isnan(n), ops.isnan(k))
    return cast(ops.where(missing, numpy.nan, ops.where(none, 0.0, value)), kind)


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
    exponent = safe * logarithm
    # a tiny exponent has lost its digits, but the first two terms of the series have them
    small = ops.logical_and(ops.absolute(exponent) < 1e-9, ops.isfinite(logarithm))
    series = logarithm * (1.0 + exponent * 0.5)
    found = ops.where(small, series, ops.expm1(exponent) / safe)
    return ops.where(none, logarithm, found)


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
    return ops.array(numpy.array(out), default_dtype(float))
