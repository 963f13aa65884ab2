"""Hypergeometric functions, the complex error function of Faddeeva, and spherical harmonics.

They are composed of other operations in float64. So they have derivatives of any order in all arguments.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, DtypeError, message
from gtrace.core.ops.checks import complex_only
from gtrace.core.ops.declare import Array, BadSample, Sample, bind, define
from gtrace.core.ops.elementwise import neg
from gtrace.core.ops.operands import as_arrays, cast, promote_arrays
from gtrace.core.ops.samples import complex_uniform, scipy_special, uniform
from gtrace.core.ops.shape import constant
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
    low = z < 0.5
    whole = ops.stop_gradient(ops.round(z))
    sign = 1.0 - 2.0 * ops.absolute(whole - 2.0 * ops.round(ops.multiply(whole, 0.5)))
    sine = ops.sin((z - whole) * math.pi) * sign
    mirrored = sine / math.pi * ops.exp(gammaln(1.0 - ops.where(low, z, 0.0)))
    return ops.where(low, mirrored, ops.exp(neg(gammaln(ops.where(low, 1.0, z)))))


def _whole_below(z: Array) -> Array:
    """Whether z is 0, -1, -2, ..."""
    return ops.logical_and(z <= 0.0, ops.equal(ops.round(z), z))


def _series(above: list[Array], below: list[Array], x: Array, terms: int) -> Array:
    """Return the sum of products of (a)_k / products of (b)_k * x**k / k! over k < `terms`.

    Where a number below is 0, -1, -2, ... it is infinite, unless the sum has ended before.
    """
    k = ops.arange(terms, dtype=torch.float64, device=x.aval.device)
    ratio = ops.expand_dims(x, -1) / (k + 1.0)
    for a in above:
        ratio = ratio * (ops.expand_dims(a, -1) + k)
    for b in below:
        factor = ops.expand_dims(b, -1) + k
        pole = ops.equal(factor, 0.0)
        ratio = ratio / ops.where(pole, 1.0, factor)
        ended = functools.reduce(
            ops.logical_or, [ops.logical_and(_whole_below(a), ops.greater_equal(a, b)) for a in above]
        )
        ratio = ops.where(pole, ops.where(ops.expand_dims(ended, -1), 0.0, math.inf), ratio)
    return 1.0 + ops.sum(ops.cumprod(ratio, -1), -1)


def hyp1f1(a: Any, b: Any, x: Any) -> Array:
    """Return Kummer's confluent hypergeometric function: the sum of (a)_k / (b)_k * x**k / k!.

    Args:
        a, b, x: real arrays, which broadcast. Beyond abs(x) = 100 an asymptotic series is used, which needs a and b to
            be small against x.

    >>> round(float(gt.special.hyp1f1(1.0, 2.0, 1.0)), 4)
    1.7183
    """
    a, b, x = ops.broadcast_arrays(*as_arrays("hyp1f1", a, b, x))
    kind = x.aval.dtype
    a, b, x = (cast(z, torch.float64) for z in (a, b, x))
    # Kummer's transformation: no terms of changing sign
    left = ops.less(x, 0.0)
    polynomial = _whole_below(a)
    swapped = ops.logical_and(left, ops.logical_not(polynomial))
    first = ops.where(swapped, ops.subtract(b, a), a)
    z = ops.where(swapped, neg(x), x)
    far = ops.logical_and(ops.absolute(z) > _FAR, ops.logical_not(_whole_below(first)))
    near = _series([first], [b], ops.where(far, 1.0, z), _LONG)
    near = ops.where(swapped, ops.exp(ops.where(far, 0.0, x)) * near, near)
    size = ops.where(far, z, 2 * _FAR)
    front = _one_over_gamma(first) * size ** ops.subtract(first, b)
    front = ops.where(swapped, front, front * ops.exp(ops.where(left, 0.0, size)))
    tail = _falling(ops.subtract(b, first), 1.0 - first, size)
    beyond = front * tail / _one_over_gamma(ops.where(far, b, 1.0))
    return cast(ops.where(far, beyond, near), kind)


def _falling(p: Array, q: Array, size: Array) -> Array:
    """Return the asymptotic series of (p)_k (q)_k / k! / size**k, up to its smallest term."""
    k = ops.arange(_SHORT, dtype=torch.float64, device=size.aval.device)
    ratio = (ops.expand_dims(p, -1) + k) * (ops.expand_dims(q, -1) + k) / (ops.expand_dims(size, -1) * (k + 1.0))
    return 1.0 + ops.sum(ops.cumprod(ops.where(ops.absolute(ratio) > 1.0, 0.0, ratio), -1), -1)


def _near_one(a: Array, b: Array, c: Array, rest: Array) -> Array:
    """Return 2F1(a, b; c; 1 - rest) for small `rest` (Abramowitz and Stegun, 15.3.6).

    Where c - a - b is close to an integer, the two terms have poles that cancel. There the function is interpolated
    from its values at other c: the function is smooth there.
    """
    gap = ops.subtract(c, a) - b
    close = ops.absolute(gap - ops.stop_gradient(ops.round(gap))) < _NEAR_INTEGER
    moved = ops.where(ops.expand_dims(close, -1), ops.array(_places, torch.float64, device=rest.aval.device), 0.0)
    a, b, y = (ops.expand_dims(z, -1) for z in (a, b, rest))
    c = ops.expand_dims(c, -1) + moved
    gap = ops.subtract(c, a) - b
    first = ops.multiply(_one_over_gamma(ops.subtract(c, a)), _one_over_gamma(ops.subtract(c, b)))
    first = first / _one_over_gamma(gap)
    second = ops.multiply(_one_over_gamma(a), _one_over_gamma(b)) / _one_over_gamma(neg(gap))
    shape = (a, b, y, c)
    a, b, y, c = ops.broadcast_arrays(*shape)
    one = _series([a, b], [1.0 - gap], y, _SHORT)
    other = _series([ops.subtract(c, a), ops.subtract(c, b)], [1.0 + gap], y, _SHORT)
    value = first * one + second * y**gap * other
    value = value / _one_over_gamma(c)
    return ops.sum(value * ops.array(_weights, torch.float64, device=rest.aval.device), -1)


def hyp2f1(a: Any, b: Any, c: Any, x: Any) -> Array:
    """Return Gauss's hypergeometric function: the sum of (a)_k (b)_k / (c)_k * x**k / k!, continued to all x below 1.

    Args:
        a, b, c, x: real arrays, which broadcast. At x above 1 it is infinite, unless a or b is 0, -1, -2, ...

    >>> round(float(gt.special.hyp2f1(1.0, 1.0, 2.0, 0.5)), 4)
    1.3863
    """
    a, b, c, x = ops.broadcast_arrays(*as_arrays("hyp2f1", a, b, c, x))
    kind = x.aval.dtype
    a, b, c, x = (cast(z, torch.float64) for z in (a, b, c, x))
    # the sum that ends first is by a, so that the transformed one ends, too
    first = ops.logical_and(_whole_below(b), ops.logical_or(ops.logical_not(_whole_below(a)), ops.greater(b, a)))
    a, b = ops.where(first, b, a), ops.where(first, a, b)
    ends = _whole_below(a)
    beyond = ops.logical_or(ops.greater(x, 1.0), ops.logical_and(ops.equal(x, 1.0), ends))
    sum_of_powers = _polynomial(ops.where(beyond, a, 0.0), b, c, ops.where(beyond, x, 0.0))
    sum_of_powers = ops.where(ends, sum_of_powers, math.inf)
    left = ops.less(x, 0.0)
    inside = ops.where(beyond, 0.0, x)
    rest = ops.where(left, 1.0 / (1.0 - ops.where(left, inside, 0.0)), 1.0 - inside)
    y = ops.where(left, inside / (inside - 1.0), inside)
    other = ops.where(left, ops.subtract(c, b), b)
    pole = ops.logical_and(_whole_below(c), ops.logical_not(ops.logical_and(ends, ops.greater_equal(a, c))))
    close = ops.logical_and(y > _BORDER, ops.logical_not(_whole_below(c)))
    near = _series([a, other], [c], ops.where(close, 0.0, y), _LONG)
    at_end = ops.equal(rest, 0.0)
    lifted = ops.logical_and(close, ops.logical_not(at_end))
    half = [ops.where(lifted, z, safe) for z, safe in ((a, 0.5), (other, 0.25), (c, 1.1), (rest, 0.05))]
    value = ops.where(lifted, _near_one(*half), near)
    value = ops.where(at_end, _at_one(a, b, ops.where(at_end, c, 4.0)), value)
    value = ops.where(left, ops.exp(neg(a) * ops.log1p(neg(ops.where(left, inside, 0.0)))) * value, value)
    value = ops.where(beyond, sum_of_powers, value)
    return cast(ops.where(pole, math.inf, ops.where(ops.isnan(x), math.nan, value)), kind)


def _at_one(a: Array, b: Array, c: Array) -> Array:
    """Return the value at 1, by Gauss's theorem; infinite where the sum diverges."""
    gap = c - a - b
    ratio = ops.multiply(_one_over_gamma(c - a), _one_over_gamma(c - b))
    found = ratio / ops.multiply(_one_over_gamma(c), _one_over_gamma(ops.where(gap > 0.0, gap, 1.0)))
    return ops.where(gap > 0.0, found, math.inf)


