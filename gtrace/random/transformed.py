"""Samples that are formulas of uniform, normal or exponential samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.elementwise import neg
from gtrace.core.ops.shape import as_sizes
from gtrace.core.trace.array import Array
from gtrace.core.trace.replayable import replayable
from gtrace.random.continuous import (
    bound,
    draw_exponential,
    draw_normal,
    draw_uniform,
    draw_unit,
    float_dtype,
    parameters,
)
from gtrace.random.counts import draw_signs
from gtrace.random.keys import fresh_key, two_keys

__all__ = [
    "cauchy", "double_sided_maxwell", "exponential", "laplace", "logistic", "lognormal", "maxwell", "pareto",
    "rayleigh", "triangular", "wald", "weibull_min",
]  # fmt: skip


def _without_parameters(
    name: str, distribution: str, draw: Callable[[Array, tuple[int, ...], torch.dtype], Array]
) -> Callable[..., Array]:
    """Return the function that draws from a distribution without parameters."""

    def sample(key: Any, shape: Any = (), dtype: Any = None) -> Array:
        sizes, kind = as_sizes(name, shape), float_dtype(name, dtype)
        return draw(fresh_key(name, key), sizes, kind)

    sample.__name__ = sample.__qualname__ = name
    sample.__doc__ = f"""Return numbers from the {distribution}.

    Args:
        dtype: floating; float32 by default.

    Raises:
        ArgumentError, DtypeError, ShapeError: wrong arguments.

    >>> gt.random.{name}(gt.random.key(0), (2, 3)).shape
    (2, 3)
    """
    return replayable(sample)


def _cauchy(key: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    u = draw_uniform(key, shape, dtype, torch.finfo(dtype).eps, 1.0)
    return ops.tan(ops.subtract(u, 0.5) * math.pi)


def _laplace(key: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    u = draw_uniform(key, shape, dtype, -1.0 + torch.finfo(dtype).eps / 2, 1.0)
    return ops.sign(u) * ops.log1p(neg(ops.absolute(u)))


def _logistic(key: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    u = draw_uniform(key, shape, dtype, torch.finfo(dtype).eps, 1.0)
    return ops.log(u / ops.subtract(1.0, u))


def _maxwell(key: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    return ops.sqrt(ops.sum(ops.square(draw_normal(key, (*shape, 3), dtype)), -1))


cauchy = _without_parameters("cauchy", "standard Cauchy distribution", _cauchy)
exponential = _without_parameters("exponential", "exponential distribution of rate 1", draw_exponential)
laplace = _without_parameters("laplace", "Laplace distribution of scale 1", _laplace)
logistic = _without_parameters("logistic", "standard logistic distribution", _logistic)
maxwell = _without_parameters(
    "maxwell", "Maxwell distribution: lengths of vectors of three standard normal numbers", _maxwell
)


@replayable
def lognormal(key: Any, sigma: Any = 1.0, shape: Any = None, dtype: Any = None) -> Array:
    """Return exponentials of normal samples with standard deviation sigma.

    Args:
        sigma: number or array; the result is differentiable in it.
        shape: the shape of the result; None: that of sigma.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError, DtypeError, ShapeError: wrong arguments.

    >>> bool((gt.random.lognormal(gt.random.key(0), 0.5, (100,)) > 0).all())
    True
    """
    found, (scale,), sizes = parameters("lognormal", key, shape, dtype, sigma=sigma)
    return ops.exp(ops.multiply(draw_normal(found, sizes, scale.aval.dtype), scale))


@replayable
def double_sided_maxwell(key: Any, loc: Any, scale: Any, shape: Any = (), dtype: Any = None) -> Array:
    """Return samples of the Maxwell distribution with a random sign, times scale, plus loc.

    Args:
        loc, scale: numbers or arrays; the result is differentiable in them.
        shape: of the samples for each parameter; the result has this shape, then that of loc and scale, broadcast.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError, DtypeError, ShapeError: wrong arguments.

    >>> gt.random.double_sided_maxwell(gt.random.key(0), gt.zeros(3), 1.0, (2,)).shape
    (2, 3)
    """
    name = "double_sided_maxwell"
    prefix, kind = as_sizes(name, shape), float_dtype(name, dtype)
    both = [bound(name, x, kind, None) for x in (loc, scale)]
    try:
        sizes = (*prefix, *numpy.broadcast_shapes(*[x.shape for x in both if isinstance(x, Array)]))
    except ValueError:
        got = " and ".join(repr(x.aval) for x in both)
        raise ShapeError(message(name, "parameters that broadcast", got, "Sizes must be equal or 1.")) from None
    key_size, key_sign = two_keys(fresh_key(name, key))
    size = ops.multiply(draw_signs(key_sign, sizes, kind), _maxwell(key_size, sizes, kind))
    return size * both[1] + both[0]


@replayable
def pareto(key: Any, b: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return numbers of at least 1 from the Pareto distribution of exponent b: density b / x ** (b + 1).

    Args:
        b: positive number or array; the result is differentiable in it.
        shape: the shape of the result; None: that of b.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: b is a number that is not positive.
        DtypeError, ShapeError: wrong arguments.

    >>> bool((gt.random.pareto(gt.random.key(0), 3.0, (100,)) >= 1).all())
    True
    """
    found, (exponent,), sizes = parameters("pareto", key, shape, dtype, positive={"b": b})
    return ops.exp(ops.divide(draw_exponential(found, sizes, exponent.aval.dtype), exponent))


