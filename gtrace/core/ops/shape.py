"""Operations that move elements without computing. All are linear, and each declares its transpose."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy
import torch

from gtrace.core.base.devices import CPU
from gtrace.core.base.errors import ArgumentError, BoundsError, ShapeError, message
from gtrace.core.ir.aval import Aval, aval, broadcast
from gtrace.core.ops.batching import prefixed
from gtrace.core.ops.checks import of_operand, reshaped
from gtrace.core.ops.declare import Array, BadSample, Op, Params, Sample, bind, define
from gtrace.core.ops.samples import uniform
from gtrace.core.ops.sharding_rules import broadcasted, filled, permuted, regrouped, summed_to
from gtrace.core.trace.bind import distinct
from gtrace.core.trace.convert import lift, number_operand
from gtrace.core.trace.fast import record_order, record_view

__all__ = [
    "reshape", "ravel", "transpose", "matrix_transpose", "permute_dims", "moveaxis", "swapaxes", "expand_dims",
    "squeeze", "broadcast_to", "broadcast_arrays", "broadcast_shapes", "meshgrid",
]  # fmt: skip


def as_int(op: str, what: str, value: Any) -> int:
    """Return `value` as a Python int."""
    try:
        return int(operator.index(value))  # operator.index returns a bool unchanged
    except TypeError:
        if type(value) is Array:
            raise
        raise ArgumentError(message(op, f"an integer as {what}", repr(value), "Pass an int.")) from None


def as_size(op: str, what: str, value: Any) -> int:
    """Return `value` as a Python int that is not negative."""
    size = as_int(op, what, value)
    if size < 0:
        raise ShapeError(message(op, f"{what} >= 0", str(size), "Pass a non-negative integer."))
    return size


def normalize_axis(op: str, axis: Any, ndim: int) -> int:
    """Return `axis` counted from the front."""
    number = as_int(op, "axis", axis)
    if not -ndim <= number < ndim:
        raise BoundsError(
            message(op, f"an axis in [{-ndim}, {ndim})", str(number), f"The array has {ndim} dimensions.")
        )
    return number % ndim


def normalize_axes(op: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """Return `axis` (None: all, an int, or several) as sorted axes counted from the front."""
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, (tuple, list, range)):
        axes = sorted(normalize_axis(op, a, ndim) for a in axis)
        if len(set(axes)) != len(axes):
            raise ShapeError(message(op, "each axis once", str(tuple(axis)), "Remove the repeated axis."))
        return tuple(axes)
    return (normalize_axis(op, axis, ndim),)


def with_axis(op: str, x: Any, axis: int | None) -> tuple[Array, int]:
    """Return an array and its axis counted from the front; for None, the flattened array and 0."""
    x = lift(op, x)
    return (ravel(x), 0) if axis is None else (x, normalize_axis(op, axis, x.ndim))


def as_shape(op: str, shape: Any) -> tuple[int, ...]:
    """Return a shape argument (an int, or a sequence or array of ints) as a tuple."""
    sized = (
        shape.ndim == 1 if isinstance(shape, (numpy.ndarray, Array)) else hasattr(shape, "__iter__")
    )  # any library's
    if shape.__class__ is tuple or (sized and not isinstance(shape, str)):
        return tuple([n if n.__class__ is int else as_int(op, "size", n) for n in shape])
    return (as_int(op, "size", shape),)


def as_sizes(op: str, shape: Any) -> tuple[int, ...]:
    """Return a shape argument as a tuple of sizes that are not negative."""
    sizes = as_shape(op, shape)
    if any(n < 0 for n in sizes):
        raise ShapeError(message(op, "sizes >= 0", str(sizes), "Pass non-negative integers."))
    return sizes


# -- reshape


reshape_op = define(
    "reshape", lambda x, shape: x.reshape(shape), uniform=True, free=True, moves=True, view=True, params=("shape",),
    vjp=lambda ct, needed, x, out, shape: (bind(reshape_op, (ct,), (x.aval.shape,)),), linear=True,
    batch=prefixed(shape=int), span=of_operand, factors=regrouped,
    samples=lambda: [Sample((uniform(-2, 2, 3, 4), s)) for s in [(12,), (2, -1), (4, 3)]]
    + [Sample((uniform(-2, 2, 0, 3), (0,)))],
    errors=lambda: [BadSample((numpy.ones((2, 3)), (4,)), {}, ShapeError, r"6 elements")],
    reference=numpy.reshape, user=lambda x, shape: reshape(x, shape),
    keeps=slice(None),
)  # fmt: skip


def reshape(x: Any, shape: Any, order: str = "C", *, copy: bool | None = None) -> Array:
    """Return the elements of x with another shape; one size may be -1.

    Args:
        order: the order in which elements are read and written. In "C" the last axis changes fastest, in "F" the first.
        copy: ignored; Arrays never change.

    Raises:
        ShapeError: the number of elements differs.
        ArgumentError: `order` is unknown.

    >>> gt.reshape(gt.arange(6), (2, -1)).shape
    (2, 3)
    """
    if order != "C":
        if order != "F":
            raise ArgumentError(message("reshape", "C or F as order", repr(order), "Pass one of them."))
        return permute_dims(reshape(permute_dims(x), as_shape("reshape", shape)[::-1]))
    if shape.__class__ is int:
        shape = (shape,)
    return record_view(lift("reshape", x), "reshape", _integers(shape), lambda x: _reshaping(x, shape))


def _integers(values: Any) -> tuple[int, ...] | None:
    """Return a tuple of integers unchanged; None for other values, which may equal one but have another meaning."""
    if values.__class__ is not tuple:
        return None
    for n in values:
        if n.__class__ is not int:
            return None
    return values


def _reshaping(x: Array, shape: Any) -> list[tuple[Op, Params]]:
    sizes = as_shape("reshape", shape)
    unknown = [k for k, n in enumerate(sizes) if n == -1]
    if len(unknown) == 1:
        rest = math.prod(n for n in sizes if n != -1)
        if rest > 0 and x.size % rest == 0:
            sizes = tuple(x.size // rest if n == -1 else n for n in sizes)
    if any(n < 0 for n in sizes) or math.prod(sizes) != x.size:
        got, fix = f"{sizes} for {x.aval!r}", "Sizes must multiply up; one may be -1."
        raise ShapeError(message("reshape", f"a shape of {x.size} elements", got, fix))
    return [] if sizes == x.aval.shape else [(reshape_op, (sizes,))]


def ravel(x: Any, order: str = "C") -> Array:
    """Return the elements of x in one dimension; see `reshape`.

    >>> gt.ravel(gt.array([[1, 2], [3, 4]]))
    Array([1, 2, 3, 4], dtype=int64)
    """
    return reshape(x, (-1,) if lift("ravel", x).size else (0,), order)


def squeeze(x: Any, axis: Any = None) -> Array:
    """Return x without the given axes, or all axes, of size 1.

    Raises:
        ShapeError: a named axis has another size.

    >>> gt.squeeze(gt.zeros((1, 3, 1)), axis=0).shape
    (3, 1)
    """
    x = lift("squeeze", x)
    ones = tuple(k for k, n in enumerate(x.shape) if n == 1)
    axes = ones if axis is None else normalize_axes("squeeze", axis, x.ndim)
    for k in axes:
        if k not in ones:
            got = f"axis {k} of {x.aval!r}"
            raise ShapeError(message("squeeze", "an axis of size 1", got, "Use reshape or index."))
    return reshape(x, tuple(n for k, n in enumerate(x.shape) if k not in axes))


def expand_dims(x: Any, axis: Any) -> Array:
    """Return x with new axes of size 1 at positions `axis` of the result.

    >>> gt.expand_dims(gt.zeros(3), 0).shape
    (1, 3)
    """
    x = lift("expand_dims", x)
    count = len(axis) if isinstance(axis, (tuple, list, range)) else 1
    axes = normalize_axes("expand_dims", axis, x.ndim + count)
    sizes = iter(x.shape)
    return reshape(x, tuple(1 if k in axes else next(sizes) for k in range(x.ndim + count)))


# -- permute


def inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the inverse of a permutation."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


permute_op = define(
    "permute", lambda x, axes: x.permute(axes), uniform=True, free=True, moves=True, view=True, params=("axes",),
    vjp=lambda ct, needed, x, out, axes: (bind(permute_op, (ct,), (inverse(axes),)),), linear=True,
    span=of_operand, factors=permuted,
    batch=lambda op, size, batched, operands, axes: bind(op, operands, ((0, *(a + 1 for a in axes)),)),
    samples=lambda: [Sample((uniform(-2, 2, 2, 3, 4), a)) for a in [(2, 0, 1), (0, 2, 1), (2, 1, 0)]],
    errors=lambda: [BadSample((numpy.ones((2, 3, 4)), (1, 2)), {}, ShapeError, r"each axis once.*swapaxes\(1, 2\)")],
    reference=numpy.transpose, user=lambda x, axes: permute_dims(x, axes),
    keeps=slice(None),
)  # fmt: skip


def permute_dims(x: Any, axes: Any = None) -> Array:
    """Return x with its axes permuted; None reverses them.

    >>> gt.permute_dims(gt.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    key = "reversed" if axes is None else _integers(axes)
    return record_order(permute_op, lift("permute_dims", x), key, lambda x: _order(x, axes))


def _order(x: Array, axes: Any) -> tuple[int, ...]:
    chosen = reversed(range(x.ndim)) if axes is None else axes
    order = tuple(normalize_axis("permute_dims", a, x.ndim) for a in chosen)
    if sorted(order) != list(range(x.ndim)):
        got, fix = f"{order} for {x.aval!r}", f"Name all of them; torch's x.transpose is x.swapaxes{order[:2]}."
        raise ShapeError(message("permute_dims", "each axis once", got, fix))
    return order


def transpose(x: Any, *axes: Any) -> Array:
    """Return x with its axes permuted; without `axes`, reversed.

    >>> gt.transpose(gt.array([[1, 2], [3, 4]]))
    Array([[1, 3],
           [2, 4]], dtype=int64)
    """
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))):
        return permute_dims(x, axes[0])
    return permute_dims(x, axes or None)