def _polynomial(a: Array, b: Array, c: Array, x: Array) -> Array:
    """Return the sum where a is 0, -1, -2, ..., at any x; its terms beyond the end are left out."""
    k = ops.arange(_LONG, dtype=torch.float64, device=x.aval.device)
    wide = [ops.expand_dims(z, -1) for z in (a, b, c, x)]
    ended = k + wide[0] >= 0.0
    below = wide[2] + k
    ratio = (wide[0] + k) * (wide[1] + k) / ops.where(ops.equal(below, 0.0), 1.0, below)
    ratio = ops.where(ended, 0.0, ratio * (wide[3] / (k + 1.0)))
    return 1.0 + ops.sum(ops.cumprod(ratio, -1), -1)


# -- the complex error function

_COUNT = 12
_STEP = math.sqrt(math.pi / _COUNT)


def _first_quadrant(z: torch.Tensor) -> torch.Tensor:
    """Return w(z) for real and imaginary parts that are not negative, by Al Azah and Chandler-Wilde (2021).

    It uses the trapezoidal rule, with nodes away from z, and adds the missing residue near the real axis.
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
    size = torch.maximum(quadrant.real, quadrant.imag)
    far = size > 1e8
    # there the function is 1j / (z * sqrt(pi)) to all digits
    x, y = quadrant.real / size, quadrant.imag / size
    beyond = torch.complex(y, x) / (math.sqrt(math.pi) * size * (x * x + y * y))
    beyond = torch.where(size == math.inf, 0.0, beyond)
    found = torch.where(far, beyond, _first_quadrant(torch.where(far, 1.0, quadrant)))
    found = torch.where(raised.real < 0.0, found.conj().resolve_conj(), found)
    return torch.where(upper, found, 2.0 * torch.exp(-(torch.where(upper, 0.0, wide) ** 2)) - found).to(z.dtype)


_faddeeva = define(
    "wofz", _wofz, elementwise=True, complex=True, check=complex_only,
    partials=(lambda z, out: ops.multiply(z, out) * -2.0 + 2j / math.sqrt(math.pi),),
    samples=lambda: [Sample((complex_uniform(3, 4),)), Sample((complex_uniform(),))],
    errors=lambda: [BadSample((uniform(0.0, 1.0, 3),), {}, DtypeError, "complex")],
    reference=scipy_special("wofz"), user=lambda z: bind(_faddeeva, promote_arrays("wofz", z)),
)  # fmt: skip


def wofz(z: Any) -> Array:
    """Return the Faddeeva function exp(-z * z) * erfc(-1j * z), complex.

    >>> gt.round(gt.special.wofz(gt.array(1.0 + 1.0j)), 4)
    Array(0.3047+0.2082j, dtype=complex64)
    """
    (x,) = promote_arrays("wofz", z, floating=True)
    if not x.aval.complex:
        x = ops.complex(x, constant(0.0, x.aval))
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

    >>> round(float(gt.special.sph_harm_y(1, 0, 0.0, 0.0, n_max=1).real), 4)
    0.4886
    """
    if diff_n is not None:
        fix = "Differentiate the function by gt.jvp."
        raise ArgumentError(message("sph_harm_y", "diff_n=None", repr(diff_n), fix))
    degree, order = ops.array(n), ops.array(m)
    top = int(ops.max(degree)) if n_max is None else int(n_max)
    theta, phi = as_arrays("sph_harm_y", theta, phi)
    kind = theta.aval.dtype
    degree, order, theta, phi = ops.broadcast_arrays(degree, order, theta, phi)
    degree, size = (
        cast(z, torch.float64) for z in (ops.where(ops.greater(degree, top), top, degree), ops.absolute(order))
    )
    theta, phi = cast(theta, torch.float64), cast(phi, torch.float64)
    height, across = ops.cos(theta), ops.sin(theta)
    # the normalized function of degree m; from there on by the recurrence in the degree
    value = ops.multiply(theta, 0.0) + math.sqrt(0.25 / math.pi)
    for k in range(1, top + 1):
        grown = value * across * -math.sqrt((2 * k + 1) / (2 * k))
        value = ops.where(ops.greater_equal(size, k), grown, value)
    before = value * 0.0
    for k in range(1, top + 1):
        now = ops.add(size, k)
        spread = now**2 - ops.power(size, 2)
        up = ops.sqrt((4.0 * now**2 - 1.0) / spread)
        last = now - 1.0
        least = ops.where(last > size, 4.0 * last**2 - 1.0, 1.0)
        back = ops.sqrt((last**2 - ops.power(size, 2)) / least)
        following = up * (height * value - back * before)
        goes_on = now <= degree
        value, before = ops.where(goes_on, following, value), ops.where(goes_on, value, before)
    value = ops.where(ops.greater(size, degree), 0.0, value)
    odd = ops.equal(size - 2.0 * ops.round(ops.multiply(size, 0.5)), 0.0)
    negative = ops.less(order, 0)
    value = ops.where(ops.logical_and(negative, ops.logical_not(odd)), neg(value), value)
    angle = ops.multiply(cast(order, torch.float64), phi)
    return ops.complex(cast(value * ops.cos(angle), kind), cast(value * ops.sin(angle), kind))
