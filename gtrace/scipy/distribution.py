"""The base of distributions: location and scale, and functions derived from one another."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from gtrace.extend import ArgumentError, Array, as_arrays, cast, message, ops
from gtrace.scipy.quantiles import at_ends, inverse

__all__ = ["Distribution"]

Function = Callable[..., Any]

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def _after(outer: Function, inner: Function | None) -> Function | None:
    return None if inner is None else lambda *args: outer(inner(*args))


def _logarithm(part: Function | None, rest: Function | None) -> Function | None:
    """Return the logarithm of a probability; if it is near 1, by its complement.

    It is computed in float64, because the logarithm of a number that underflows in the dtype itself is no large one.
    """
    if part is None or rest is None:
        return None

    def logarithm(*args: Array) -> Array:
        wide = [cast(x, torch.float64) for x in args]
        p, q = part(*wide), rest(*wide)
        small = ops.less(p, 0.5)
        out = ops.where(small, ops.log(ops.where(small, p, 1.0)), ops.log1p(-ops.where(small, 0.0, q)))
        return cast(out, args[0].aval.dtype)

    return logarithm


def _first(*functions: Function | None) -> Function | None:
    return next((function for function in functions if function is not None), None)


def log1mexp(x: Array) -> Array:
    """Return log(1 - exp(-x)) of positive numbers."""
    small = x < math.log(2.0)
    near = ops.log(-ops.expm1(-ops.where(small, x, 1.0)))
    return ops.where(small, near, ops.log1p(-ops.exp(-ops.where(small, 1.0, x))))


def _rest(p: Array) -> Array:
    return 1.0 - p


def _floored(function: Function) -> Function:
    return lambda k, *shapes: function(ops.floor(k), *shapes)


def _everywhere(*shapes: Array) -> tuple[float, float]:
    return -math.inf, math.inf


def _all_positive(*shapes: Array) -> Any:
    return functools.reduce(ops.logical_and, [ops.greater(shape, 0.0) for shape in shapes])


class Distribution:
    """A distribution of numbers. The methods take x or a probability, the shape parameters, `loc` and `scale`.

    As in SciPy, results are NaN where parameters are outside of their range.

    Args:
        name: SciPy's.
        logpdf: of the standard form, from (z, *shape parameters); of counts, the logarithm of the probability of k.
        cdf, sf: the probabilities of at most z, and of more.
        logcdf, logsf: their logarithms.
        ppf, isf: the inverses of `cdf` and `sf`; where there are none, quantiles are searched for.
        support: from shape parameters to the ends of the range outside which the density is 0.
        shapes: the names of the shape parameters.
        valid: from shape parameters to whether there is such a distribution; None: where all are positive.
        wide: compute in float64, because the terms of the density are much larger than their sum.
        discrete: the numbers are integers, there is a `loc` and no `scale`.

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
        isf: Function | None = None,
        support: Function = _everywhere,
        shapes: str = "",
        valid: Function = _all_positive,
        wide: bool = False,
        discrete: bool = False,
    ) -> None:
        self.name, self.shapes, self.discrete, self._wide = name, tuple(shapes.split()), discrete, wide
        self._logpdf, self._support, self._valid = logpdf, support, valid
        self._cdf = _first(cdf, _after(ops.exp, logcdf), _after(_rest, sf), _after(_rest, _after(ops.exp, logsf)))
        self._sf = _first(sf, _after(ops.exp, logsf), _after(_rest, cdf), _after(_rest, _after(ops.exp, logcdf)))
        self._logcdf = _first(logcdf, _logarithm(self._cdf, self._sf))
        self._logsf = _first(logsf, _logarithm(self._sf, self._cdf))
        self._searched: Function | None = None
        if self._cdf is not None and self._sf is not None:
            below, above = (_floored(self._cdf), _floored(self._sf)) if discrete else (self._cdf, self._sf)
            self._searched = inverse(below, above, None if discrete else logpdf, support)
        self._ppf, self._isf = ppf, isf

    def __repr__(self) -> str:
        return f"<distribution {self.name}>"

    def _arguments(self, method: str, x: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return the dtype of the result, x, the location, the scale, the shape parameters, and where they are valid.

        The last one is None if there is nothing to check.
        """
        names = (*self.shapes, "loc") if self.discrete else (*self.shapes, "loc", "scale")
        given = {**dict(zip(names, args, strict=False)), **named}
        twice = [name for name in names[: len(args)] if name in named]
        if len(args) > len(names) or twice or set(given) - set(names) or set(self.shapes) - set(given):
            got = f"{len(args)} parameters" + (f" and {', '.join(named)}" if named else "")
            raise ArgumentError(
                message(f"{self.name}.{method}", ", ".join(names), got, "loc and scale may be left out.")
            )
        loc, scale = given.get("loc", 0.0), given.get("scale", 1.0)
        fixed = isinstance(scale, (int, float)) and scale > 0
        operands = as_arrays(f"{self.name}.{method}", x, loc, scale, *[given[name] for name in self.shapes])
        kind = operands[0].aval.dtype
        x, loc, scale, *shapes = [cast(y, torch.float64) for y in operands] if self._wide else operands
        valid = None if fixed else ops.greater(scale, 0.0)
        if shapes:
            valid = self._valid(*shapes) if valid is None else ops.logical_and(valid, self._valid(*shapes))
        return kind, x, loc, scale, shapes, valid

    def _call(self, method: str, function: Function | None, x: Any, args: Any, named: Any, low: Any, high: Any) -> Any:
        if function is None:
            got = f"{self.name}.{method}"
            raise ArgumentError(message(got, "a function that is there", "none", "It has no closed form here."))
        kind, x, loc, scale, shapes, valid = self._arguments(method, x, args, named)
        z = ops.subtract(x, loc) / scale
        density, mass = method in ("logpdf", "pdf"), method in ("logpmf", "pmf")
        if self.discrete and not mass:
            z = ops.floor(z)
        out = function(z, *shapes)
        if density:
            out = ops.where(ops.isinf(z), -math.inf, out - ops.log(scale))
        if self._support is not _everywhere:
            start, end = self._support(*shapes)
            below, above = z < start, z > end
            if mass:
                below = ops.logical_or(below, z - ops.floor(z) != 0)
            out = ops.where(below, low, ops.where(above, high, out))
        if method in ("pdf", "pmf"):
            out = ops.exp(out)
        unknown = ops.isnan(z) if valid is None else ops.logical_or(ops.isnan(z), ops.logical_not(valid))
        return cast(ops.where(unknown, math.nan, out), kind)

    def logpdf(self, x: Any, *args: Any, **named: Any) -> Array:
        """Return the logarithm of the density at x."""
        return self._call("logpdf", self._logpdf, x, args, named, -math.inf, -math.inf)

    def pdf(self, x: Any, *args: Any, **named: Any) -> Array:
        """Return the density at x."""
        return self._call("pdf", self._logpdf, x, args, named, -math.inf, -math.inf)

    def logpmf(self, k: Any, *args: Any, **named: Any) -> Array:
        """Return the logarithm of the probability of k; of anything but an integer in the range it is -inf."""
        return self._call("logpmf", self._logpdf, k, args, named, -math.inf, -math.inf)

    def pmf(self, k: Any, *args: Any, **named: Any) -> Array:
        """Return the probability of k."""
        return self._call("pmf", self._logpdf, k, args, named, -math.inf, -math.inf)

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
        """Return the least number of which a part q of all is not above."""
        return self._quantile("ppf", self._ppf, q, args, named)

    def isf(self, q: Any, *args: Any, **named: Any) -> Array:
        """Return the least number of which at most a part q of all is above."""
        return self._quantile("isf", self._isf, q, args, named)

    def _quantile(self, method: str, function: Function | None, q: Any, args: Any, named: Any) -> Array:
        kind, q, loc, scale, shapes, valid = self._arguments(method, q, args, named)
        if function is not None:
            found = ops.where(ops.logical_and(q >= 0.0, q <= 1.0), function(q, *shapes), math.nan)
        elif self._searched is not None:
            q, *shapes = [cast(y, torch.float64) for y in (q, *shapes)]
            p, rest = (q, 1.0 - q) if method == "ppf" else (1.0 - q, q)
            start, end = self._support(*shapes)
            start = start - 1.0 if self.discrete else start
            found = at_ends(self._searched(p, rest, *shapes), p, rest, start, end)
        else:
            got = f"{self.name}.{method}"
            raise ArgumentError(message(got, "a function that is there", "none", "It has no closed form here."))
        out = found * scale + loc
        return cast(out if valid is None else ops.where(valid, out, math.nan), kind)
