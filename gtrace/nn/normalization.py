"""Normalization layers as functions. Statistics of 16-bit floats are computed in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.extend import (
    Array,
    Aval,
    NamedFunction,
    ShapeError,
    as_int,
    as_shape,
    cast,
    message,
    normalize_axis,
    ops,
    replayable,
    slice_axis,
)
from gtrace.nn.common import floating, vector_norm, widened

__all__ = [
    "batch_norm", "batch_norm_train", "group_norm", "instance_norm", "layer_norm", "local_response_norm", "normalize",
    "rms_norm",
]  # fmt: skip


def _before_rows(batched: tuple[bool, ...], settings: Any) -> bool:
    return batched[0] and not any(batched[1:])


def _before_rows_alone(batched: tuple[bool, ...], settings: Any) -> bool:
    *_, wanted = settings
    return batched[0] and batched[-1] and not any(batched[1:-1]) and not any(wanted[1:])


def _layer_norm_results(avals: Sequence[Aval], settings: Any) -> tuple[Aval, ...] | None:
    return None if any(a.weak for a in avals) else (avals[0],)


def _layer_norm_kernel(avals: Sequence[Aval], settings: Any) -> Callable[..., Any] | None:
    place, eps, *_ = settings
    shape = avals[0].shape[-place:]
    if avals[0].dtype not in _KERNELS or eps < 0.0:
        return None

    def run(x: torch.Tensor, weight: Any = None, bias: Any = None) -> list[torch.Tensor]:
        return [torch.nn.functional.layer_norm(x, shape, weight, bias, eps)]

    return run


def _layer_norm_gradient_kernel(avals: Sequence[Aval], settings: Any) -> Callable[..., Any] | None:
    place, eps, has_weight, has_bias, wanted = settings
    shape, flags = list(avals[0].shape[-place:]), [wanted[0], has_weight and wanted[1], has_bias and wanted[-1]]
    if avals[0].dtype not in _KERNELS or eps < 0.0:
        return None

    def run(x: torch.Tensor, *rest: torch.Tensor) -> list[torch.Tensor]:
        *vectors, ct = rest
        weight, bias = (*vectors, None, None)[:2]
        _, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, eps)
        found = torch.ops.aten.native_layer_norm_backward(ct, x, shape, mean, rstd, weight, bias, flags)
        return [g for g, flag in zip(found, flags, strict=True) if flag]

    return run


_KERNELS = (torch.float32, torch.float64)

_LAYER_NORM = NamedFunction(
    "layer_norm", _before_rows, _before_rows_alone, _layer_norm_results, _layer_norm_kernel, _layer_norm_gradient_kernel
)
_BATCH_NORM = NamedFunction("batch_norm")


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Return the mean, the deviation from it and the biased variance, with the axes kept."""
    mean = ops.mean(x, axes, keepdims=True)
    deviation = x - mean
    return mean, deviation, ops.mean(ops.square(deviation), axes, keepdims=True)


def _vectors(name: str, x: Array, weight: Any, bias: Any, shape: tuple[int, ...]) -> list[Array | None]:
    """Return weight and bias as Arrays.

    Raises:
        ShapeError: one has another shape than `shape`.
    """
    found = [None if value is None else floating(name, value) for value in (weight, bias)]
    for what, value in zip(("weight", "bias"), found, strict=True):
        if value is not None and value.shape != shape:
            got = f"{value.aval!r} for {x.aval!r}"
            raise ShapeError(message(name, f"a {what} of shape {shape}", got, "Check the sizes."))
    return found


def _scaled(x: Array, vectors: Sequence[Array | None], broadcast: tuple[int, ...]) -> Array:
    """Return x * weight + bias; both are reshaped to `broadcast`."""
    weight, bias = vectors
    x = x if weight is None else x * ops.reshape(weight, broadcast)
    return x if bias is None else x + ops.reshape(bias, broadcast)


