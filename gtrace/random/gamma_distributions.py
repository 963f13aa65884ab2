"""Samples of the gamma distribution, and of distributions derived from it.

Each element has its own key. The method is that of Marsaglia and Tsang ("A simple method for generating gamma
variables", 2000), with the bits of jax.random. At most one proposal in twenty is rejected. So all elements make one
attempt. Then a loop handles the remaining ones, an eighth of a large array at a time.
"""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.join_split import slice_axis
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import as_int, as_sizes, full_like_scalar
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.trace.replayable import replayable
from gtrace.core.transform.control.loops import while_loop
from gtrace.core.transform.custom import custom_jvp
from gtrace.core.transform.vmap import vmap
from gtrace.random.continuous import (
    common_shape,
    draw_exponential,
    draw_normal,
    draw_uniform,
    draw_unit,
    float_dtype,
    parameters,
)
from gtrace.random.counts import draw_signs
from gtrace.random.keys import fresh_key, single_keys, subkeys, two_keys
from gtrace.special.gamma_functions import log_sample_slope

__all__ = [
    "gamma", "loggamma", "beta", "chisquare", "dirichlet", "f", "t", "generalized_normal", "ball",
]  # fmt: skip

_BLOCK = 1024
"""The maximal size of arrays that are not cut into blocks."""

State = tuple[Array, ...]
"""The state of one element: its key; the keys of this attempt's normal and uniform number; whether the next attempt
takes new ones; the cube of the accepted number; whether one was accepted."""


def _attempt(alpha: Array, key: Array, normal_key: Array, uniform_key: Array, new: Array) -> State:
    """Return the state of one element after one proposal."""
    row = single_keys(key, 3)
    key, normal_key, uniform_key = (
        ops.where(new, a, b) for a, b in zip(row, (key, normal_key, uniform_key), strict=True)
    )
    normal_key, subkey = two_keys(normal_key)
    dtype = alpha.aval.dtype
    x = draw_normal(subkey, (), dtype)
    d = alpha - 1.0 / 3.0
    root = x * (1.0 / 3.0 / ops.sqrt(d)) + 1.0
    possible = ops.logical_not(root <= 0.0)  # also for NaN, so that the loop ends
    cube = ops.where(possible, root, 1.0) ** 3
    squared = ops.square(x)
    u = draw_uniform(uniform_key, (), dtype, 0.0, 1.0)
    outside = u > 1.0 - ops.square(squared) * 0.0331
    least = squared * 0.5 + d * (1.0 - cube + ops.log(cube))
    refused = ops.logical_and(outside, ops.log(u) > least)
    return key, normal_key, uniform_key, possible, cube, ops.logical_and(possible, ops.logical_not(refused))


def _cubes(alpha: Array, keys: Array) -> Array:
    """Return the accepted numbers for one-dimensional parameters of at least 1, with a key each."""
    count = alpha.size
    yes = full_like_scalar(True, torch.bool, (count,), keys.aval.device)
    each = vmap(_attempt)
    state = each(alpha, keys, keys, keys, yes)
    block = count if count <= _BLOCK else count // 8

    def open_ones(state: State) -> Array:
        return ops.logical_not(ops.all(state[-1]))

    def go_on(state: State) -> State:
        if block == count:
            new = each(alpha, *state[:4])
            return *new[:4], ops.where(state[5], state[4], new[4]), ops.logical_or(state[5], new[5])
        places = slice_axis(ops.argsort(state[-1]), 0, 0, block)
        old = [ops.take(x, places, 0) for x in state]
        new = each(ops.take(alpha, places, 0), *old[:4])
        kept = *new[:4], ops.where(old[5], old[4], new[4]), ops.logical_or(old[5], new[5])
        return tuple(x.at[places].set(part, mode="promise_in_bounds") for x, part in zip(state, kept, strict=True))

    return while_loop(open_ones, go_on, state)[4]


def _draw(key: Array, alpha: Array, logarithm: bool) -> Array:
    """Return samples, or their logarithms, in the shape of `alpha`."""
    shape, dtype = alpha.shape, alpha.aval.dtype
    a = ops.ravel(ops.stop_gradient(alpha))
    keys = ops.reshape(subkeys(key, shape), (a.size, 2))
    pairs = vmap(two_keys)(keys)
    # a sample for alpha is one for alpha + 1 times u ** (1 / alpha)
    large = a >= 1.0
    raised = ops.where(large, a, a + 1.0)
    cube, d = _cubes(raised, pairs[0]), raised - 1.0 / 3.0
    unit = vmap(lambda k: draw_unit(k, (), dtype))(pairs[1])
    if logarithm:
        log_unit = ops.log1p(ops.multiply(unit, -1.0))
        boost = ops.where(ops.logical_or(large, ops.equal(log_unit, 0.0)), 0.0, log_unit / a)
        return ops.reshape(ops.log(d) + ops.log(cube) + boost, shape)
    boost = ops.where(large, 1.0, ops.subtract(1.0, unit) ** (1.0 / a))
    return ops.reshape(d * cube * boost, shape)


