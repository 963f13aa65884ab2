"""Matmuls over any axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gtrace.core import ops
from gtrace.core.base.errors import ShapeError, message
from gtrace.core.ops.declare import Array, lift
from gtrace.core.ops.operands import cast, promote_arrays
from gtrace.core.ops.shape import as_shape, normalize_axis
from gtrace.core.trace.promotion import as_dtype
from gtrace.core.trace.replayable import replayable

__all__ = ["batch_matmul", "dot", "dot_general", "ragged_dot"]

Axes = Sequence[int]


@replayable
def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: tuple[tuple[Axes, Axes], tuple[Axes, Axes]],
    preferred_element_type: Any = None,
) -> Array:
    """Return sums of products over pairs of axes, for each index of paired batch axes.

    The result has the batch axes, then the other axes of lhs and of rhs, each in order.

    Args:
        lhs, rhs: arrays.
        dimension_numbers: ((contracted of lhs, of rhs), (batch of lhs, of rhs)).
        preferred_element_type: the dtype in which to compute.

    Raises:
        ShapeError: paired axes differ in size or number, or an axis is repeated.

    >>> gt.lax.dot_general(gt.ones((5, 2, 3)), gt.ones((5, 4, 3)), (((2,), (2,)), ((0,), (0,)))).shape
    (5, 2, 4)
    """
    x, y = _operands("dot_general", lhs, rhs, preferred_element_type)
    (inner_x, inner_y), (batch_x, batch_y) = [
        [tuple(normalize_axis("dot_general", a, z.ndim) for a in as_shape("dot_general", axes))
         for z, axes in zip((x, y), pair, strict=True)] for pair in dimension_numbers
    ]  # fmt: skip
    for first, second in ((inner_x, inner_y), (batch_x, batch_y)):
        if [x.shape[a] for a in first] != [y.shape[a] for a in second]:
            got = f"{first} of {x.aval!r} and {second} of {y.aval!r}"
            raise ShapeError(message("dot_general", "paired axes of equal sizes", got, "Check dimension_numbers."))
    for used in (inner_x + batch_x, inner_y + batch_y):
        if len(set(used)) != len(used):
            raise ShapeError(message("dot_general", "each axis once", str(used), "Remove the repeated axis."))
    rest_x = tuple(k for k in range(x.ndim) if k not in inner_x + batch_x)
    rest_y = tuple(k for k in range(y.ndim) if k not in inner_y + batch_y)
    batch = tuple(x.shape[a] for a in batch_x)
    count = math.prod(x.shape[a] for a in inner_x)
    rows, columns = tuple(x.shape[a] for a in rest_x), tuple(y.shape[a] for a in rest_y)
    a = ops.reshape(ops.permute_dims(x, batch_x + rest_x + inner_x), (*batch, math.prod(rows), count))
    b = ops.reshape(ops.permute_dims(y, batch_y + inner_y + rest_y), (*batch, count, math.prod(columns)))
    return ops.reshape(a @ b, batch + rows + columns)


def _operands(name: str, lhs: Any, rhs: Any, dtype: Any) -> list[Array]:
    """Return the operands in a dtype, or if it is None in their common one."""
    if dtype is None:
        return promote_arrays(name, lhs, rhs)
    return [cast(lift(name, x), as_dtype(dtype)) for x in (lhs, rhs)]


def dot(lhs: Any, rhs: Any, preferred_element_type: Any = None, *, dimension_numbers: Any = None) -> Array:
    """Return the product of two vectors, of a matrix and a vector, or of two matrices.

    Args:
        dimension_numbers: the axes, as for `dot_general`, of arrays of any dimensions.

    Raises:
        ShapeError: arrays of other dimensions, or sizes that do not agree.

    >>> gt.lax.dot(gt.array([1., 2.]), gt.array([3., 4.]))
    Array(11., dtype=float32)
    """
    x, y = _operands("dot", lhs, rhs, preferred_element_type)
    if dimension_numbers is not None:
        return dot_general(x, y, dimension_numbers, preferred_element_type)
    if not 1 <= x.ndim <= 2 or not 1 <= y.ndim <= 2:
        raise ShapeError(message("dot", "vectors or matrices", f"{x.aval!r} and {y.aval!r}", "Use dot_general."))
    return dot_general(x, y, (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type)


def batch_matmul(lhs: Any, rhs: Any) -> Array:
    """Return the matrix products over the last two axes, for equal leading axes.

    Raises:
        ShapeError: arrays with fewer than two axes, or sizes that do not agree.

    >>> gt.lax.batch_matmul(gt.ones((5, 2, 3)), gt.ones((5, 3, 4))).shape
    (5, 2, 4)
    """
    x, y = promote_arrays("batch_matmul", lhs, rhs)
    if x.ndim < 2 or x.ndim != y.ndim or x.shape[:-2] != y.shape[:-2]:
        got = f"{x.aval!r} and {y.aval!r}"
        raise ShapeError(message("batch_matmul", "matrices with equal leading axes", got, "gt.matmul broadcasts them."))
    return ops.matmul(x, y)


def ragged_dot(lhs: Any, rhs: Any, group_sizes: Any, *, preferred_element_type: Any = None) -> Array:
    """Multiply consecutive groups of rows with one matrix per group, as in mixtures of experts.

    Rows after the last group give zeros. Each row is multiplied by every matrix, with zeros for other groups' matrices.

    Args:
        lhs: array (m, k).
        rhs: array (groups, k, n).
        group_sizes: integers (groups,): the number of rows in each group.
        preferred_element_type: the dtype of the operands and the result.

    Raises:
        ShapeError: shapes do not fit.

    >>> gt.lax.ragged_dot(gt.ones((3, 1)), gt.array([[[1.]], [[5.]]]), gt.array([2, 1]))
    Array([[1.],
           [1.],
           [5.]], dtype=float32)
    """
    x, y = _operands("ragged_dot", lhs, rhs, preferred_element_type)
    sizes = lift("ragged_dot", group_sizes)
    if x.ndim != 2 or y.ndim != 3 or x.shape[1] != y.shape[1] or sizes.shape != y.shape[:1]:
        got = f"{x.aval!r}, {y.aval!r} and {sizes.aval!r}"
        raise ShapeError(message("ragged_dot", "arrays (m, k), (groups, k, n) and (groups,)", got, "Check the shapes."))
    (m, k), (groups, _, n) = x.shape, y.shape
    stops = ops.cumsum(sizes, 0)
    row = ops.expand_dims(ops.arange(m, device=x.aval.device), 1)
    own = ops.logical_and(row < stops, row >= stops - sizes)
    spread = ops.where(ops.expand_dims(own, 2), ops.expand_dims(x, 1), 0)
    return ops.reshape(spread, (m, groups * k)) @ ops.reshape(y, (groups * k, n))
