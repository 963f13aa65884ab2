"""What the distributions share: location and scale, and the functions that follow from one another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops.operands import as_arrays
from gtrace.core.trace.array import Array

__all__ = ["Distribution"]

Function = Callable[..., Any]

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def _after(outer: Function, inner: Function | None) -> Function | None:
    return None if inner is None else lambda *args: outer(inner(*args))


def _first(*functions: Function | None) -> Function | None:
    return next((function for function in functions if function is not None), None)


def _rest(p: Array) -> Array:
    return ops.subtract(1.0, p)


class Distribution:
    """A distribution of numbers. The methods take x or a probability, the shape parameters, `loc` and `scale`.

    Args:
        name: SciPy's.
        logpdf: of the standard form, from (z, *shape parameters); of counts, the logarithm of the probability of k.
        cdf, sf: the probabilities of at most z, and of more.
        logcdf, logsf: their logarithms.
        ppf: the inverse of `cdf`.
        support: from shape parameters to the ends of the range outside which the density is 0.
        shapes: the names of the shape parameters.
        discrete: the numbers are integers, there is a `loc` and no `scale`.

    >>> import gtrace as gt
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
        support: Function | None = None,
        shapes: str = "",
        discrete: bool = False,
    ) -> None:
        self.name, self.shapes, self.discrete = name, tuple(shapes.split()), discrete
        self._logpdf, self._support, self._ppf = logpdf, support, ppf
        self._cdf = _first(cdf, _after(ops.exp, logcdf), _after(_rest, sf), _after(_rest, _after(ops.exp, logsf)))
        self._sf = _first(sf, _after(ops.exp, logsf), _after(_rest, cdf), _after(_rest, _after(ops.exp, logcdf)))
        self._logcdf = _first(logcdf, _after(ops.log, self._cdf))
        self._logsf = _first(logsf, _after(ops.log, self._sf))

    def __repr__(self) -> str:
        return f"<distribution {self.name}>"

    def _arguments(self, method: str, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Array], Array, Array]:
        """Return the shape parameters, the location and the scale."""
        names = (*self.shapes, "loc") if self.discrete else (*self.shapes, "loc", "scale")
        given = {**dict(zip(names, args, strict=False)), **named}
        twice = [name for name in names[: len(args)] if name in named]
        if len(args) > len(names) or twice or set(given) - set(names) or set(self.shapes) - set(given):
            got = f"{len(args)} parameters" + (f" and {', '.join(named)}" if named else "")
            raise ArgumentError(
                message(f"{self.name}.{method}", ", ".join(names), got, "loc and scale may be left out.")
            )
        return [given[name] for name in self.shapes], given.get("loc", 0.0), given.get("scale", 1.0)

    def _call(self, method: str, function: Function | None, x: Any, args: Any, named: Any, low: Any, high: Any) -> Any:
        if function is None:
            got = f"{self.name}.{method}"
            raise ArgumentError(message(got, "a function that is there", "none", "It has no closed form here."))
        shapes, loc, scale = self._arguments(method, args, named)
        x, loc, scale, *shapes = as_arrays(f"{self.name}.{method}", x, loc, scale, *shapes)
        z = ops.divide(ops.subtract(x, loc), scale)
        if self.discrete and method not in ("logpmf", "pmf"):
            z = ops.floor(z)
        out = function(z, *shapes)
        if method in ("logpdf", "pdf"):
            out = ops.subtract(out, ops.log(scale))
        if self._support is not None:
            start, end = self._support(*shapes)
            below, above = ops.less(z, start), ops.greater(z, end)
            if method in ("logpmf", "pmf"):
                below = ops.logical_or(below, ops.subtract(z, ops.floor(z)) != 0)
            out = ops.where(below, low, ops.where(above, high, out))
        return out

    def logpdf(self, x: Any, *args: Any, **named: Any) -> Array:
        """Return the logarithm of the density at x."""
        return self._call("logpdf", self._logpdf, x, args, named, -math.inf, -math.inf)

    def pdf(self, x: Any, *args: Any, **named: Any) -> Array:
        """Return the density at x."""
        return ops.exp(self.logpdf(x, *args, **named))

    def logpmf(self, k: Any, *args: Any, **named: Any) -> Array:
        """Return the logarithm of the probability of k; of anything but an integer in the range it is -inf."""
        return self._call("logpmf", self._logpdf, k, args, named, -math.inf, -math.inf)

    def pmf(self, k: Any, *args: Any, **named: Any) -> Array:
        """Return the probability of k."""
        return ops.exp(self.logpmf(k, *args, **named))

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
        """Return the number of which at most a part q of all lies below."""
        return self._quantile("ppf", q, args, named)

    def isf(self, q: Any, *args: Any, **named: Any) -> Array:
        """Return the number of which a part q of all lies above."""
        return self._quantile("isf", ops.subtract(1.0, ops.array(q)), args, named)

    def _quantile(self, method: str, q: Any, args: Any, named: Any) -> Array:
        if self._ppf is None:
            got = f"{self.name}.{method}"
            raise ArgumentError(message(got, "a function that is there", "none", "It has no closed form here."))
        shapes, loc, scale = self._arguments(method, args, named)
        q, loc, scale, *shapes = as_arrays(f"{self.name}.{method}", q, loc, scale, *shapes)
        return self._ppf(q, *shapes) * scale + loc