@replayable
def rayleigh(key: Any, scale: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return samples of the Rayleigh distribution: lengths of vectors of two normal numbers.

    Args:
        scale: positive number or array, the standard deviation of these; the result is differentiable in it.
        shape: the shape of the result; None: that of scale.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: scale is a number that is not positive.
        DtypeError, ShapeError: wrong arguments.

    >>> bool((gt.random.rayleigh(gt.random.key(0), 2.0, (100,)) > 0).all())
    True
    """
    found, (factor,), sizes = parameters("rayleigh", key, shape, dtype, positive={"scale": scale})
    # for a sample of 0, take the logarithm half a step above it
    half_step = torch.finfo(factor.aval.dtype).eps / 2
    u = ops.maximum(draw_unit(found, sizes, factor.aval.dtype), half_step)
    return ops.sqrt(ops.log(u) * -2.0) * factor


@replayable
def triangular(key: Any, left: Any, mode: Any, right: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return samples over [left, right], whose density rises linearly up to the mode and falls linearly after it.

    Args:
        left, mode, right: numbers or arrays; the result is differentiable in them.
        shape: the shape of the result; None: that of the parameters, broadcast.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: the parameters are numbers without left <= mode <= right and left < right.
        DtypeError, ShapeError: wrong arguments.

    >>> x = gt.random.triangular(gt.random.key(0), 1.0, 2.0, 4.0, (100,))
    >>> bool(((x >= 1) & (x <= 4)).all())
    True
    """
    numbers = [x for x in (left, mode, right) if isinstance(x, (int, float))]
    if len(numbers) == 3 and not (left <= mode <= right and left < right):
        got = f"{left}, {mode} and {right}"
        raise ArgumentError(message("triangular", "left <= mode <= right, left < right", got, "Fix the range."))
    found, (low, peak, high), sizes = parameters("triangular", key, shape, dtype, left=left, mode=mode, right=right)
    u = draw_unit(found, sizes, low.aval.dtype)
    width, rise, fall = ops.subtract(high, low), ops.subtract(peak, low), ops.subtract(high, peak)
    first = u < rise / width
    # the unused root must not make the derivative of the used one infinite, nor must a u of 0
    before = ops.sqrt(u) * ops.sqrt(ops.where(first, width * rise, 1.0))
    after = ops.sqrt(ops.where(first, 1.0, ops.subtract(1.0, u) * width * fall))
    return ops.where(first, low + before, high - after)


@replayable
def wald(key: Any, mean: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return samples of the Wald (inverse Gaussian) distribution of scale 1.

    The method is that of Michael, Schucany and Haas ("Generating random variates using transformations with multiple
    roots", 1976).

    Args:
        mean: positive number or array. The choice between two roots is constant for derivatives.
        shape: the shape of the result; None: that of mean.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: mean is a number that is not positive.
        DtypeError, ShapeError: wrong arguments.

    >>> bool((gt.random.wald(gt.random.key(0), 2.0, (100,)) > 0).all())
    True
    """
    found, (mu,), sizes = parameters("wald", key, shape, dtype, positive={"mean": mean})
    key_normal, key_choice = two_keys(found)
    v, z = draw_normal(key_normal, sizes, mu.aval.dtype), draw_unit(key_choice, sizes, mu.aval.dtype)
    y = ops.square(v) * mu
    # the smaller root, as a quotient without cancellation; the product of the roots is mu ** 2
    root = ops.absolute(v) * ops.sqrt(mu * (y + 4.0))
    small = ops.multiply(mu, 2.0) / (y + 2.0 + root)
    return ops.where(z <= mu / (mu + small), small, ops.square(mu) / small)


@replayable
def weibull_min(key: Any, scale: Any, concentration: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return samples of the Weibull distribution.

    Args:
        scale: positive number or array; the result is differentiable in it.
        concentration: likewise, the shape parameter.
        shape: the shape of the result; None: that of scale and concentration, broadcast.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: scale or concentration is a number that is not positive.
        DtypeError, ShapeError: wrong arguments.

    >>> bool((gt.random.weibull_min(gt.random.key(0), 2.0, 1.5, (100,)) >= 0).all())
    True
    """
    positive = {"scale": scale, "concentration": concentration}
    found, (factor, exponent), sizes = parameters("weibull_min", key, shape, dtype, positive=positive)
    e = draw_exponential(found, sizes, factor.aval.dtype)
    return e ** ops.divide(1.0, exponent) * factor