def _normal(
    named: NamedFunction, x: Array, axes: tuple[int, ...], place: int, eps: Any,
    vectors: Sequence[Array | None] = (None, None), broadcast: tuple[int, ...] = (), results: int = 1,
) -> list[Array]:  # fmt: skip
    """Return x with mean 0 and variance 1 along some axes, times weight, plus bias; then mean and variance.

    Args:
        place: the number of axes of a layer norm, or the axis that a batch norm keeps.
        broadcast: a shape of weight and bias that fits x.
        results: how many of the three there are.
    """
    weight, bias = vectors
    # kernels take vectors of the type of x, and no bias alone
    given = [v for v in vectors if v is not None]
    fit = all(not v.aval.weak and torch.promote_types(v.aval.dtype, x.aval.dtype) is x.aval.dtype for v in given)
    inside = fit and weight is not None and (named is _BATCH_NORM or len(axes) == 1)
    flags = (inside, inside and bias is not None)

    def formula(arrays: Sequence[Array]) -> list[Array]:
        rows, *own = arrays
        mean, deviation, variance = _moments(rows, axes)
        out = deviation * ops.rsqrt(variance + eps)
        # the vectors of a layer norm have its last axis, whatever its size
        out = _scaled(out, (*own, None, None)[:2], own[0].shape if own and named is _LAYER_NORM else broadcast)
        return [out, mean, variance][:results]

    operands = [x, *[cast(v, x.aval.dtype) for v in given]] if inside else [x]
    call = isinstance(eps, (int, float))
    out, *others = named(formula, operands, place, float(eps), *flags) if call else formula(operands)
    return [out if inside else _scaled(out, vectors, broadcast), *others]


