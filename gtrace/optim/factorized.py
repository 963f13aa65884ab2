"""Second moments of matrices by rows and columns, which save memory in Adafactor."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import torch

from gtrace.extend import Array, cast, lift, ops, tree
from gtrace.optim.base import GradientTransformation, Params, State, Updates, first_count, squared
from gtrace.optim.replayed import transformation

__all__ = ["FactoredState", "scale_by_factored_rms"]


class FactoredState(NamedTuple):
    """State of `scale_by_factored_rms`: pytrees like the parameters, with a single 0 for unneeded entries.

    Attributes:
        count: int32, the number of updates so far.
        v_row, v_col: moving averages of mean squares over the largest axis, and over the second largest.
        v: moving averages of squares, for arrays that are not factored.
    """

    count: Array  # type: ignore[assignment] # optax's name, also of a tuple's method
    v_row: Any
    v_col: Any
    v: Any


def _axes(shape: tuple[int, ...], factored: bool, least: int) -> tuple[int, int] | None:
    """Return the second largest and the largest axis, if both have at least `least` elements."""
    if not factored or len(shape) < 2:
        return None
    order = numpy.argsort(shape)
    return None if shape[order[-2]] < least else (int(order[-2]), int(order[-1]))


@transformation
def scale_by_factored_rms(
    factored: bool = True,
    decay_rate: float = 0.8,
    step_offset: int = 0,
    min_dim_size_to_factor: int = 128,
    epsilon: float = 1e-30,
) -> GradientTransformation:
    """Return the scaling of Adafactor (Shazeer and Stern, 2018).

    The mean squares of a matrix are estimated from those of its rows and columns, so the state is small.

    Args:
        factored: whether to factor.
        decay_rate: averages decay by 1 - (step + 1) ** -decay_rate.
        step_offset: steps of an earlier training, which do not count.
        min_dim_size_to_factor: only arrays with two axes of at least this size are factored.
        epsilon: added to squares.

    >>> params = gt.ones((2, 3))
    >>> opt = gt.optim.scale_by_factored_rms(min_dim_size_to_factor=2)
    >>> state = opt.init(params)
    >>> state.v_row.shape, state.v_col.shape
    ((2,), (3,))
    >>> gt.round(opt.update(gt.full((2, 3), -4.0), state, params)[0], 4)
    Array([[-1., -1., -1.],
           [-1., -1., -1.]], dtype=float32)
    """

    def start(param: Any) -> tuple[Array, Array, Array]:
        x = lift("optim", param)
        axes = _axes(x.shape, factored, min_dim_size_to_factor)
        shapes: list[tuple[int, ...]] = [(1,), (1,), x.shape]
        if axes is not None:
            shapes = [tuple(n for k, n in enumerate(x.shape) if k != axis) for axis in reversed(axes)] + [(1,)]
        row, col, whole = (ops.zeros(shape, x.aval.dtype, device=x.aval.device) for shape in shapes)
        return row, col, whole

    def init(params: Params) -> State:
        return FactoredState(first_count(params), *_columns(params, [start(p) for p in tree.leaves(params)]))

    def update(updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        steps = cast(state.count - step_offset + 1, torch.float32)
        decay = 1.0 - steps**-decay_rate

        def scaled(g: Array, row: Array, col: Array, whole: Array) -> tuple[Array, Array, Array, Array]:
            share = cast(decay, g.aval.dtype)
            squares = squared(g) + epsilon
            axes = _axes(g.shape, factored, min_dim_size_to_factor)
            if axes is None:
                whole = share * whole + (1.0 - share) * squares
                return g * ops.rsqrt(whole), row, col, whole
            second, largest = axes
            row = share * row + (1.0 - share) * ops.mean(squares, largest)
            col = share * col + (1.0 - share) * ops.mean(squares, second)
            # the axis of the rows' averages that was the second largest
            middle = ops.mean(row, second - 1 if second > largest else second, keepdims=True)
            by_row, by_col = ops.expand_dims(ops.rsqrt(row / middle), largest), ops.expand_dims(ops.rsqrt(col), second)
            return g * by_row * by_col, row, col, whole

        columns = [tree.leaves(x) for x in (updates, state.v_row, state.v_col, state.v)]
        out, *new = _columns(updates, [scaled(*parts) for parts in zip(*columns, strict=True)])
        return out, FactoredState(state.count + 1, *new)

    return GradientTransformation(init, update)


def _columns(like: Any, rows: list[Any]) -> list[Any]:
    """Return the k-th entries of rows as pytrees."""
    structure = tree.structure(like)
    return [structure.unflatten(column) for column in zip(*rows, strict=True)]
