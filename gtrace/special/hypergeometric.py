"""Hypergeometric functions, the complex error function of Faddeeva, and spherical harmonics.

They are made of other operations, in float64, so their derivatives in all arguments and to any order follow from those.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy
import torch

from gtrace.core.base.errors import ArgumentError, DtypeError, message
from gtrace.core.ops.checks import complex_only
from gtrace.core.ops.complex_numbers import complex as complex_of
from gtrace.core.ops.create import arange, asarray
from gtrace.core.ops.declare import BadSample, Sample, define
from gtrace.core.ops.elementwise import (
    absolute,
    add,
    cos,
    divide,
    exp,
    log1p,
    multiply,
    neg,
    power,
    sin,
    sqrt,
    stop_gradient,
    subtract,
)
from gtrace.core.ops.elementwise import round as rounded
from gtrace.core.ops.logic import (
    equal,
    greater,
    greater_equal,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    where,
)
from gtrace.core.ops.promote import as_arrays, cast, promote_arrays
from gtrace.core.ops.reduce import max as largest
from gtrace.core.ops.reduce import sum as total
from gtrace.core.ops.samples import complex_uniform, scipy_special, uniform
from gtrace.core.ops.scans import cumprod
from gtrace.core.ops.shape import broadcast_arrays, expand_dims
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind
from gtrace.special.gamma_functions import gammaln

__all__ = ["hyp1f1", "hyp2f1", "sph_harm_y", "wofz"]

# -- hypergeometric functions

_LONG = 320
"""Terms of series at arguments up to 0.9, or of the exponential kind up to 100."""

_SHORT = 40
"""Terms of series in 1 - y at y above 0.9."""

_FAR = 100.0
_BORDER = 0.9

_NODES = 10
_SPREAD = 0.05
_NEAR_INTEGER = 4e-3

_places = numpy.cos(math.pi * (numpy.arange(_NODES) + 0.5) / _NODES) * _SPREAD
_weights = numpy.array(
    [math.prod(-q / (p - q) for q in _places if q != p) for p in _places]
)  # of the interpolating polynomial at 0


def _one_over_gamma(z: Array) -> Array:
    """Return 1 / gamma(z), which is smooth everywhere; below 1/2 by the reflection formula."""
    low = less(z, 0.5)
    whole = stop_gradient(rounded(z))
    sign = subtract(1.0, multiply(2.0, absolute(subtract(whole, multiply(2.0, rounded(multiply(whole, 0.5)))))))
    sine = multiply(sin(multiply(subtract(z, whole), math.pi)), sign)
    mirrored = multiply(divide(sine, math.pi), exp(gammaln(subtract(1.0, where(low, z, 0.0)))))
    return where(low, mirrored, exp(neg(gammaln(where(low, 1.0, z)))))


def _whole_below(z: Array) -> Array:
    """Whether z is 0, -1, -2, ..."""
    return logical_and(less_equal(z, 0.0), equal(rounded(z), z))


def _series(above: list[Array], below: list[Array], x: Array, terms: int) -> Array:
    """Return the sum of products of (a)_k / products of (b)_k * x**k / k! over k < `terms`.

    Where a number below is 0, -1, -2, ... it is infinite, unless the sum has ended before.
    """
    k = arange(terms, dtype=torch.float64, device=x.device)
    ratio = divide(expand_dims(x, -1), add(k, 1.0))
    for a in above:
        ratio = multiply(ratio, add(expand_dims(a, -1), k))
    for b in below:
        factor = add(expand_dims(b, -1), k)
        pole = equal(factor, 0.0)
        ratio = divide(ratio, where(pole, 1.0, factor))
        ended = functools.reduce(logical_or, [logical_and(_whole_below(a), greater_equal(a, b)) for a in above])
        ratio = where(pole, where(expand_dims(ended, -1), 0.0, math.inf), ratio)
    return add(1.0, total(cumprod(ratio, -1), -1))


def hyp1f1(a: Any, b: Any, x: Any) -> Array:
    """Return Kummer's confluent hypergeometric function: the sum of (a)_k / (b)_k * x**k / k!.

    Args:
        a, b, x: real arrays, which broadcast. Beyond abs(x) = 100 an asymptotic series is used, which needs a and b to
            be small against x.

    >>> import gtrace as gt
    >>> round(float(gt.special.hyp1f1(1.0, 2.0, 1.0)), 4)
    1.7183
    """
    a, b, x = broadcast_arrays(*as_arrays("hyp1f1", a, b, x))
    kind = x.aval.dtype
    a, b, x = (cast(z, torch.float64) for z in (a, b, x))
    # Kummer's transformation: no terms of changing sign
    left = less(x, 0.0)
    polynomial = _whole_below(a)
    swapped = logical_and(left, logical_not(polynomial))
    first = where(swapped, subtract(b, a), a)
    z = where(swapped, neg(x), x)
    far = logical_and(greater(absolute(z), _FAR), logical_not(_whole_below(first)))
    near = _series([first], [b], where(far, 1.0, z), _LONG)
    near = where(swapped, multiply(exp(where(far, 0.0, x)), near), near)
    size = where(far, z, 2 * _FAR)
    front = multiply(_one_over_gamma(first), power(size, subtract(first, b)))
    front = where(swapped, front, multiply(front, exp(where(left, 0.0, size))))
    tail = _falling(subtract(b, first), subtract(1.0, first), size)
    beyond = divide(multiply(front, tail), _one_over_gamma(where(far, b, 1.0)))
    return cast(where(far, beyond, near), kind)


def _falling(p: Array, q: Array, size: Array) -> Array:
    """Return the asymptotic series of (p)_k (q)_k / k! / size**k, up to its smallest term."""
    k = arange(_SHORT, dtype=torch.float64, device=size.device)
    ratio = divide(
        multiply(add(expand_dims(p, -1), k), add(expand_dims(q, -1), k)), multiply(expand_dims(size, -1), add(k, 1.0))
    )
    return add(1.0, total(cumprod(where(greater(absolute(ratio), 1.0), 0.0, ratio), -1), -1))


def _near_one(a: Array, b: Array, c: Array, rest: Array) -> Array:
    """Return 2F1(a, b; c; 1 - rest) for small `rest` (Abramowitz and Stegun, 15.3.6).

    Where c - a - b is close to an integer, the two terms have poles that cancel. There the function is interpolated
    from its values at other c: the function is smooth, and so is what is interpolated.
    """
    gap = subtract(subtract(c, a), b)
    close = less(absolute(subtract(gap, stop_gradient(rounded(gap)))), _NEAR_INTEGER)
    moved = where(expand_dims(close, -1), asarray(_places, torch.float64, device=rest.device), 0.0)
    a, b, y = (expand_dims(z, -1) for z in (a, b, rest))
    c = add(expand_dims(c, -1), moved)
    gap = subtract(subtract(c, a), b)
    first = multiply(_one_over_gamma(subtract(c, a)), _one_over_gamma(subtract(c, b)))
    first = divide(first, _one_over_gamma(gap))
    second = divide(multiply(_one_over_gamma(a), _one_over_gamma(b)), _one_over_gamma(neg(gap)))
    shape = (a, b, y, c)
    a, b, y, c = broadcast_arrays(*shape)
    one = _series([a, b], [subtract(1.0, gap)], y, _SHORT)
    other = _series([subtract(c, a), subtract(c, b)], [add(1.0, gap)], y, _SHORT)
    value = add(multiply(first, one), multiply(multiply(second, power(y, gap)), other))
    value = divide(value, _one_over_gamma(c))
    return total(multiply(value, asarray(_weights, torch.float64, device=rest.device)), -1)


def hyp2f1(a: Any, b: Any, c: Any, x: Any) -> Array:
    """Return Gauss's hypergeometric function: the sum of (a)_k (b)_k / (c)_k * x**k / k!, continued to all x below 1.

    Args:
        a, b, c, x: real arrays, which broadcast. At x above 1 it is infinite, unless a or b is 0, -1, -2, ...

    >>> import gtrace as gt
    >>> round(float(gt.special.hyp2f1(1.0, 1.0, 2.0, 0.5)), 4)
    1.3863
    """
    a, b, c, x = broadcast_arrays(*as_arrays("hyp2f1", a, b, c, x))
    kind = x.aval.dtype
    a, b, c, x = (cast(z, torch.float64) for z in (a, b, c, x))
    # the sum that ends first is by a, so that the transformed one ends, too
    first = logical_and(_whole_below(b), logical_or(logical_not(_whole_below(a)), greater(b, a)))
    a, b = where(first, b, a), where(first, a, b)
    ends = _whole_below(a)
    beyond = logical_or(greater(x, 1.0), logical_and(equal(x, 1.0), ends))
    sum_of_powers = _polynomial(where(beyond, a, 0.0), b, c, where(beyond, x, 0.0))
    sum_of_powers = where(ends, sum_of_powers, math.inf)
    left = less(x, 0.0)
    inside = where(beyond, 0.0, x)
    rest = where(left, divide(1.0, subtract(1.0, where(left, inside, 0.0))), subtract(1.0, inside))
    y = where(left, divide(inside, subtract(inside, 1.0)), inside)
    other = where(left, subtract(c, b), b)
    pole = logical_and(_whole_below(c), logical_not(logical_and(ends, greater_equal(a, c))))
    close = logical_and(greater(y, _BORDER), logical_not(_whole_below(c)))
    near = _series([a, other], [c], where(close, 0.0, y), _LONG)
    at_end = equal(rest, 0.0)
    lifted = logical_and(close, logical_not(at_end))
    half = [where(lifted, z, safe) for z, safe in ((a, 0.5), (other, 0.25), (c, 1.1), (rest, 0.05))]
    value = where(lifted, _near_one(*half), near)
    value = where(at_end, _at_one(a, b, where(at_end, c, 4.0)), value)
    value = where(left, multiply(exp(multiply(neg(a), log1p(neg(where(left, inside, 0.0))))), value), value)
    value = where(beyond, sum_of_powers, value)
    return cast(where(pole, math.inf, where(isnan(x), math.nan, value)), kind)


def _at_one(a: Array, b: Array, c: Array) -> Array:
    """Return the value at 1, by Gauss's theorem; infinite where the sum diverges."""
    gap = subtract(subtract(c, a), b)
    ratio = multiply(_one_over_gamma(subtract(c, a)), _one_over_gamma(subtract(c, b)))
    found = divide(ratio, multiply(_one_over_gamma(c), _one_over_gamma(where(greater(gap, 0.0), gap, 1.0))))
    return where(greater(gap, 0.0), found, math.inf)


