"""Samples of booleans, categories, permutations and elements."""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.core.ops.checks import floats_only
from gtrace.core.ops.join_split import slice_axis
from gtrace.core.ops.operands import cast, counting
from gtrace.core.ops.shape import as_int, as_sizes, full_like_scalar, normalize_axis
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift, python_scalar
from gtrace.core.trace.promotion import default_dtype
from gtrace.core.trace.replayable import replayable
from gtrace.random.continuous import check_mode, common_shape, draw_gumbel, draw_unit
from gtrace.random.integers import draw_below
from gtrace.random.keys import draw_bits, fresh_key, two_keys

__all__ = ["bernoulli", "categorical", "choice", "permutation"]


@replayable
def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, mode: str = "low") -> Array:
    """Return booleans that are true with probability p.

    Args:
        p: floating number in [0, 1], or array, whose dtype the sample uses.
        shape: the shape of the result; None: that of p.
        mode: ``"high"`` uses twice the bits, for p below 1e-7.

    Raises:
        ArgumentError: p is a number outside [0, 1].
        DtypeError, ShapeError: wrong arguments.

    >>> gt.random.bernoulli(gt.random.key(0), 0.95, (3,))
    Array([ True, False,  True], dtype=bool)
    """
    check_mode("bernoulli", mode)
    chance = lift("bernoulli", p)
    floats_only("bernoulli", (chance.aval,))
    value = None if type(p) is Array else python_scalar(p)
    if value is not None and not 0 <= value <= 1:  # type: ignore[operator]  # real: floats_only
        raise ArgumentError(message("bernoulli", "a probability in [0, 1]", repr(p), "Clip it."))
    sizes = common_shape("bernoulli", shape, chance)
    found = fresh_key("bernoulli", key)
    if value is not None:
        chance = full_like_scalar(value, default_dtype(float), (), found.aval.device)
    if mode == "low":
        return ops.less(draw_unit(found, sizes, chance.aval.dtype), chance)
    coarse, fine = ops.unstack(draw_unit(found, (2, *sizes), chance.aval.dtype))
    return ops.multiply(fine, torch.finfo(chance.aval.dtype).eps) < ops.subtract(chance, coarse)


@replayable
@counting
def categorical(
    key: Any, logits: Any, axis: int = -1, shape: Any = None, replace: bool = True, mode: str = "low"
) -> Array:
    """Return indices along `axis`, sampled with probability ``softmax(logits, axis)``.

    Args:
        logits: floating array of log probabilities, up to a constant.
        shape: of the result: axes for independent samples, then the shape of the logits without `axis`; None: only the
            latter.
        replace: False: the samples of one distribution are distinct.
        mode: ``"high"`` uses twice the bits, for probabilities below 1e-7.

    Returns:
        int64.

    Raises:
        ArgumentError: there are fewer categories than distinct samples.
        DtypeError, ShapeError: wrong arguments.

    >>> gt.random.categorical(gt.random.key(0), gt.log(gt.array([0.1, 0.2, 0.7])), shape=(5,)).shape
    (5,)
    """
    check_mode("categorical", mode)
    x = lift("categorical", logits)
    floats_only("categorical", (x.aval,))
    place = normalize_axis("categorical", axis, x.ndim)
    if not x.shape[place]:
        raise ShapeError(message("categorical", "at least one category", repr(x.aval), "Check the axis."))
    batch = x.shape[:place] + x.shape[place + 1 :]
    sizes = batch if shape is None else as_sizes("categorical", shape)
    prefix = sizes[: len(sizes) - len(batch)]
    if sizes[len(prefix) :] != batch:
        fix = "Draws of their own come in front."
        raise ShapeError(message("categorical", f"a shape that ends with {batch}", str(sizes), fix))
    if not replace and math.prod(prefix) > x.shape[place]:
        got = f"{math.prod(prefix)} draws"
        raise ArgumentError(
            message("categorical", f"at most {x.shape[place]} draws without replacement", got, "Draw fewer.")
        )
    found = fresh_key("categorical", key)
    if replace:
        noise = draw_gumbel(found, (*prefix, *x.shape), x.aval.dtype, mode)
        return ops.argmax(noise + x, axis=len(prefix) + place)
    noisy = ops.moveaxis(x + draw_gumbel(found, x.shape, x.aval.dtype, mode), place, -1)
    order = slice_axis(ops.argsort(noisy, descending=True), x.ndim - 1, 0, math.prod(prefix))
    return ops.reshape(ops.moveaxis(order, -1, 0), sizes)


# -- permutations


def _shuffled(key: Array, x: Array, axis: int) -> Array:
    """Return x shuffled along `axis`, each vector independently, by several rounds of sorting by random numbers.

    Numbers of 32 bits may be equal. There are so many rounds that two elements hardly ever tie in all of them.
    """
    rounds = math.ceil(3 * math.log(max(1, x.size)) / math.log(0xFFFFFFFF))
    for _ in range(rounds):
        key, subkey = two_keys(key)
        x = ops.take_along_axis(x, ops.argsort(draw_bits(subkey, x.shape, 32), axis=axis), axis)
    return x