def swapaxes(x: Any, axis1: int, axis2: int) -> Array:
    """Return x with two axes exchanged.

    >>> gt.swapaxes(gt.zeros((2, 3, 4)), 0, 1).shape
    (3, 2, 4)
    """
    x = lift("swapaxes", x)
    order = list(range(x.ndim))
    a, b = normalize_axis("swapaxes", axis1, x.ndim), normalize_axis("swapaxes", axis2, x.ndim)
    order[a], order[b] = order[b], order[a]
    return permute_dims(x, order)


def moveaxis(x: Any, source: Any, destination: Any) -> Array:
    """Return x with the axes `source` moved to positions `destination`; the others keep their order.

    >>> gt.moveaxis(gt.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = lift("moveaxis", x)
    sources, targets = (
        [normalize_axis("moveaxis", a, x.ndim) for a in (given if isinstance(given, (tuple, list)) else (given,))]
        for given in (source, destination)
    )
    if len(sources) != len(targets) or len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise ShapeError(message("moveaxis", "as many sources as destinations, each once", f"{source}, {destination}"))
    order = [k for k in range(x.ndim) if k not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return permute_dims(x, order)


def matrix_transpose(x: Any) -> Array:
    """Return x with its last two axes exchanged.

    >>> gt.matrix_transpose(gt.zeros((2, 3, 4))).shape
    (2, 4, 3)
    """
    return record_order(permute_op, lift("matrix_transpose", x), "matrices", _matrices_transposed)


def _matrices_transposed(x: Array) -> tuple[int, ...]:
    if x.ndim < 2:
        raise ShapeError(message("matrix_transpose", "at least two dimensions", repr(x.aval), "Use expand_dims first."))
    return (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)


# -- broadcasting


def _broadcast_batch(op: Op, size: int, batched: Any, operands: Any, shape: tuple[int, ...]) -> Array:
    x = operands[0]
    aligned = reshape(x, (size, *(1,) * (len(shape) - x.ndim + 1), *x.shape[1:]))
    return bind(op, (aligned,), ((size, *shape),))


def _sum_to_batch(op: Op, size: int, batched: Any, operands: Any, shape: tuple[int, ...]) -> Array:
    x = operands[0]
    kept = bind(op, (x,), ((size, *(1,) * (x.ndim - 1 - len(shape)), *shape),))
    return reshape(kept, (size, *shape))


broadcast_op = define(
    "broadcast_to", lambda x, shape: x.expand(shape), uniform=True, free=True, moves=True, params=("shape",),
    vjp=lambda ct, needed, x, out, shape: (unbroadcast(ct, x.aval),), linear=True,
    batch=_broadcast_batch, span=of_operand, factors=broadcasted,
    samples=lambda: [Sample((uniform(-2, 2, 3, 1), (2, 3, 4))), Sample((uniform(-2, 2), (2,)))],
    errors=lambda: [BadSample((numpy.ones((2, 3)), (2, 4)), {}, ShapeError, r"broadcast")],
    reference=numpy.broadcast_to, user=lambda x, shape: broadcast_to(x, shape),
    keeps=slice(None),
)  # fmt: skip


def broadcast_to(x: Any, shape: Any) -> Array:
    """Return x repeated along new axes and axes of size 1 so that it has `shape`.

    Raises:
        ShapeError: the shape of x does not broadcast to it.

    >>> gt.broadcast_to(gt.array([1., 2.]), (2, 2))
    Array([[1., 2.],
           [1., 2.]], dtype=float32)
    """
    x = lift("broadcast_to", x)
    target = as_shape("broadcast_to", shape)
    padded = (1,) * (len(target) - x.ndim) + x.shape
    if len(padded) != len(target) or any(n not in (1, m) for n, m in zip(padded, target, strict=True)):
        expected, fix = f"an array that broadcasts to {target}", "Sizes must be equal or 1."
        raise ShapeError(message("broadcast_to", expected, repr(x.aval), fix))
    return distinct(x) if target == x.shape else bind(broadcast_op, (x,), (target,))


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """Return the broadcast shape of these shapes.

    Raises:
        ShapeError: they do not broadcast.

    >>> gt.broadcast_shapes((2, 1), 3)
    (2, 3)
    """
    sizes = [as_shape("broadcast_shapes", shape) for shape in shapes]
    try:
        return numpy.broadcast_shapes(*sizes)
    except ValueError:
        fix = "Incompatible shapes for broadcasting: sizes must be equal or 1."
        raise ShapeError(message("broadcast_shapes", "shapes that broadcast", sizes, fix)) from None


def broadcast_arrays(*arrays: Any) -> list[Array]:
    """Return the arrays broadcast against each other.

    >>> [x.shape for x in gt.broadcast_arrays(gt.zeros((2, 1)), gt.zeros(3))]
    [(2, 3), (2, 3)]
    """
    lifted = [lift("broadcast_arrays", x) for x in arrays]
    shape = broadcast("broadcast_arrays", [x.aval for x in lifted])
    return [broadcast_to(x, shape) for x in lifted]


def meshgrid(*xi: Any, indexing: str = "xy", sparse: bool = False, copy: bool = True) -> list[Array]:
    """Return the coordinates of a grid, one array for each of the sequences `xi`.

    Args:
        xi: arrays of at most one dimension.
        indexing: ``"xy"``: the first coordinate varies along axis 1, the second along axis 0. ``"ij"``: in order.
        sparse: keep the axes along which a coordinate is constant at size 1.
        copy: ignored; Arrays never change.

    Raises:
        ArgumentError: `indexing` is unknown.
        ShapeError: a sequence has more than one dimension.

    >>> [x.shape for x in gt.meshgrid(gt.arange(3), gt.arange(2))]
    [(2, 3), (2, 3)]
    """
    arrays = [lift("meshgrid", x) for x in xi]
    if indexing not in ("xy", "ij"):
        raise ArgumentError(message("meshgrid", '"xy" or "ij" as indexing', repr(indexing), "Pass one of them."))
    if any(x.ndim > 1 for x in arrays):
        raise ShapeError(
            message("meshgrid", "arrays of at most one dimension", [x.aval for x in arrays], "Use gt.ravel.")
        )
    order = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        order[:2] = 1, 0
    out = [reshape(x, tuple(x.size if k == axis else 1 for k in order)) for axis, x in enumerate(arrays)]
    return out if sparse else broadcast_arrays(*out) if out else []


def _sum_to_reference(x: numpy.ndarray, shape: tuple[int, ...]) -> numpy.ndarray:
    new = x.ndim - len(shape)
    kept = tuple(new + k for k, n in enumerate(shape) if n == 1)
    return x.sum(axis=kept, keepdims=True).sum(axis=tuple(range(new)))


def _sum_to(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    out = x.sum_to_size(shape)
    return out if out.dtype is x.dtype else out.to(x.dtype)  # torch adds integers as int64


sum_to = define(
    "sum_to", _sum_to, params=("shape",),
    fresh=lambda avals, out: avals[0].shape != out.shape,  # for an equal shape, the result is the operand itself
    vjp=lambda ct, needed, x, out, shape: (broadcast_to(ct, x.aval.shape),), linear=True, factors=summed_to,
    shape=lambda avals, shape: reshaped(avals[0], shape), batch=_sum_to_batch,
    samples=lambda: [Sample((uniform(-2, 2, 2, 3, 4), s)) for s in [(3, 1), (4,), ()]],
    reference=_sum_to_reference, user=lambda x, shape: bind(sum_to, (lift("sum_to", x),), (tuple(shape),)),
    keeps=slice(None),
)  # fmt: skip


def unbroadcast(ct: Array, a: Aval) -> Array:
    """Return `ct` summed over the axes along which an operand of aval `a` was broadcast."""
    return ct if ct.aval.shape == a.shape else bind(sum_to, (ct,), (a.shape,))


# -- constants


def _full_impl(value: torch.Tensor, shape: tuple[int, ...], device: str) -> torch.Tensor:
    if type(value) is torch.Tensor and value.device.type == "cpu" != device:
        # a GPU makes it itself: the host would wait for a copy
        return torch.full(shape, value.item(), dtype=value.dtype, device=device)
    return value.to(device).expand(shape).clone(memory_format=torch.contiguous_format)


_full = define(
    "full", _full_impl, uniform=True, free=True, constant=True, params=("shape", "device"),
    shape=lambda avals, shape, device: aval(shape, avals[0].dtype, torch.device(device)),
    vjp=lambda ct, needed, value, out, shape, device: (unbroadcast(ct, value.aval),), linear=True, factors=filled,
    batch=lambda op, size, batched, operands, shape, device: broadcast_to(
        reshape(operands[0], (size, *(1,) * len(shape))), (size, *shape)
    ),
    samples=lambda: [Sample(((2, 3), 1.5)), Sample(((0,), 2.0))],
    reference=numpy.full, user=lambda shape, value: full_like_scalar(value, torch.float64, shape),
)  # fmt: skip


def full_like_scalar(
    value: bool | int | float | complex, dtype: torch.dtype, shape: Any, device: torch.device = CPU
) -> Array:
    """Return an array filled with a Python scalar, as part of the program."""
    operand = number_operand("full", value, dtype, device)
    return bind(_full, (operand,), (as_shape("full", shape), str(device)))


def constant(value: bool | int | float | complex, a: Aval) -> Array:
    """Return an array filled with a Python scalar, with the shape, dtype and device of `a`."""
    return full_like_scalar(value, a.dtype, a.shape, a.device)
