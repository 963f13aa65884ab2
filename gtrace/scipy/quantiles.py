"""Quantiles of distributions that have no formula for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gtrace.extend import Array, cast, constant, custom_jvp, fori_loop, jvp, ops
from gtrace.lax.special import bitcast_convert_type

__all__ = ["at_ends", "inverse"]

_INFINITY = 0x7FF0000000000000
"""The bits of infinity, which is the last number in the order of float64."""

_MOST = torch.finfo(torch.float64).max
_LEAST = 2.0**-1073
"""The second number above 0: half of it, as in chi2, is no 0."""


def _number(place: Array) -> Array:
    """Return the float64 at a place in their order, where 0 is at place 0."""
    return bitcast_convert_type(ops.where(place < 0, -(2**63) - place, place), torch.float64)


def inverse(
    cdf: Callable[..., Array], sf: Callable[..., Array], logpdf: Callable[..., Array] | None, support: Any
) -> Callable[..., Array]:
    """Return the function from a probability, what is left to 1, and shape parameters to the quantile, all float64.

    It halves the range of all numbers 64 times: the result is the least number at which the probability is reached.

    Args:
        logpdf: for the derivative; None: it is 0.
        support: from shape parameters to the ends of the range.
    """

    def search(p: Array, rest: Array, *shapes: Array) -> Array:
        start, end = support(*shapes)
        p, rest, *wide = ops.broadcast_arrays(p, rest, *shapes)

        def reached(x: Array, exactly: bool = False) -> Array:
            # the smaller probability has more digits
            below, above = cdf(x, *wide), sf(x, *wide)
            if exactly:
                return ops.where(p < rest, ops.equal(below, p), ops.equal(above, rest))
            return ops.where(p < rest, below >= p, above <= rest)

        def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            enough = reached(ops.clip(_number(middle), start, end))
            return ops.where(enough, low, middle), ops.where(enough, middle, high)

        place = constant(_INFINITY, cast(ops.zeros_like(p), torch.int64).aval)
        found = ops.clip(_number(fori_loop(0, 64, halve, (-place, place))[1]), start, end)
        found = ops.where(found <= -_MOST, start, found)  # it lies below all numbers
        # near 0 are many numbers of one probability: 0 itself, for one that is symmetric, and for one that underflows
        zero = ops.clip(ops.zeros_like(p), start, end)
        least = ops.logical_and(ops.equal(zero, 0.0), ops.absolute(found) <= _LEAST)
        return ops.where(ops.logical_or(least, reached(zero, exactly=True)), zero, found)

    if logpdf is None:
        return lambda *given: ops.stop_gradient(search(*map(ops.stop_gradient, given)))
    quantile = custom_jvp(search)

    @quantile.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        # from cdf(x, shapes) = p: the density times dx is dp minus the change of the probability by the shapes
        _, _, *shapes = primals
        x = quantile(*primals)
        change = jvp(lambda *given: cdf(x, *given), tuple(shapes), tuple(tangents[2:]))[1] if shapes else 0.0
        return x, (tangents[0] - change) / ops.exp(logpdf(x, *shapes))

    return quantile


def at_ends(x: Array, p: Array, rest: Array, start: Any, end: Any) -> Array:
    """Return quantiles with those of the probabilities 0 and 1, and NaN for what is no probability."""
    found = ops.where(ops.equal(p, 0.0), start, ops.where(ops.equal(rest, 0.0), end, x))
    return ops.where(ops.logical_and(p >= 0.0, p <= 1.0), found, math.nan)