def _permuted(key: Array, x: Array, axis: int, independent: bool) -> Array:
    if independent or x.ndim == 1:
        return _shuffled(key, x, axis)
    return ops.take(
        x, _shuffled(key, ops.arange(x.shape[axis], device=key.aval.device), 0), axis, mode="promise_in_bounds"
    )


@replayable
@counting
def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Array:
    """Return x in a random order.

    Args:
        x: an array, or an integer n, which means ``gt.arange(n)``.
        axis: the axis along which the elements move.
        independent: shuffle each vector along `axis` independently.

    Raises:
        ArgumentError: x is a number, but no integer >= 0.
        ShapeError: there is no such axis.

    >>> gt.random.permutation(gt.random.key(0), 5)
    Array([0, 1, 4, 3, 2], dtype=int64)
    """
    population, axis = _population("permutation", x, axis)
    found = fresh_key("permutation", key)
    if isinstance(population, int):
        return _shuffled(found, ops.arange(population, device=found.aval.device), 0)
    return _permuted(found, population, axis, independent)


def _population(name: str, x: Any, axis: Any) -> tuple[int | Array, int]:
    """Return the array to choose from, and the axis counted from the front."""
    if type(x) is Array or python_scalar(x) is None:
        array = lift(name, x)
        if array.ndim:
            return array, normalize_axis(name, axis, array.ndim)
        if array.aval.floating or array.aval.dtype is torch.bool:
            raise DtypeError(message(name, "an integer, or an array with an axis", repr(array.aval), "Pass one."))
        x = int(array)
    count = as_int(name, "size of the population", x)
    if count < 0:
        raise ArgumentError(message(name, "a size >= 0", str(count), "Pass a non-negative integer."))
    return count, normalize_axis(name, axis, 1)


@replayable
@counting
def choice(
    key: Any, a: Any, shape: Any = (), replace: bool = True, p: Any = None, axis: int = 0, mode: str = "low"
) -> Array:
    """Return randomly chosen elements of a.

    Args:
        a: an array, or an integer n, which means ``gt.arange(n)``.
        shape: the shape of the sample, which replaces `axis` in the shape of a.
        replace: False: no element is chosen twice.
        p: one-dimensional floating array, proportional to the probability of each element; None: uniform.
        axis: the axis of the elements.
        mode: with p and without replacement, ``"high"`` uses twice the bits.

    Raises:
        ArgumentError: more samples without replacement than elements, a sample of nothing, or a NumPy array p that is
            not a distribution.
        DtypeError, ShapeError: wrong arguments.

    >>> gt.random.choice(gt.random.key(0), gt.array([10, 20, 30]), (4,))
    Array([20, 10, 30, 20], dtype=int64)
    """
    sizes = as_sizes("choice", shape)
    check_mode("choice", mode)
    population, axis = _population("choice", a, axis)
    count = population if isinstance(population, int) else population.shape[axis]
    draws = math.prod(sizes)
    if draws and not count:
        raise ArgumentError(message("choice", "something to choose from", "nothing", "Check the population."))
    if not replace and draws > count:
        expected = f"at most {count} draws without replacement"
        raise ArgumentError(message("choice", expected, str(draws), "Draw fewer, or with replacement."))
    weights = None if p is None else _weights(p, count, draws, replace)
    found = fresh_key("choice", key)
    if not draws:
        indices = ops.zeros(sizes, torch.int64, device=found.aval.device)
    elif weights is None and replace:
        indices = draw_below(found, sizes, count)
    elif weights is None:
        every = ops.arange(count, device=found.aval.device) if isinstance(population, int) else population
        chosen = slice_axis(_permuted(found, every, axis, False), axis, 0, draws)
        return ops.reshape(chosen, (*every.shape[:axis], *sizes, *every.shape[axis + 1 :]))
    elif replace:
        sums = ops.cumsum(weights)
        unit = draw_unit(found, sizes, weights.aval.dtype)
        indices = ops.searchsorted(sums, slice_axis(sums, 0, count - 1, count).reshape(()) * ops.subtract(1.0, unit))
    else:
        noisy = draw_gumbel(found, (count,), weights.aval.dtype, mode) + ops.log(weights)
        indices = ops.reshape(slice_axis(ops.argsort(noisy, descending=True), 0, 0, draws), sizes)
    return indices if isinstance(population, int) else _taken(population, indices, axis)


def _taken(x: Array, indices: Array, axis: int) -> Array:
    flat = ops.take(x, ops.reshape(indices, (indices.size,)), axis, mode="promise_in_bounds")
    return ops.reshape(flat, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _weights(p: Any, count: int, draws: int, replace: bool) -> Array:
    weights = lift("choice", p)
    if weights.shape != (count,):
        raise ShapeError(message("choice", f"p of shape ({count},)", repr(weights.aval), "One for each element."))
    if weights.aval.dtype is torch.bool or not weights.aval.floating:
        weights = cast(weights, default_dtype(float))
    if isinstance(p, numpy.ndarray):
        possible = int((p > 0).sum())
        if not numpy.isfinite(p).all() or (p < 0).any() or not possible:
            got = str(p)
            raise ArgumentError(message("choice", "finite probabilities >= 0, not all 0", got, "Check p."))
        if not replace and draws > possible:
            expected = f"at most {possible} draws without replacement"
            raise ArgumentError(message("choice", expected, str(draws), "The other elements have probability 0."))
    return weights