def _polynomial(a: Array, b: Array, c: Array, x: Array) -> Array:
    """Return the sum where a is 0, -1, -2, ..., at any x; its terms beyond the end are left out."""
    k = arange(_LONG, dtype=torch.float64, device=x.device)
    wide = [expand_dims(z, -1) for z in (a, b, c, x)]
    ended = greater_equal(add(k, wide[0]), 0.0)
    below = add(wide[2], k)
    ratio = divide(multiply(add(wide[0], k), add(wide[1], k)), where(equal(below, 0.0), 1.0, below))
    ratio = where(ended, 0.0, multiply(ratio, divide(wide[3], add(k, 1.0))))
    return add(1.0, total(cumprod(ratio, -1), -1))


# -- the complex error function

_COUNT = 12
_STEP = math.sqrt(math.pi / _COUNT)


def _first_quadrant(z: torch.Tensor) -> torch.Tensor:
    """Return w(z) for real and imaginary parts that are not negative, by Al Azah and Chandler-Wilde (2021).

    The trapezoidal rule, at nodes that z is not next to, and the residue that it leaves out near the real axis.
    """
    x, y = z.real, z.imag
    high = y >= torch.clamp(x, min=math.pi / _STEP)
    part = torch.remainder(x / _STEP, 1.0)
    between = high | (part < 0.25) | (part > 0.75)  # far from the nodes at 0.5, 1.5, ... steps
    square = z * z
    sums = []
    for first in (0.5, 1.0):
        nodes = (torch.arange(_COUNT, dtype=torch.float64, device=z.device) + first) * _STEP
        apart = square.unsqueeze(-1) - nodes * nodes
        sums.append((torch.exp(-nodes * nodes) / apart).sum(-1) * (2j * _STEP / math.pi) * z)
    low = torch.where(high, torch.zeros_like(z), z)
    turn = torch.exp(-2j * math.pi / _STEP * low)
    residue = 2.0 * torch.exp(-low * low)
    on_halves = sums[0] + torch.where(high, 0.0, residue / torch.where(between, 1.0 + turn, 1.0))
    on_wholes = 1j * _STEP / (math.pi * torch.where(between, 1.0, z)) + sums[1]
    on_wholes = on_wholes + residue / torch.where(between, 1.0, 1.0 - turn)
    return torch.where(between, on_halves, on_wholes)


