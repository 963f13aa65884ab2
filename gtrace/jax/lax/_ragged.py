"""Products of groups of slices, each with an operand of its own or a result of its own."""

from __future__ import annotations

import itertools
from typing import Any

from gtrace import lax as ours
from gtrace.extend import ArgumentError, Array, ShapeError, lift, message, ops

__all__ = ["ragged_dot_general"]

_NAME = "ragged_dot_general"


def ragged_dot_general(
    lhs: Any, rhs: Any, group_sizes: Any, ragged_dot_dimension_numbers: Any, precision: Any = None,
    preferred_element_type: Any = None, group_offset: Any = None, out_sharding: Any = None,
) -> Array:  # fmt: skip
    """Return ``dot_general`` of groups of slices of `lhs`, which follow one another along its ragged axis.

    - If that axis is neither contracted nor of the batch, each group is multiplied by its own part of `rhs`.
    - If it is contracted, each group gives a result of its own; the groups are the first axis.
    - If it is of the batch, the groups change nothing, as in JAX. In the other cases slices in no group give zeros.

    Args:
        group_sizes: integers, along the last axis the number of slices in each group. They may differ for the axes of
            `lhs` that come first: those of the batch, then those of the ragged axis's kind before it.
        ragged_dot_dimension_numbers: a `RaggedDotDimensionNumbers`.

    Raises:
        ShapeError: shapes and numbers do not fit.
        ArgumentError: a `group_offset`.

    >>> import gtrace.jax as jax, gtrace.jax.numpy as jnp
    >>> numbers = jax.lax.RaggedDotDimensionNumbers((([1], [0]), ([], [])), [1], [])
    >>> jax.lax.ragged_dot_general(jnp.ones((1, 3)), jnp.ones((3, 1)), jnp.array([2, 1]), numbers).tolist()
    [[[2.0]], [[1.0]]]
    """
    if group_offset is not None:
        raise ArgumentError(message(_NAME, "no group_offset", repr(group_offset), "Pass all groups."))
    x, y, sizes = lift(_NAME, lhs), lift(_NAME, rhs), lift(_NAME, group_sizes)
    numbers = ragged_dot_dimension_numbers
    (inner_x, inner_y), (batch_x, batch_y) = [
        tuple(map(tuple, pair)) for pair in numbers.dot_dimension_numbers
    ]  # fmt: skip
    ragged_axes, group_axes = tuple(numbers.lhs_ragged_dimensions), tuple(numbers.rhs_group_dimensions)
    ragged = ragged_axes[0] if len(ragged_axes) == 1 else -1
    other = [k for k in range(x.ndim) if k not in inner_x + batch_x]
    kind = batch_x if ragged in batch_x else inner_x if ragged in inner_x else other
    before = list(itertools.takewhile(lambda k: k != ragged, kind))
    prefix = before if kind is batch_x else [*batch_x, *before]
    if (
        not 0 <= ragged < x.ndim
        or len(group_axes) != (1 if kind is other else 0)
        or any(not 0 <= k < y.ndim or k in inner_y + batch_y for k in group_axes)
        or sizes.shape[:-1] not in ((), tuple(x.shape[k] for k in prefix))
        or not sizes.ndim
        or any(y.shape[k] != sizes.shape[-1] for k in group_axes)
    ):
        got = f"{x.aval!r}, {y.aval!r} and {sizes.aval!r} with {numbers!r}"
        raise ShapeError(message(_NAME, "one ragged axis, and sizes of groups that fit the operands", got))
    if kind is batch_x:
        return ours.dot_general(x, y, numbers.dot_dimension_numbers, preferred_element_type)
    own = _members(sizes, x.shape[ragged])  # (*prefix, the ragged axis, groups)
    along = [*(prefix if sizes.ndim > 1 else []), ragged]
    own = ops.permute_dims(own, (*sorted(range(len(along)), key=along.__getitem__), len(along)))
    own = ops.reshape(own, (*(x.shape[k] if k in along else 1 for k in range(x.ndim)), sizes.shape[-1]))
    spread = ops.where(own, ops.expand_dims(x, x.ndim), 0)
    if kind is other:
        pairs = ((*inner_x, x.ndim), (*inner_y, *group_axes)), (batch_x, batch_y)
        return ours.dot_general(spread, y, pairs, preferred_element_type)
    out = ours.dot_general(spread, y, ((inner_x, inner_y), (batch_x, batch_y)), preferred_element_type)
    return ops.moveaxis(out, len(batch_x) + len(other), 0)


def _members(sizes: Array, count: int) -> Array:
    """Return for each of `count` slices which group it is in, along a last axis."""
    stops = ops.cumsum(sizes, -1)
    place = ops.reshape(ops.arange(count, device=sizes.aval.device), (count, 1))
    stops, sizes = ops.expand_dims(stops, -2), ops.expand_dims(sizes, -2)
    return ops.logical_and(place < stops, place >= stops - sizes)