# A sample is the point of a fixed quantile, so it moves with alpha. Derivatives follow from the incomplete integral.


@custom_jvp
def _log_moves(alpha: Array, drawn: Array) -> Array:
    return drawn


@_log_moves.defjvp
def _log_moves_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    alpha, drawn = primals
    out = _log_moves(alpha, drawn)
    return out, ops.multiply(tangents[0], log_sample_slope(alpha, out, ops.exp(out)))


@custom_jvp
def _moves(alpha: Array, drawn: Array) -> Array:
    return drawn


@_moves.defjvp
def _moves_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    alpha, drawn = primals
    out = _moves(alpha, drawn)
    inside = ops.maximum(out, torch.finfo(out.aval.dtype).tiny)
    return out, ops.multiply(tangents[0], ops.multiply(out, log_sample_slope(alpha, ops.log(inside), inside)))


def _gamma(key: Array, alpha: Array, shape: tuple[int, ...], logarithm: bool) -> Array:
    """Return samples of one shape in the dtype of `alpha`; 16-bit samples are computed in float32."""
    wide = ops.broadcast_to(alpha, shape)
    if torch.finfo(alpha.aval.dtype).bits == 16:
        wide = cast(wide, torch.float32)
    drawn = ops.stop_gradient(_draw(key, wide, logarithm))
    return cast((_log_moves if logarithm else _moves)(wide, drawn), alpha.aval.dtype)


# -- user functions


