"""Samples of counts and signs.

`binomial` and `poisson` use rejection sampling for all elements at once, until each has an accepted number. They
compute in float64, so that large counts are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.dtypes import LONG
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.core.ops.join_split import slice_axis
from gtrace.core.ops.operands import cast, counting
from gtrace.core.ops.shape import as_sizes, full_like_scalar
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift, real_scalar
from gtrace.core.trace.key_uses import consume
from gtrace.core.trace.promotion import as_dtype, default_dtype
from gtrace.core.trace.replayable import replayable
from gtrace.core.transform.control.loops import while_loop
from gtrace.core.transform.control.scan import scan
from gtrace.random.continuous import bound, common_shape, draw_unit, parameters
from gtrace.random.keys import as_key, fresh_key, single_keys, subkeys, two_keys
from gtrace.special.gamma_functions import gammaln

__all__ = ["binomial", "geometric", "multinomial", "poisson", "rademacher"]


def _count_dtype(name: str, dtype: Any, default: torch.dtype) -> torch.dtype:
    kind = default if dtype is None else as_dtype(dtype)
    if kind is torch.bool:
        raise DtypeError(message(name, "a dtype of numbers", LONG[kind], "Use gt.int64 or gt.float32."))
    return kind


def draw_signs(key: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    """Return `rademacher` without checking the arguments."""
    return ops.multiply(cast(ops.less(draw_unit(key, shape, default_dtype(float)), 0.5), dtype), 2) - 1


@replayable
@counting
def rademacher(key: Any, shape: Any = (), dtype: Any = None) -> Array:
    """Return signs, 1 or -1, each with probability 1/2.

    Args:
        dtype: signed or floating; int64 by default.

    Raises:
        ArgumentError, DtypeError, ShapeError: wrong arguments.

    >>> gt.random.rademacher(gt.random.key(0), (4,))
    Array([-1, -1,  1,  1], dtype=int64)
    """
    sizes, kind = as_sizes("rademacher", shape), _count_dtype("rademacher", dtype, torch.int64)
    if kind is torch.uint8:
        raise DtypeError(message("rademacher", "a signed dtype", LONG[kind], "Use gt.int8."))
    return draw_signs(fresh_key("rademacher", key), sizes, kind)


def _probability(name: str, p: Any) -> None:
    value = real_scalar(p)
    if value is not None and not 0 <= value <= 1:
        raise ArgumentError(message(name, "a probability in [0, 1]", repr(p), "Clip it."))


@replayable
@counting
def geometric(key: Any, p: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return the number of trials up to the first success, 1, 2, ..., for trials with success probability p.

    Args:
        p: number in [0, 1], or array.
        shape: the shape of the result; None: that of p.
        dtype: of numbers; int64 by default.

    Raises:
        ArgumentError: p is a number outside [0, 1].
        DtypeError, ShapeError: wrong arguments.

    >>> round(float(gt.random.geometric(gt.random.key(0), 0.25, (4000,), gt.float32).mean()))
    4
    """
    _probability("geometric", p)
    kind = _count_dtype("geometric", dtype, torch.int64)
    found, (chance,), sizes = parameters("geometric", key, shape, _drawn_in(p), p=p)
    # for a sample of 0, take the logarithm half a step above it
    u = ops.maximum(draw_unit(found, sizes, chance.aval.dtype), torch.finfo(chance.aval.dtype).eps / 2)
    return cast(ops.floor(ops.log(u) / ops.log1p(ops.multiply(chance, -1.0))) + 1.0, kind)


def _drawn_in(p: Any) -> torch.dtype:
    """Return the dtype of uniform samples for a parameter: its own if that is float64, else float32."""
    if type(p) is not Array and real_scalar(p) is not None:
        return default_dtype(float)
    return torch.float64 if lift("p", p).aval.dtype is torch.float64 else torch.float32


def _wide_unit(key: Array, shape: tuple[int, ...]) -> Array:
    return cast(draw_unit(key, shape, torch.float32), torch.float64)


def _refuse_until_all(
    key: Array, ready: Array, shape: tuple[int, ...], propose: Callable[[Array, Array], tuple[Array, Array]]
) -> Array:
    """Return float64 proposals, the last accepted one for each element.

    Args:
        ready: flags the elements that need none.
        propose: maps two uniform numbers to a proposal, and whether it is accepted.
    """

    def go_on(state: tuple[Array, ...]) -> tuple[Array, ...]:
        key, drawn, done = state
        key, first, second = single_keys(key, 3)
        proposal, accepted = propose(ops.subtract(_wide_unit(first, shape), 0.5), _wide_unit(second, shape))
        return key, ops.where(accepted, proposal, drawn), ops.logical_or(done, accepted)

    start = full_like_scalar(-1.0, torch.float64, shape, key.aval.device)
    return while_loop(lambda state: ops.logical_not(ops.all(state[2])), go_on, (key, start, ready))[1]


# -- Poisson


