"""Values between the points of a grid, under the names of SciPy's `ndimage` and `interpolate`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from gtrace.extend import ArgumentError, Array, ShapeError, as_arrays, as_dtype, cast, message, ops, promote_arrays

__all__ = ["RegularGridInterpolator", "map_coordinates"]

MODES = ("constant", "nearest", "wrap", "mirror", "reflect")


def _within(index: Array, size: int, mode: str) -> Array:
    """Return the place on an axis that an index outside of it stands for."""
    if mode in ("constant", "nearest"):
        return ops.clip(index, 0, size - 1)
    if mode == "wrap":
        return index % size
    if size == 1:
        return index * 0
    period = 2 * size - 2 if mode == "mirror" else 2 * size
    place = index % period
    return ops.where(place >= size, (period if mode == "mirror" else period - 1) - place, place)


def map_coordinates(
    input: Any,  # noqa: A002 - SciPy's name
    coordinates: Sequence[Any],
    order: int,
    mode: str = "constant",
    cval: float = 0.0,
) -> Array:
    """Return the values of an array at places between its elements.

    Args:
        coordinates: for each axis, the places along it; they broadcast.
        order: 0 takes the nearest element, 1 is linear between them.
        mode: the values outside: "constant" (`cval`), "nearest", "wrap", "mirror" or "reflect".

    Raises:
        ArgumentError: another order or mode.
        ShapeError: not one set of places for each axis.

    >>> from gtrace.scipy.grids import map_coordinates
    >>> map_coordinates(gt.array([0., 10., 20.]), [gt.array([0.5, 1.25])], 1)
    Array([ 5. , 12.5], dtype=float32)
    """
    x = ops.array(input)
    if order not in (0, 1) or mode not in MODES:
        got = f"order {order!r} and mode {mode!r}"
        expected = f"order 0 or 1, and one of {', '.join(MODES)} as mode"
        raise ArgumentError(message("map_coordinates", expected, got, "Pass those."))
    if len(coordinates) != x.ndim:
        got = f"{len(coordinates)} for {x.aval!r}"
        raise ShapeError(message("map_coordinates", "coordinates for each axis", got, "Pass one array an axis."))
    places = as_arrays("map_coordinates", *coordinates)
    total: Any = None
    for corner in itertools.product(*[(0,) if order == 0 else (0, 1)] * x.ndim):
        weight: Any = 1.0
        inside: Any = True
        index = []
        for place, step, size in zip(places, corner, x.shape, strict=True):
            base = ops.round(place) if order == 0 else ops.floor(place) + step
            if order == 1:
                share = place - ops.floor(place)
                weight = weight * (share if step else 1 - share)
            whole = cast(base, as_dtype("int32"))
            inside = ops.logical_and(inside, ops.logical_and(ops.greater_equal(whole, 0), ops.less(whole, size)))
            index.append(_within(whole, size, mode))
        value = x[tuple(index)]
        value = ops.where(inside, value, cval) if mode == "constant" else value
        total = value * weight if total is None else total + value * weight
    return ops.round(total).astype(x.dtype) if not x.aval.floating and order == 1 else total.astype(x.dtype)


class RegularGridInterpolator:
    """Values between the points of a grid with axes of any spacing.

    Args:
        points: the coordinates along each axis, in ascending order.
        values: at the grid's points.
        method: "linear" or "nearest".
        bounds_error: must be False: values are not looked at.
        fill_value: what points outside get; None: the nearest cell goes on.

    >>> from gtrace.scipy.grids import RegularGridInterpolator
    >>> f = RegularGridInterpolator((gt.array([0., 2.]),), gt.array([0., 10.]), fill_value=None)
    >>> f(gt.array([[0.5], [1.0]]))
    Array([2.5, 5. ], dtype=float32)
    """

    def __init__(
        self,
        points: Sequence[Any],
        values: Any,
        method: str = "linear",
        bounds_error: bool = False,
        fill_value: float | None = math.nan,
    ) -> None:
        if method not in ("linear", "nearest") or bounds_error:
            got = f"{method!r} and bounds_error={bounds_error}"
            fix = "Pass fill_value for points outside."
            raise ArgumentError(message("RegularGridInterpolator", "linear or nearest, and no bounds_error", got, fix))
        (self.values,) = promote_arrays("RegularGridInterpolator", values, floating=True)
        self.grid = tuple(as_arrays("RegularGridInterpolator", *points))
        sizes = tuple(axis.size for axis in self.grid)
        if sizes != self.values.shape[: len(sizes)]:
            got = f"axes of {sizes} for {self.values.aval!r}"
            raise ShapeError(message("RegularGridInterpolator", "an axis of points for each axis", got, "Match them."))
        self.method, self.fill_value = method, fill_value

    def __call__(self, xi: Any, method: str | None = None) -> Array:
        """Return the values at points (..., axes)."""
        (points,) = promote_arrays("RegularGridInterpolator", xi, floating=True)
        shape = points.shape[:-1]
        flat = ops.reshape(points, (-1, len(self.grid)))
        low, share, outside = [], [], flat[:, 0] != flat[:, 0]
        for k, axis in enumerate(self.grid):
            x = flat[:, k]
            place = ops.clip(ops.searchsorted(axis, x, side="right") - 1, 0, axis.size - 2)
            low.append(place)
            share.append((x - axis[place]) / (axis[place + 1] - axis[place]))
            outside = ops.logical_or(outside, ops.logical_or(ops.less(x, axis[0]), ops.less(axis[-1], x)))
        rest = self.values.ndim - len(self.grid)

        def wide(x: Array) -> Array:
            for _ in range(rest):
                x = ops.expand_dims(x, -1)
            return x

        if (method or self.method) == "nearest":
            out = self.values[tuple(ops.where(s <= 0.5, p, p + 1) for s, p in zip(share, low, strict=True))]
        else:
            out = self.values[tuple(low)] * 0
            for corner in itertools.product((0, 1), repeat=len(low)):
                weight: Any = 1.0
                for s, step in zip(share, corner, strict=True):
                    weight = weight * (s if step else 1 - s)
                out = out + self.values[tuple(p + step for p, step in zip(low, corner, strict=True))] * wide(weight)
        if self.fill_value is not None:
            out = ops.where(wide(outside), self.fill_value, out)
        return ops.reshape(out, (*shape, *self.values.shape[len(self.grid) :]))