@replayable
def gamma(key: Any, a: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return samples of the gamma distribution with shape parameter a and scale 1.

    It is rejection sampling in a loop, until all elements have an accepted proposal.

    Args:
        a: positive number or array; the result is differentiable in it, by the derivative of the quantile.
        shape: the shape of the result; None: that of a.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: a is a number that is not positive.
        DtypeError, ShapeError: wrong arguments.

    >>> x = gt.random.gamma(gt.random.key(0), 2.0, (1000,))
    >>> bool((x > 0).all()), round(float(x.mean()))
    (True, 2)
    """
    found, (alpha,), sizes = parameters("gamma", key, shape, dtype, positive={"a": a})
    return _gamma(found, alpha, sizes, False)


@replayable
def loggamma(key: Any, a: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return logarithms of samples of the gamma distribution, which for small a would be rounded to 0.

    Args:
        a: positive number or array; the result is differentiable in it, by the derivative of the quantile.
        shape: the shape of the result; None: that of a.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: a is a number that is not positive.
        DtypeError, ShapeError: wrong arguments.

    >>> bool(gt.isfinite(gt.random.loggamma(gt.random.key(0), 1e-4, (100,))).all())
    True
    """
    found, (alpha,), sizes = parameters("loggamma", key, shape, dtype, positive={"a": a})
    return _gamma(found, alpha, sizes, True)


@replayable
def beta(key: Any, a: Any, b: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return samples of the beta distribution: X / (X + Y) for samples X and Y of gamma distributions.

    Args:
        a, b: positive numbers or arrays; the result is differentiable in them.
        shape: the shape of the result; None: that of a and b, broadcast.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: a or b is a number that is not positive.
        DtypeError, ShapeError: wrong arguments.

    >>> round(float(gt.random.beta(gt.random.key(0), 2.0, 2.0, (1000,)).mean()), 1)
    0.5
    """
    found, (first, second), sizes = parameters("beta", key, shape, dtype, positive={"a": a, "b": b})
    key_a, key_b = two_keys(found)
    log_x, log_y = _gamma(key_a, first, sizes, True), _gamma(key_b, second, sizes, True)
    most = ops.stop_gradient(ops.maximum(log_x, log_y))
    x, y = ops.exp(ops.subtract(log_x, most)), ops.exp(ops.subtract(log_y, most))
    return x / (x + y)


@replayable
def chisquare(key: Any, df: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return samples of the chi-square distribution with df degrees of freedom.

    Args:
        df: positive number or array; the result is differentiable in it.
        shape: the shape of the result; None: that of df.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: df is a number that is not positive.
        DtypeError, ShapeError: wrong arguments.

    >>> round(float(gt.random.chisquare(gt.random.key(0), 4.0, (4000,)).mean()))
    4
    """
    found, (freedom,), sizes = parameters("chisquare", key, shape, dtype, positive={"df": df})
    return _chisquare(found, freedom, sizes)


def _chisquare(key: Array, df: Array, shape: tuple[int, ...]) -> Array:
    return ops.exp(_gamma(key, df / 2.0, shape, True)) * 2.0


@replayable
def f(key: Any, dfnum: Any, dfden: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return samples of the F distribution: a quotient of two chi-square samples, each over its degrees of freedom.

    Args:
        dfnum, dfden: positive numbers or arrays, of the numerator and the denominator; the result is differentiable in
            them.
        shape: the shape of the result; None: that of dfnum and dfden, broadcast.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: dfnum or dfden is a number that is not positive.
        DtypeError, ShapeError: wrong arguments.

    >>> gt.random.f(gt.random.key(0), 3.0, gt.array([4.0, 5.0])).shape
    (2,)
    """
    positive = {"dfnum": dfnum, "dfden": dfden}
    found, (upper, lower), sizes = parameters("f", key, shape, dtype, positive=positive)
    key_lower, key_upper = two_keys(found)
    above = ops.divide(_chisquare(key_upper, upper, sizes), upper)
    return above / ops.divide(_chisquare(key_lower, lower, sizes), lower)


@replayable
def t(key: Any, df: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return numbers from Student's t distribution with df degrees of freedom.

    Args:
        df: positive number or array; the result is differentiable in it.
        shape: the shape of the result; None: that of df.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: df is a number that is not positive.
        DtypeError, ShapeError: wrong arguments.

    >>> gt.random.t(gt.random.key(0), 3.0, (2, 3)).shape
    (2, 3)
    """
    found, (freedom,), sizes = parameters("t", key, shape, dtype, positive={"df": df})
    key_normal, key_gamma = two_keys(found)
    half = ops.divide(freedom, 2.0)
    scale = ops.sqrt(half / _gamma(key_gamma, half, sizes, False))
    return draw_normal(key_normal, sizes, freedom.aval.dtype) * scale


@replayable
def dirichlet(key: Any, alpha: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return vectors from the Dirichlet distribution: positive numbers that sum to 1.

    Args:
        alpha: array of positive numbers; its last axis is that of the vectors; the result is differentiable in it.
        shape: the shape of the result without its last axis; None: that of alpha without its last axis.
        dtype: floating; float32 by default.

    Raises:
        DtypeError, ShapeError: wrong arguments.

    >>> gt.random.dirichlet(gt.random.key(0), gt.array([1.0, 2.0, 3.0]), (5,)).shape
    (5, 3)
    """
    kind = float_dtype("dirichlet", dtype)
    values = cast(lift("dirichlet", alpha), kind)
    if not values.ndim:
        raise ShapeError(message("dirichlet", "alpha with an axis", repr(values.aval), "Pass a vector."))
    sizes = values.shape if shape is None else (*as_sizes("dirichlet", shape), values.shape[-1])
    sizes = common_shape("dirichlet", sizes, values)
    return ops.softmax(_gamma(fresh_key("dirichlet", key), values, sizes, True), -1)


@replayable
def generalized_normal(key: Any, p: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return numbers whose density is proportional to exp(-|x| ** p).

    Args:
        p: positive number or array; the result is differentiable in it.
        shape: the shape of the result; None: that of p.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: p is a number that is not positive.
        DtypeError, ShapeError: wrong arguments.

    >>> gt.random.generalized_normal(gt.random.key(0), 3.0, (2, 3)).shape
    (2, 3)
    """
    found, (exponent,), sizes = parameters("generalized_normal", key, shape, dtype, positive={"p": p})
    return _generalized_normal(found, exponent, sizes)


def _generalized_normal(key: Array, p: Array, shape: tuple[int, ...]) -> Array:
    key_gamma, key_sign = two_keys(key)
    inverse = 1.0 / p
    size = _gamma(key_gamma, inverse, shape, False) ** inverse
    return draw_signs(key_sign, shape, p.aval.dtype) * size


@replayable
def ball(key: Any, d: Any, p: Any = 2, shape: Any = (), dtype: Any = None) -> Array:
    """Return points uniformly distributed over the unit ball of the p-norm in d dimensions.

    The method is that of Barthe, Guedon, Mendelson and Naor ("A probabilistic approach to the geometry of the l_p^n
    ball", 2005).

    Args:
        d: number of dimensions, a Python integer.
        p: positive number, the exponent of the norm.
        shape: the shape of the result without its last axis, which has d elements.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: d is not an integer >= 0, or p is a number that is not positive.
        DtypeError, ShapeError: wrong arguments.

    >>> x = gt.random.ball(gt.random.key(0), 3, shape=(100,))
    >>> x.shape, bool((gt.sum(x * x, -1) <= 1).all())
    ((100, 3), True)
    """
    count, sizes = as_int("ball", "number of dimensions", d), as_sizes("ball", shape)
    if count < 0:
        raise ArgumentError(message("ball", "a number of dimensions >= 0", str(count), "Pass a non-negative integer."))
    found, (exponent,), whole = parameters("ball", key, (*sizes, count), dtype, positive={"p": p})
    key_points, key_radius = two_keys(found)
    x = _generalized_normal(key_points, exponent, whole)
    e = draw_exponential(key_radius, sizes, exponent.aval.dtype)
    norm = (ops.sum(ops.absolute(x) ** exponent, -1) + e) ** ops.divide(1.0, exponent)
    return x / ops.expand_dims(norm, -1)