def _trailing(name: str, x: Array, normalized_shape: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of the last axes of x, which must be the given one, and these axes."""
    shape = as_shape(name, normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape:
        got = f"{shape} for {x.aval!r}"
        raise ShapeError(message(name, "the sizes of the last axes as normalized_shape", got, "Check the sizes."))
    return shape, tuple(range(x.ndim - len(shape), x.ndim))


@replayable
def layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Array:
    """Return x with mean 0 and variance 1 over its last axes, times weight, plus bias (Ba et al., 2016).

    Args:
        x: floating array; integers become float32.
        normalized_shape: the sizes of the last axes; an int for one axis.
        weight, bias: of that shape.
        eps: added to the variance.

    Raises:
        ShapeError: the sizes do not fit x.

    >>> gt.round(gt.nn.layer_norm(gt.array([[1., 3.], [5., 9.]]), 2), 4)
    Array([[-1.,  1.],
           [-1.,  1.]], dtype=float32)
    """
    x = floating("layer_norm", x)
    shape, axes = _trailing("layer_norm", x, normalized_shape)
    vectors = _vectors("layer_norm", x, weight, bias, shape)
    return cast(_normal(_LAYER_NORM, widened(x), axes, len(axes), eps, vectors, shape)[0], x.aval.dtype)


@replayable
def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Array:
    """Return x divided by the root of its mean square over the last axes, times weight (Zhang and Sennrich, 2019).

    Args:
        x: floating array; integers become float32.
        normalized_shape: the sizes of the last axes; an int for one axis.
        weight: of that shape.
        eps: added to the mean square; None: the machine epsilon of the dtype of x.

    Raises:
        ShapeError: the sizes do not fit x.

    >>> gt.round(gt.nn.rms_norm(gt.array([3., 4.]), 2), 4)
    Array([0.8485, 1.1314], dtype=float32)
    """
    x = floating("rms_norm", x)
    shape, axes = _trailing("rms_norm", x, normalized_shape)
    wide = widened(x)
    added = torch.finfo(x.aval.dtype).eps if eps is None else eps
    scale = ops.rsqrt(ops.mean(ops.square(wide), axes, keepdims=True) + added)
    return cast(_scaled(wide * scale, _vectors("rms_norm", x, weight, None, shape), shape), x.aval.dtype)


def _channels(name: str, x: Array, least: int) -> tuple[int, ...]:
    """Return the shape that broadcasts channels along axis 1 of x.

    Raises:
        ShapeError: x has fewer than `least` axes.
    """
    if x.ndim < least:
        raise ShapeError(message(name, f"at least {least} axes", repr(x.aval), "They are (batch, channels, ...)."))
    return (x.shape[1], *(1,) * (x.ndim - 2))


@replayable
def group_norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Array:
    """Return x with mean 0 and variance 1 over each group of channels of an example (Wu and He, 2018).

    Args:
        x: floating, (batch, channels, ...).
        num_groups: the number of equal groups of channels.
        weight, bias: one number for each channel.
        eps: added to the variance.

    Raises:
        ShapeError: the groups do not divide the channels, or other sizes do not fit.

    >>> gt.round(gt.nn.group_norm(gt.array([[1., 3., 5., 9.]]), 2), 4)
    Array([[-1.,  1., -1.,  1.]], dtype=float32)
    """
    x = floating("group_norm", x)
    broadcast = _channels("group_norm", x, 2)
    groups = as_int("group_norm", "num_groups", num_groups)
    if groups < 1 or x.shape[1] % groups:
        expected = f"a number of groups that divides {x.shape[1]}"
        raise ShapeError(message("group_norm", expected, str(groups), f"x is {x.aval!r}."))
    rows = ops.reshape(widened(x), (x.shape[0], groups, math.prod(x.shape[1:]) // groups))
    out = ops.reshape(_normal(_LAYER_NORM, rows, (2,), 1, eps)[0], x.shape)
    vectors = _vectors("group_norm", x, weight, bias, (x.shape[1],))
    return cast(_scaled(out, vectors, broadcast), x.aval.dtype)


@replayable
def instance_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Array:
    """Return x with mean 0 and variance 1 over each channel of an example (Ulyanov et al., 2016).

    Args:
        x: floating, (batch, channels, size, ...).
        weight, bias: one number for each channel.
        eps: added to the variance.

    Raises:
        ShapeError: sizes that do not fit, or no axes beside batch and channels.

    >>> gt.round(gt.nn.instance_norm(gt.array([[[1., 3.], [5., 9.]]])), 4)
    Array([[[-1.,  1.],
            [-1.,  1.]]], dtype=float32)
    """
    x = floating("instance_norm", x)
    broadcast = _channels("instance_norm", x, 3)
    vectors = _vectors("instance_norm", x, weight, bias, (x.shape[1],))
    out = _normal(_LAYER_NORM, widened(x), tuple(range(2, x.ndim)), x.ndim - 2, eps)[0]
    return cast(_scaled(out, vectors, broadcast), x.aval.dtype)


def _along_channels(name: str, x: Array, axis: Any) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return the number of channels, the shape that broadcasts them along x, and the other axes."""
    place = normalize_axis(name, axis, x.ndim)
    others = tuple(k for k in range(x.ndim) if k != place)
    return x.shape[place], tuple(1 if k in others else n for k, n in enumerate(x.shape)), others


@replayable
def batch_norm(
    x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, axis: int = 1
) -> Array:
    """Return (x - mean) / sqrt(var + eps) * weight + bias by channel, for known statistics.

    Args:
        x: floating, with channels on `axis`.
        mean, var, weight, bias: one number for each channel.
        eps: added to the variance.
        axis: the axis of the channels.

    Raises:
        ShapeError: sizes do not fit.

    >>> gt.round(gt.nn.batch_norm(gt.array([[1.], [3.]]), gt.array([2.]), gt.array([1.])), 4)
    Array([[-1.],
           [ 1.]], dtype=float32)
    """
    x = floating("batch_norm", x)
    count, broadcast, _ = _along_channels("batch_norm", x, axis)
    mean, var = (widened(floating("batch_norm", y)) for y in (mean, var))
    for what, statistic in (("mean", mean), ("var", var)):
        if statistic.shape != (count,):
            got = f"{statistic.aval!r} for {x.aval!r}"
            raise ShapeError(message("batch_norm", f"a {what} of shape {(count,)}", got, "Pass axis=."))
    scale = ops.reshape(ops.rsqrt(var + eps), broadcast)
    out = (widened(x) - ops.reshape(mean, broadcast)) * scale
    return cast(_scaled(out, _vectors("batch_norm", x, weight, bias, (count,)), broadcast), x.aval.dtype)


@replayable
def batch_norm_train(
    x: Any,
    mean: Any,
    var: Any,
    weight: Any = None,
    bias: Any = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    axis: int = 1,
) -> tuple[Array, Array, Array]:
    """Return x normalized by its own statistics, and the new running mean and variance (Ioffe and Szegedy, 2015).

    The new running statistics are ``(1 - momentum) * old + momentum * batch``, with the unbiased variance of the batch.

    Args:
        x: floating, with channels on `axis`.
        mean, var: the running statistics so far, one number for each channel.
        weight, bias: one number for each channel.
        momentum: the share of this batch.
        eps: added to the variance.
        axis: the axis of the channels.

    Raises:
        ShapeError: sizes do not fit, or there is a single value for each channel.

    >>> out, mean, var = gt.nn.batch_norm_train(gt.array([[1.], [3.]]), gt.zeros(1), gt.ones(1))
    >>> mean, var
    (Array([0.2], dtype=float32), Array([1.1], dtype=float32))
    """
    x = floating("batch_norm_train", x)
    channels, broadcast, others = _along_channels("batch_norm_train", x, axis)
    count = math.prod(x.shape[k] for k in others)
    if count < 2:
        fix = "The variance of one value is not known."
        raise ShapeError(message("batch_norm_train", "at least two values for each channel", repr(x.aval), fix))
    vectors = _vectors("batch_norm_train", x, weight, bias, (channels,))
    place = normalize_axis("batch_norm_train", axis, x.ndim)
    out, batch_mean, batch_var = _normal(_BATCH_NORM, widened(x), others, place, eps, vectors, broadcast, 3)
    running = []
    for old, new in ((mean, batch_mean), (var, batch_var * (count / (count - 1)))):
        before = floating("batch_norm_train", old)
        if before.shape != (channels,):
            expected = f"running statistics of shape {(channels,)}"
            raise ShapeError(message("batch_norm_train", expected, repr(before.aval), f"x is {x.aval!r}."))
        running.append(before * (1.0 - momentum) + cast(ops.reshape(new, (channels,)), before.aval.dtype) * momentum)
    return cast(out, x.aval.dtype), running[0], running[1]


@replayable
def local_response_norm(x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Array:
    """Return x / (k + alpha * s) ** beta, where s is the mean square of `size` neighbouring channels.

    Channels out of range count as zeros (Krizhevsky et al., 2012).

    Args:
        x: floating, (batch, channels, ...).
        size: the number of channels.

    Raises:
        ShapeError: there are fewer than three axes, or the size is below 1.

    >>> gt.nn.local_response_norm(gt.ones((1, 2, 1)), 2, alpha=2.0, beta=1.0)
    Array([[[0.5       ],
            [0.33333334]]], dtype=float32)
    """
    x = floating("local_response_norm", x)
    _channels("local_response_norm", x, 3)
    count = as_int("local_response_norm", "size", size)
    if count < 1:
        raise ShapeError(message("local_response_norm", "a size >= 1", str(count), "Pass a positive integer."))
    widths = tuple((count // 2, (count - 1) // 2) if a == 1 else (0, 0) for a in range(x.ndim))
    squares = ops.pad(ops.square(widened(x)), widths)
    total = slice_axis(squares, 1, 0, x.shape[1])
    for start in range(1, count):
        total = total + slice_axis(squares, 1, start, start + x.shape[1])
    return cast(widened(x) * ops.power(total * (alpha / count) + k, -float(beta)), x.aval.dtype)


@replayable
def normalize(x: Any, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Array:
    """Return x divided by its p-norms over `axis`, or by `eps` where these are smaller.

    Raises:
        ShapeError: there is no such axis.
        ArgumentError: p is not a number above 0.

    >>> gt.round(gt.nn.normalize(gt.array([[3., 4.]])), 4)
    Array([[0.6, 0.8]], dtype=float32)
    """
    x = floating("normalize", x)
    norms = vector_norm("normalize", widened(x), p, normalize_axis("normalize", axis, x.ndim), keepdims=True)
    return cast(widened(x) / ops.maximum(norms, eps), x.aval.dtype)
