"""``jax.experimental.jet``: derivatives of higher orders along a curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import gtrace as gt
from gtrace.extend import ArgumentError, Array, lift, lift_outputs, message, tree


class ZeroSeries:
    """Stands for derivatives that are all zero."""


zero_series = ZeroSeries()


def fact(n: int) -> int:
    """Return the factorial of `n`."""
    return math.factorial(n)


def jet(
    fun: Callable[..., Any], primals: Sequence[Any], series: Sequence[Any], factorial_scaled: bool = True, **_: Any
) -> tuple[Any, Any]:
    """Return ``fun(*primals)``, and the derivatives of ``fun`` along a curve through `primals`.

    Each further order doubles the number of recorded operations; equal ones are computed once.

    Args:
        fun: a function of arrays.
        primals: the point.
        series: for each argument the derivatives of the curve, from the first to the highest one.
        factorial_scaled: the series are derivatives; otherwise they are coefficients of Taylor's polynomial.

    Returns:
        The value, and in the place of each array the list of its derivatives.

    Raises:
        ArgumentError: the series of the arguments have different lengths, or there is not one for each argument.

    >>> y, (first, second) = jet(lambda x: x ** 3, (2.0,), ([1.0, 0.0],))
    >>> y, first, second
    (Array(8., dtype=float32), Array(12., dtype=float32), Array(12., dtype=float32))
    """
    if len(primals) != len(series):
        got = f"{len(series)} for {len(primals)}"
        raise ArgumentError(message("jet", "a series for each argument", got, "Pass one list for each."))
    orders = {len(s) for s in series if s is not zero_series}
    if len(orders) != 1:
        got = ", ".join(map(str, sorted(orders))) or "none"
        raise ArgumentError(message("jet", "series of one length", got, "Fill the shorter ones with zeros."))
    (order,) = orders
    scales = [1 if factorial_scaled else fact(k + 1) for k in range(order)]
    leaves, structure = tree.flatten(tuple(primals))
    arrays = [lift("jet", leaf) for leaf in leaves]
    moving = [k for k, x in enumerate(arrays) if x.aval.floating]

    def term(k: int) -> list[Array]:
        """Return the derivative of this order by the curve's parameter, of all arguments that have one."""
        given = [tree.map(gt.zeros_like, x) if s is zero_series else s[k] for x, s in zip(primals, series, strict=True)]
        rates = tree.leaves(tuple(given))
        return [lift("jet", rates[i]).astype(arrays[i].dtype) * scales[k] for i in moving]

    curve = [[arrays[i] for i in moving], *[term(k) for k in range(order)]]
    shape: list[Any] = []

    def value(point: list[Array]) -> list[list[Array]]:
        full: list[Any] = list(arrays)
        for i, x in zip(moving, point, strict=True):
            full[i] = x
        outputs, out_structure = lift_outputs("jet", fun(*structure.unflatten(full)))
        shape[:] = [out_structure]
        return [outputs]

    rates = value
    for _order in range(order):
        rates = _with_next(rates)
    found = rates(*curve)
    columns = zip(*found[1:], strict=True) if order else [() for _ in found[0]]
    terms = [[x / s if s > 1 else x for x, s in zip(column, scales, strict=True)] for column in columns]
    return shape[0].unflatten(found[0]), shape[0].unflatten(terms)


def _with_next(rates: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return a function for one more derivative along a curve: from derivatives of the curve to those of the values.

    The derivative of a function of the curve's first n derivatives is its directional derivative, along the next ones.
    """

    def longer(*curve: list[Array]) -> list[Any]:
        known, moved = gt.jvp(rates, curve[:-1], curve[1:])
        return [*known, moved[-1]]

    return longer


__all__ = ["fact", "jet", "zero_series"]