def _wofz(z: torch.Tensor) -> torch.Tensor:
    wide = z.to(torch.complex128)
    upper = wide.imag >= 0.0
    raised = torch.where(upper, wide, -wide)
    quadrant = torch.complex(raised.real.abs(), raised.imag)
    found = _first_quadrant(quadrant)
    found = torch.where(raised.real < 0.0, found.conj().resolve_conj(), found)
    return torch.where(upper, found, 2.0 * torch.exp(-(torch.where(upper, 0.0, wide) ** 2)) - found).to(z.dtype)


_faddeeva = define(
    "wofz", _wofz, elementwise=True, complex=True, check=complex_only,
    partials=(lambda z, out: add(multiply(multiply(z, out), -2.0), 2j / math.sqrt(math.pi)),),
    samples=lambda: [Sample((complex_uniform(3, 4),)), Sample((complex_uniform(),))],
    errors=lambda: [BadSample((uniform(0.0, 1.0, 3),), {}, DtypeError, "complex")],
    reference=scipy_special("wofz"), user=lambda z: bind(_faddeeva, promote_arrays("wofz", z)),
)  # fmt: skip


def wofz(z: Any) -> Array:
    """Return the Faddeeva function exp(-z * z) * erfc(-1j * z), complex.

    >>> import gtrace as gt
    >>> gt.round(gt.special.wofz(gt.array(1.0 + 1.0j)), 4)
    Array(0.3047+0.2082j, dtype=complex64)
    """
    (x,) = promote_arrays("wofz", z, floating=True)
    if not x.aval.complex:
        x = complex_of(*broadcast_arrays(x, multiply(x, 0.0)))
    return bind(_faddeeva, (x,))


