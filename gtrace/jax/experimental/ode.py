"""``jax.experimental.ode``: an adaptive solver of ordinary differential equations, with the adjoint as its derivative.

The pairs of order 5 and 4, and the values between the steps, are those of Dormand and Prince (J. Comput. Appl. Math. 6,
1980) with the interpolation of Shampine (Math. Comp. 46, 1986).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy

import gtrace as gt
from gtrace.extend import Array, ravel_pytree, tree

_TIMES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERROR = (
    35 / 384 - 1951 / 21600, 0, 500 / 1113 - 22642 / 50085, 125 / 192 - 451 / 720, -2187 / 6784 + 12231 / 42400,
    11 / 84 - 649 / 6300, -1 / 60,
)  # fmt: skip
_MIDDLE = (
    6025192743 / 30085553152 / 2, 0, 51252292925 / 65400821598 / 2, -2691868925 / 45128329728 / 2,
    187940372067 / 1594534317056 / 2, -1776094331 / 19743644256 / 2, 11237099 / 235043384 / 2,
)  # fmt: skip

_Field = Callable[[Array, Array], Array]


def odeint(
    func: Callable[..., Any], y0: Any, t: Any, *args: Any, rtol: float = 1.4e-8, atol: float = 1.4e-8,
    mxstep: Any = numpy.inf, hmax: Any = numpy.inf,
) -> Any:  # fmt: skip
    """Return the solution of dy/dt = func(y, t, *args) with y(t[0]) = y0, at the times t, stacked on axis 0.

    Its derivative by y0, t and args solves the adjoint equation backwards in time. It takes as little memory as the
    solution.

    Args:
        func: from the state, a time and args to the derivative of the state, of the same structure.
        y0: pytree of floating arrays.
        t: one axis of increasing times.
        args: pytrees of arrays.
        rtol, atol: the largest errors of a step, relative to the state and absolute.
        mxstep: the most steps between two times.
        hmax: the longest step.

    >>> import gtrace.jax.numpy as jnp
    >>> y = odeint(lambda y, t: -y, 1.0, jnp.array([0., 1.]), rtol=1e-5, atol=1e-5)
    >>> round(float(y[1]), 4)
    0.3679
    """
    start, unravel = ravel_pytree(y0)
    times = gt.array(t)
    given = tree.map(gt.asarray, args)
    function, constants = gt.closure_convert(lambda y, time, *a: ravel_pytree(func(unravel(y), time, *a))[0],
                                             start, times[0], *given)  # fmt: skip
    leaves, structure = tree.flatten((*given, *constants))

    def field(y: Array, time: Array, *values: Array) -> Array:
        out: Array = function(y, time, *structure.unflatten(values))
        return out

    options = _Options(rtol, atol, mxstep, hmax)
    found = _solution(field, options, start, times, tuple(leaves))
    return gt.vmap(unravel)(found)


class _Options(tuple):
    """(rtol, atol, mxstep, hmax)."""

    def __new__(cls, *values: Any) -> _Options:
        return super().__new__(cls, values)


def _combined(weights: Any, slopes: list[Array]) -> Array:
    total = None
    for weight, slope in zip(weights, slopes, strict=True):
        if weight:
            total = slope * weight if total is None else total + slope * weight
    assert total is not None
    return total


def _norm(x: Array) -> Array:
    return gt.sqrt(gt.mean(gt.square(gt.abs(x))))


def _first_step(field: _Field, y: Array, t: Array, slope: Array, rtol: float, atol: float) -> Array:
    """Return the length of the first step, as Hairer, Norsett and Wanner (II.4) choose it for order 5."""
    scale = atol + gt.abs(y) * rtol
    size, speed = _norm(y / scale), _norm(slope / scale)
    guess = gt.where((size < 1e-5) | (speed < 1e-5), 1e-6, 0.01 * size / speed)
    bend = _norm((field(y + guess * slope, t + guess) - slope) / scale) / guess
    most = gt.maximum(speed, bend)
    short = (most <= 1e-15) & (bend <= 1e-15)
    other = gt.where(short, gt.maximum(1e-6, guess * 1e-3), (0.01 / gt.where(short, 1.0, most)) ** (1 / 5))
    return gt.minimum(100.0 * guess, other)


def _solve(field: _Field, options: _Options, y: Array, times: Array) -> Array:
    rtol, atol, most, longest = options

    def step(state: Any) -> Any:
        count, y, slope, t, length, *_ = state
        slopes = [slope]
        for time, weights in zip(_TIMES, _STAGES, strict=True):
            slopes.append(field(y + length * _combined(weights, slopes), t + time * length))
        new = y + length * _combined(_STAGES[-1], slopes[:-1])
        scale = atol + rtol * gt.maximum(gt.abs(y), gt.abs(new))
        error = _norm(length * _combined(_ERROR, slopes) / scale)
        middle = y + length * _combined(_MIDDLE, slopes)
        good = error <= 1.0
        factor = gt.clip(0.9 * gt.where(error == 0.0, 1.0, error) ** -0.2, gt.where(good, 1.0, 0.2), 10.0)
        after = gt.clip(length * gt.where(error == 0.0, 10.0, factor), 0.0, longest)
        curve = _curve(y, new, middle, slopes[0], slopes[-1], length)
        moved = (new, slopes[-1], t + length, after, t, curve)
        kept = (y, slope, t, after, *state[5:])
        return count + 1, *tree.map(lambda a, b: gt.where(good, a, b), moved, kept)

    def reach(state: Any, target: Array) -> Any:
        def unfinished(state: Any) -> Array:
            going = (state[3] < target) & (state[4] > 0.0)
            return going if most == numpy.inf else going & (state[0] < most)

        _, *rest = gt.while_loop(unfinished, step, (0, *state))
        t, before, curve = rest[2], rest[4], rest[5]
        place = (target - before) / (t - before)
        return tuple(rest), functools.reduce(lambda total, power: total * place + power, list(curve))

    slope = field(y, times[0])
    length = gt.clip(_first_step(field, y, times[0], slope, rtol, atol), 0.0, longest)
    state = (y, slope, times[0], length, times[0], gt.stack([y] * 5))
    return gt.concat([y[None], gt.scan(reach, state, times[1:])[1]])


def _curve(y: Array, new: Array, middle: Array, first: Array, last: Array, length: Array) -> Array:
    """Return the polynomial of order 4, highest power first, with these values and slopes at 0, 1/2 and 1."""
    first, last = first * length, last * length
    a = 2 * (last - first) - 8 * (y + new) + 16 * middle
    b = 5 * first - 3 * last + 18 * y + 14 * new - 32 * middle
    c = last - 4 * first - 11 * y - 5 * new + 16 * middle
    return gt.stack([a, b, c, first, y])


@functools.partial(gt.custom_vjp, nondiff_argnums=(0, 1))
def _solution(function: Callable[..., Array], options: _Options, y: Array, times: Array, args: Any) -> Array:
    return _solve(lambda y, t: function(y, t, *args), options, y, times)


def _forward(function: Callable[..., Array], options: _Options, y: Array, times: Array, args: Any) -> Any:
    found = _solution(function, options, y, times, args)
    return found, (found, times, args)


def _backward(function: Callable[..., Array], options: _Options, kept: Any, ct: Array) -> Any:
    found, times, args = kept

    def chosen(args: Any) -> list[Array]:
        return [x for x in args if x.aval.floating]

    def with_floating(values: Any, args: Any) -> list[Array]:
        each = iter(values)
        return [next(each) if x.aval.floating else x for x in args]

    floating = chosen(args)

    _, unravel = ravel_pytree((found[0], found[0], times[0], floating))

    def adjoint(state: Array, negative: Array, *args: Array) -> Array:
        y, weight, _, _ = unravel(state)
        slope, pull = gt.vjp(lambda y, t, *a: function(y, t, *with_floating(a, args)), y, -negative, *chosen(args))
        by_y, by_t, *by_args = pull(weight)
        return ravel_pytree((-slope, by_y, by_t, by_args))[0]

    def back(carry: Any, k: Array) -> Any:
        weight, by_start, by_args = carry
        slope = function(found[k], times[k], *args)
        by_time = gt.real(gt.dot(slope, ct[k]))
        state = ravel_pytree((found[k], weight, by_start - by_time, by_args))[0]
        ends = gt.stack([-times[k], -times[k - 1]])
        # by itself, so that it has a derivative too
        _, weight, by_start, by_args = unravel(_solution(adjoint, options, state, ends, args)[1])
        return (weight + ct[k - 1], by_start, by_args), by_time

    zero = gt.zeros((), times.dtype)
    start = (ct[-1], zero, [gt.zeros_like(x) for x in floating])
    (weight, by_start, by_args), by_times = gt.scan(back, start, gt.arange(times.shape[0] - 1, 0, -1))
    by_times = gt.concat([by_start[None], gt.flip(by_times)])
    each = iter(by_args)
    return weight, by_times, type(args)(next(each) if x.aval.floating else gt.zeros_like(x) for x in args)


_solution.defvjp(_forward, _backward)
