"""Reductions by a function, and functions whose purpose in jax.lax is a hint to a compiler."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.errors import DtypeError, ShapeError, message
from gtrace.core.ops.declare import Array, lift
from gtrace.core.ops.index import getitem
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import as_shape, normalize_axis
from gtrace.core.trace.promotion import meeting
from gtrace.lax.reductions import reduce_max, reduce_min, reduce_prod, reduce_sum, top_k
from gtrace.lax.windows import stands_for

__all__ = [
    "approx_max_k", "broadcast_shapes", "broadcast_to_rank", "empty", "optimization_barrier", "platform_dependent",
    "reduce", "reduce_and", "reduce_or", "reduce_xor", "split", "stack", "tile", "unstack",
]  # fmt: skip

broadcast_shapes, empty, stack = ops.broadcast_shapes, ops.empty, ops.stack
tile, unstack = ops.tile, ops.unstack


def approx_max_k(operand: Any, k: int, reduction_dimension: int = -1, **hints: Any) -> tuple[Array, Array]:
    """Return the k largest elements along an axis, and their indices. It is exact; JAX's hints are ignored.

    >>> gt.lax.approx_max_k(gt.array([1., 3., 2.]), 2)
    (Array([3., 2.], dtype=float32), Array([1, 2], dtype=int64))
    """
    x = lift("approx_max_k", operand)
    axis = normalize_axis("approx_max_k", reduction_dimension, x.ndim)
    return tuple(ops.moveaxis(out, -1, axis) for out in top_k(ops.moveaxis(x, axis, -1), k))  # type: ignore[return-value]


def broadcast_to_rank(x: Any, rank: int) -> Array:
    """Return an array with leading axes of size 1 added, so that it has `rank` axes.

    >>> gt.lax.broadcast_to_rank(gt.ones(3), 2).shape
    (1, 3)
    """
    x = lift("broadcast_to_rank", x)
    return ops.reshape(x, (*(1,) * (rank - x.ndim), *x.shape))


def optimization_barrier(operand: Any) -> Any:
    """Return a pytree unchanged: no optimization moves operations in an observable way.

    >>> gt.lax.optimization_barrier({"a": 1})
    {'a': 1}
    """
    return operand


def platform_dependent(*args: Any, default: Callable[..., Any] | None = None, **per_platform: Any) -> Any:
    """Call the function for this platform: ``cpu`` if given, else the default.

    >>> gt.lax.platform_dependent(2.0, cpu=lambda x: x + 1, default=lambda x: x)
    3.0
    """
    chosen = per_platform.get("cpu", default)
    if chosen is None:
        raise NotImplementedError("[platform_dependent] expected a function for cpu or a default, got neither.")
    return chosen(*args)


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """Return parts of the given sizes along an axis.

    Raises:
        ShapeError: the sizes do not add up to that of the axis.

    >>> [x.shape for x in gt.lax.split(gt.ones(5), (2, 3))]
    [(2,), (3,)]
    """
    x, parts = lift("split", operand), as_shape("split", sizes)
    place = normalize_axis("split", axis, x.ndim)
    if sum(parts) != x.shape[place] or any(size < 0 for size in parts):
        got = f"{parts} for axis {place} of {x.aval!r}"
        raise ShapeError(message("split", "sizes of at least 0 that add up to the axis", got, "Name all parts."))
    return list(ops.split(x, numpy.cumsum(parts).tolist()[:-1], place))


def reduce(operands: Any, init_values: Any, computation: Callable[..., Any], dimensions: Sequence[int]) -> Any:
    """Reduce the elements over `dimensions` by an associative function, starting with initial values.

    Neighbours are combined, then their results. So the number of calls is about the logarithm of the size. Sums,
    products and the like that start with their neutral element are those of `reduce_sum` and its kin.

    Args:
        operands, init_values: arrays, or pytrees of arrays with equal structures; the arrays have one shape.
        computation: an elementwise function of two such pytrees that returns one.

    Raises:
        ShapeError: an initial value is no number, or their structure is another; or an axis is repeated.

    >>> gt.lax.reduce(gt.array([[1, 5], [4, 2]]), 0, gt.lax.max, (0,))
    Array([4, 5], dtype=int64)
    """
    leaves, structure = tree.flatten(operands)
    arrays, (inits, other) = [lift("reduce", x) for x in leaves], tree.flatten(init_values)
    if structure != other or any(numpy.ndim(init) for init in inits):
        got = f"{other} for {structure}"
        raise ShapeError(message("reduce", "a number for each operand, in the same structure", got, "See init_values."))
    axes = [normalize_axis("reduce", k, arrays[0].ndim) for k in as_shape("reduce", dimensions)]
    if len(set(axes)) != len(axes):
        raise ShapeError(message("reduce", "each axis once", str(axes), "Remove the repeated axis."))
    known = _known(arrays, inits, computation)
    if known is not None:
        return structure.unflatten([known(arrays[0], axes)])
    return _halved(arrays, structure, init_values, computation, axes)


def _known(arrays: list[Array], inits: list[Any], computation: Any) -> Callable[..., Array] | None:
    """Return the reduction that starts with the neutral element and combines by an operation of ours; None: no such.

    Its result has the dtype of the array. So the initial value has to leave that as it is.
    """
    if len(arrays) != 1 or type(inits[0]) is Array or arrays[0].aval.complex:
        return None
    aval = arrays[0].aval
    kind = aval.dtype
    if meeting([aval, lift("reduce", inits[0]).aval]) != (kind, aval.weak):
        return None
    low, high = (False, True) if kind is torch.bool else (-math.inf, math.inf)
    if not kind.is_floating_point and kind is not torch.bool:
        low, high = torch.iinfo(kind).min, torch.iinfo(kind).max
    ones = -1 if kind.is_signed else high
    table = (
        (ops.maximum, low, reduce_max), (ops.minimum, high, reduce_min), (ops.bitwise_and, ones, reduce_and),
        (ops.bitwise_or, 0, reduce_or), (ops.bitwise_xor, 0, reduce_xor),
        *[(ops.add, 0, reduce_sum), (ops.multiply, 1, reduce_prod)] * (kind is not torch.bool),
    )  # fmt: skip
    start = numpy.asarray(inits[0]).item()
    return next((f for op, neutral, f in table if stands_for(computation, op) and start == neutral), None)


def _halved(
    arrays: list[Array], structure: Any, init_values: Any, computation: Callable[..., Any], axes: Sequence[int]
) -> Any:
    """Combine neighbours, then their results."""
    rest = [k for k in range(arrays[0].ndim) if k not in axes]
    count = math.prod(arrays[0].shape[k] for k in axes)
    kept = tuple(arrays[0].shape[k] for k in rest)
    flat = [ops.reshape(ops.moveaxis(x, axes, tuple(range(len(axes)))), (count, *kept)) for x in arrays]
    while count > 1:
        half = count // 2
        first, second = ([getitem(x, slice(a, b)) for x in flat] for a, b in ((0, half), (half, 2 * half)))
        found = tree.leaves(computation(structure.unflatten(first), structure.unflatten(second)))
        odd = count - 2 * half
        flat = [
            ops.concat([y, getitem(x, slice(count - 1, count))]) if odd else y for x, y in zip(flat, found, strict=True)
        ]
        count = half + odd
    if not count:
        found = [
            meeting([x.aval, lift("reduce", v).aval])[0] for x, v in zip(flat, tree.leaves(init_values), strict=True)
        ]
        return tree.map(lambda v, kind: ops.full(kept, v, kind), init_values, structure.unflatten(found))
    return computation(init_values, structure.unflatten([ops.reshape(x, kept) for x in flat]))


def reduce_and(operand: Any, axes: Sequence[int]) -> Array:
    """Return the bitwise and of integers over `axes`; of booleans, whether all hold.

    Raises:
        DtypeError: floats or complex numbers.

    >>> import gtrace as gt
    >>> gt.lax.reduce_and(gt.array([True, False]), (0,))
    Array(False, dtype=bool)
    """
    return _bitwise("reduce_and", ops.bitwise_and, -1, operand, axes)


def reduce_or(operand: Any, axes: Sequence[int]) -> Array:
    """Return the bitwise or of integers over `axes`; of booleans, whether any holds.

    Raises:
        DtypeError: floats or complex numbers.

    >>> import gtrace as gt
    >>> gt.lax.reduce_or(gt.array([True, False]), (0,))
    Array(True, dtype=bool)
    """
    return _bitwise("reduce_or", ops.bitwise_or, 0, operand, axes)


def reduce_xor(operand: Any, axes: Sequence[int]) -> Array:
    """Return the exclusive or of integers or booleans over `axes`.

    Raises:
        DtypeError: floats or complex numbers.

    >>> import gtrace as gt
    >>> gt.lax.reduce_xor(gt.array([1, 3, 4]), (0,))
    Array(6, dtype=int64)
    """
    return _bitwise("reduce_xor", ops.bitwise_xor, 0, operand, axes)


def _bitwise(name: str, combine: Callable[[Any, Any], Array], empty: int, operand: Any, axes: Sequence[int]) -> Array:
    x, places = lift(name, operand), as_shape(name, axes)
    if x.aval.floating or x.aval.complex:
        raise DtypeError(message(name, "integers or booleans", repr(x.aval), "Compare them with 0."))
    if x.aval.dtype is torch.bool and name != "reduce_xor":
        return ops.all(x, places) if name == "reduce_and" else ops.any(x, places)
    start = cast(lift(name, empty), x.aval.dtype)  # modulo the range: -1 has all bits
    axes = [normalize_axis(name, k, x.ndim) for k in places]
    return _halved([x], tree.flatten(x)[1], start, combine, axes)