@replayable
@counting
def poisson(key: Any, lam: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return samples of the Poisson distribution: counts of events with mean lam.

    For lam < 10, uniform numbers are multiplied (Knuth). Elsewhere it is rejection sampling, until all elements have an
    accepted proposal (Hoermann, "The transformed rejection method for generating Poisson random variables", 1993).

    Args:
        lam: number >= 0, or array.
        shape: the shape of the result; None: that of lam.
        dtype: of numbers; int64 by default.

    Raises:
        ArgumentError: lam is a negative number.
        DtypeError, ShapeError: wrong arguments.

    >>> gt.random.poisson(gt.random.key(0), 3.0, (5,)).dtype
    gtrace.int64
    """
    kind = _count_dtype("poisson", dtype, torch.int64)
    value = real_scalar(lam)
    if value is not None and not value >= 0:
        raise ArgumentError(message("poisson", "lam >= 0", repr(lam), "Pass a non-negative number."))
    found, (rate,), sizes = parameters("poisson", key, shape, torch.float64, lam=lam)
    rate = ops.broadcast_to(rate, sizes)
    large = rate >= 10.0
    product = _poisson_product(found, ops.where(large, 0.0, rate), sizes)
    # if one element must propose, all do, as in jax: which proposal is last depends on all elements
    ready = ops.broadcast_to(ops.logical_not(ops.any(large)), sizes)
    counts = ops.where(large, _poisson_refusing(found, ops.where(large, rate, 1e5), ready, sizes), product)
    return cast(ops.where(ops.equal(rate, 0.0), 0.0, counts), kind)


def _poisson_product(key: Array, rate: Array, shape: tuple[int, ...]) -> Array:
    def running(state: tuple[Array, ...]) -> Array:
        return ops.any(ops.greater(state[2], rate * -1.0))

    def go_on(state: tuple[Array, ...]) -> tuple[Array, ...]:
        key, count, total = state
        key, subkey = two_keys(key)
        count = ops.where(total > rate * -1.0, ops.add(count, 1.0), count)
        return key, count, total + ops.log(_wide_unit(subkey, shape))

    zero = full_like_scalar(0.0, torch.float64, shape, key.aval.device)
    return ops.subtract(while_loop(running, go_on, (key, zero, zero))[1], 1.0)


def _poisson_refusing(key: Array, rate: Array, ready: Array, shape: tuple[int, ...]) -> Array:
    # the constants of the method PTRS in the paper
    b = ops.sqrt(rate) * 2.53 + 0.931
    a = b * 0.02483 - 0.059
    inverse_alpha = 1.1328 / (b - 3.4) + 1.1239
    sure = 0.9277 - 3.6224 / (b - 2.0)
    log_rate = ops.log(rate)

    def propose(u: Array, v: Array) -> tuple[Array, Array]:
        distance = 0.5 - ops.absolute(u)
        k = ops.floor((a * 2.0 / distance + b) * u + rate + 0.43)
        inside = ops.logical_and(distance >= 0.07, v <= sure)
        outside = ops.logical_or(k < 0.0, ops.logical_and(distance < 0.013, v > distance))
        height = ops.log(v * inverse_alpha / (a / (distance * distance) + b))
        likelihood = k * log_rate - rate - gammaln(k + 1.0)
        likely = ops.logical_and(ops.logical_not(outside), height <= likelihood)
        return k, ops.logical_or(inside, likely)

    return _refuse_until_all(key, ready, shape, propose)


# -- binomial and multinomial


@replayable
@counting
def binomial(key: Any, n: Any, p: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return the number of successes in n trials with success probability p.

    For n * min(p, 1 - p) < 10, geometric numbers are added. Elsewhere it is rejection sampling, until all elements have
    an accepted proposal (Hoermann, "The generation of binomial random variates", 1993).

    Args:
        n: integer >= 0, or array, of any dtype.
        p: number in [0, 1], or array.
        shape: the shape of the result; None: that of n and p, broadcast.
        dtype: of numbers; float32 by default, as in jax. Invalid parameters give NaN then.

    Raises:
        ArgumentError: n is a negative number, or p a number outside [0, 1].
        DtypeError, ShapeError: wrong arguments.

    >>> x = gt.random.binomial(gt.random.key(0), 10, 0.5, (100,))
    >>> bool(((x >= 0) & (x <= 10)).all())
    True
    """
    kind = _count_dtype("binomial", dtype, default_dtype(float))
    _trials("binomial", n)
    _probability("binomial", p)
    found, (trials, chance), sizes = parameters("binomial", key, shape, torch.float64, n=n, p=p)
    return cast(_binomial(found, ops.broadcast_to(trials, sizes), ops.broadcast_to(chance, sizes)), kind)


def _trials(name: str, n: Any) -> None:
    value = real_scalar(n)
    if value is not None and not value >= 0:
        raise ArgumentError(message(name, "n >= 0 trials", repr(n), "Pass a non-negative number."))


def _binomial(key: Array, n: Array, p: Array) -> Array:
    """Return float64 numbers of successes for parameters of one shape."""
    q = ops.minimum(p, 1.0 - p)
    possible = ops.logical_and(n >= 0.0, q >= 0.0)
    large = ops.logical_and(possible, n * q >= 10.0)
    some = ops.logical_and(ops.logical_and(possible, q > 0.0), ops.logical_not(large))
    small = _binomial_sum(key, ops.where(some, n, -1.0), ops.where(some, q, 0.5))
    counts = ops.where(
        large,
        _binomial_refusing(key, ops.where(large, n, 100.0), ops.where(large, q, 0.5), ops.logical_not(large)),
        small,
    )
    counts = ops.where(ops.equal(q, 0.0), 0.0, counts)
    counts = ops.where(p > 0.5, n - counts, counts)
    return ops.where(possible, counts, float("nan"))


def _binomial_sum(key: Array, n: Array, q: Array) -> Array:
    log_failure = ops.log1p(q * -1.0)

    def go_on(state: tuple[Array, ...]) -> tuple[Array, ...]:
        key, count, trials = state
        key, subkey = two_keys(key)
        count = ops.where(trials <= n, ops.add(count, 1.0), count)
        return key, count, trials + ops.ceil(ops.log(_wide_unit(subkey, n.shape)) / log_failure)

    zero = full_like_scalar(0.0, torch.float64, n.shape, key.aval.device)
    done = while_loop(lambda state: ops.any(ops.less_equal(state[2], n)), go_on, (key, zero, zero))
    return ops.subtract(done[1], 1.0)


def _binomial_refusing(key: Array, n: Array, q: Array, ready: Array) -> Array:
    # the constants of the method BTRS in the paper
    deviation = ops.sqrt(n * q * (1.0 - q))
    b = deviation * 2.53 + 1.15
    a = b * 0.0248 + q * 0.01 - 0.0873
    sure = 0.92 - 4.2 / b
    alpha = (5.1 / b + 2.83) * deviation
    middle = ops.floor((n + 1.0) * q)
    odds = ops.log(q / (1.0 - q))
    most = ops.add(gammaln(middle + 1.0), gammaln(n - middle + 1.0))

    def propose(u: Array, v: Array) -> tuple[Array, Array]:
        distance = 0.5 - ops.absolute(u)
        k = ops.floor((a * 2.0 / distance + b) * u + n * q + 0.5)
        inside = ops.logical_and(distance >= 0.07, v <= sure)
        within = ops.logical_and(k >= 0.0, k <= n)
        height = ops.log(v * alpha / (a / (distance * distance) + b))
        kept = ops.where(within, k, middle)
        ways = ops.add(gammaln(kept + 1.0), gammaln(n - kept + 1.0))
        likelihood = most - ways + (kept - middle) * odds
        likely = ops.logical_and(within, height <= likelihood)
        return k, ops.logical_or(inside, likely)

    return _refuse_until_all(key, ready, n.shape, propose)


@replayable
def multinomial(key: Any, n: Any, p: Any, *, shape: Any = None, dtype: Any = None) -> Array:
    """Return the count of each of several outcomes in n trials.

    Outcomes are sampled one after the other, from binomial distributions over the remaining trials.

    Args:
        n: integer >= 0, or array, which broadcasts to the shape of p without its last axis.
        p: array of numbers >= 0, proportional to the probabilities of the outcomes along its last axis.
        shape: the shape of the result without its last axis; None: that of n and of p without its last axis, broadcast.
        dtype: of numbers; float32 by default, as in jax.

    Raises:
        ArgumentError: n is a negative number.
        DtypeError, ShapeError: wrong arguments.

    >>> x = gt.random.multinomial(gt.random.key(0), 10, gt.array([0.2, 0.3, 0.5]))
    >>> x.shape, float(x.sum())
    ((3,), 10.0)
    """
    kind = _count_dtype("multinomial", dtype, default_dtype(float))
    _trials("multinomial", n)
    found = as_key("multinomial", key)
    weights = cast(lift("multinomial", p), torch.float64)
    if not weights.ndim or not weights.shape[-1]:
        raise ShapeError(message("multinomial", "p with outcomes along an axis", repr(weights.aval), "Pass a vector."))
    trials = bound("multinomial", n, torch.float64, None)
    if type(trials) is float:
        trials = full_like_scalar(trials, torch.float64, (), found.aval.device)
    count = weights.shape[-1]
    place = full_like_scalar(0.0, torch.float64, weights.shape[:-1], found.aval.device)
    sizes = common_shape("multinomial", shape, trials, place)
    consume("multinomial", found)
    rows = ops.moveaxis(ops.broadcast_to(weights, (*sizes, count)), -1, 0)
    rest = ops.flip(ops.cumsum(ops.flip(rows, 0), axis=0), 0)
    shares = ops.minimum(rows / ops.where(rest > 0.0, rest, 1.0), 1.0)

    def draw(left: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        subkey, share = step
        taken = _binomial(subkey, left, share)
        return left - taken, taken

    keys = slice_axis(subkeys(found, (count,)), 0, 0, count - 1)
    left, taken = scan(draw, ops.broadcast_to(trials, sizes), (keys, slice_axis(shares, 0, 0, count - 1)))
    return cast(ops.moveaxis(ops.concat([taken, ops.expand_dims(left, 0)], 0), 0, -1), kind)