# -- spherical harmonics


def sph_harm_y(n: Any, m: Any, theta: Any, phi: Any, diff_n: None = None, n_max: int | None = None) -> Array:
    """Return the spherical harmonics of degree n and order m, orthonormal on the sphere, complex.

    Args:
        n, m: arrays of integers with abs(m) <= n.
        theta: angles from the pole.
        phi: angles around the axis.
        n_max: the largest degree, which has to be given where the values of n are not known. Larger degrees count as
            this one.

    Raises:
        ArgumentError: `diff_n` is not None.

    >>> import gtrace as gt
    >>> round(float(gt.special.sph_harm_y(1, 0, 0.0, 0.0, n_max=1).real), 4)
    0.4886
    """
    if diff_n is not None:
        fix = "Differentiate the function by gt.jvp."
        raise ArgumentError(message("sph_harm_y", "diff_n=None", repr(diff_n), fix))
    degree, order = asarray(n), asarray(m)
    top = int(largest(degree)) if n_max is None else int(n_max)
    theta, phi = as_arrays("sph_harm_y", theta, phi)
    kind = theta.aval.dtype
    degree, order, theta, phi = broadcast_arrays(degree, order, theta, phi)
    degree, size = (cast(z, torch.float64) for z in (where(greater(degree, top), top, degree), absolute(order)))
    theta, phi = cast(theta, torch.float64), cast(phi, torch.float64)
    height, across = cos(theta), sin(theta)
    # the normalized function of degree m; from there on by the recurrence in the degree
    value = add(multiply(theta, 0.0), math.sqrt(0.25 / math.pi))
    for k in range(1, top + 1):
        grown = multiply(multiply(value, across), -math.sqrt((2 * k + 1) / (2 * k)))
        value = where(greater_equal(size, k), grown, value)
    before = multiply(value, 0.0)
    for k in range(1, top + 1):
        now = add(size, k)
        spread = subtract(power(now, 2), power(size, 2))
        up = sqrt(divide(subtract(multiply(4.0, power(now, 2)), 1.0), spread))
        last = subtract(now, 1.0)
        least = where(greater(last, size), subtract(multiply(4.0, power(last, 2)), 1.0), 1.0)
        back = sqrt(divide(subtract(power(last, 2), power(size, 2)), least))
        following = multiply(up, subtract(multiply(height, value), multiply(back, before)))
        goes_on = less_equal(now, degree)
        value, before = where(goes_on, following, value), where(goes_on, value, before)
    value = where(greater(size, degree), 0.0, value)
    odd = equal(subtract(size, multiply(2.0, rounded(multiply(size, 0.5)))), 0.0)
    negative = less(order, 0)
    value = where(logical_and(negative, logical_not(odd)), neg(value), value)
    angle = multiply(cast(order, torch.float64), phi)
    return complex_of(cast(multiply(value, cos(angle)), kind), cast(multiply(value, sin(angle)), kind))
