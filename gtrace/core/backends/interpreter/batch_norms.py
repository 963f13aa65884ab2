"""Batch norms as elementwise operations and reductions, in the types of torch's kernels.

Programs call torch's kernels (`KERNELS`). Compiled code has the operations in their place, which become part of the
loops around them, and second derivatives are taken of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core.backends.interpreter.tuned import MOST_GROUPS, ONE_BY_ONE

Optional = torch.Tensor | None


def statistics_dtype(x: Any, parameters: Sequence[Any]) -> torch.dtype:
    """Return the dtype of the mean and the inverse deviation that torch's kernel returns.

    Args:
        x: tensor or type of an array.
        parameters: weight, bias and running statistics; None where there is none.
    """
    if x.device.type in ("cpu", "meta"):
        return next((one.dtype for one in parameters if one is not None), x.dtype)
    return _wide(x.dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _axes(x: torch.Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _count(x: torch.Tensor) -> Any:
    """Return how many values a channel has; a symbol, where sizes are open."""
    return math.prod(x.shape[k] for k in _axes(x))


def _by_channel(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return values.to(_wide(x.dtype)).reshape([1, -1, *(1,) * (x.dim() - 2)])


def _statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the biased variance of each channel."""
    wide = x.to(_wide(x.dtype))
    mean = wide.mean(_axes(x), keepdim=True)
    return mean.flatten(), (wide - mean).square().mean(_axes(x))


def _normalized(
    x: torch.Tensor, weight: Optional, bias: Optional, mean: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    out = (x.to(_wide(x.dtype)) - _by_channel(mean, x)) * _by_channel(scale, x)
    if weight is not None:
        out = out * _by_channel(weight, x)
    return (out if bias is None else out + _by_channel(bias, x)).to(x.dtype)


def _training(
    x: torch.Tensor, weight: Optional, bias: Optional, running_mean: torch.Tensor, running_var: torch.Tensor,
    training: bool, momentum: float, eps: float,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return x normalized over all axes but 1, the statistics used, and the new running ones.

    Source: Ioffe and Szegedy, 2015; the running variance is the unbiased one, as in torch.
    """
    if not training:
        return *_evaluation(x, weight, bias, running_mean, running_var, momentum, eps), running_mean, running_var
    mean, var = _statistics(x)
    count = _count(x)
    new_mean = running_mean * (1 - momentum) + mean * momentum
    # an open size is at least 2; Inductor has no constants that are computed from it, but integers
    if type(count) is int:  # the unbiased variance of one value is NaN, as in torch's kernels
        share = var * (momentum * count / (count - 1) if count > 1 else math.nan)
    else:
        share = var * count / (count - 1) * momentum
    new_var = running_var * (1 - momentum) + share
    scale, dtype = torch.rsqrt(var + eps), statistics_dtype(x, (weight, bias, running_mean))
    return (
        _normalized(x, weight, bias, mean, scale), mean.to(dtype), scale.to(dtype), new_mean.to(running_mean.dtype),
        new_var.to(running_var.dtype),
    )  # fmt: skip


def _without_statistics(
    x: torch.Tensor, weight: Optional, bias: Optional, training: bool, momentum: float, eps: float
) -> tuple[torch.Tensor, ...]:
    mean, var = _statistics(x)
    scale, dtype = torch.rsqrt(var + eps), statistics_dtype(x, (weight, bias))
    return _normalized(x, weight, bias, mean, scale), mean.to(dtype), scale.to(dtype)


def _evaluation(
    x: torch.Tensor, weight: Optional, bias: Optional, running_mean: torch.Tensor, running_var: torch.Tensor,
    momentum: float, eps: float,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    out = _normalized(x, weight, bias, running_mean, torch.rsqrt(running_var.to(_wide(x.dtype)) + eps))
    # the kernels leave these empty, or without values
    dtype, size = statistics_dtype(x, (weight, bias, running_mean)), 0 if x.device.type == "cpu" else x.shape[1]
    return out, x.new_zeros(size, dtype=dtype), x.new_zeros(size, dtype=dtype)


def _backward(
    ct: torch.Tensor, x: torch.Tensor, weight: Optional, running_mean: Optional, running_var: Optional, mean: Optional,
    scale: Optional, train: bool, eps: float, wanted: Sequence[bool],
) -> tuple[Optional, ...]:  # fmt: skip
    """Return the cotangents of x, weight and bias."""
    given = next((one for one in (weight, running_mean, mean) if one is not None), x)
    if not train:
        assert running_mean is not None and running_var is not None
        mean, scale = running_mean, torch.rsqrt(running_var.to(_wide(x.dtype)) + eps)
    assert mean is not None and scale is not None
    axes, count, wide = _axes(x), _count(x), ct.to(_wide(x.dtype))
    normal = _normalized(x.to(_wide(x.dtype)), None, None, mean, scale)
    by_bias, by_weight = wide.sum(axes), (wide * normal).sum(axes)
    inner = wide
    if train:
        inner = wide - _by_channel(by_bias / count, x) - normal * _by_channel(by_weight / count, x)
    by_x = inner * _by_channel(scale, x)
    if weight is not None:
        by_x = by_x * _by_channel(weight, x)
    return (
        by_x.to(x.dtype) if wanted[0] else None,
        by_weight.to(given.dtype) if wanted[1] else None,
        by_bias.to(given.dtype) if wanted[2] else None,
    )


def differentiable_backward(
    ct: torch.Tensor, x: torch.Tensor, weight: Optional, running_mean: Optional, running_var: Optional, mean: Optional,
    scale: Optional, train: bool, eps: float, wanted: Sequence[bool],
) -> tuple[Optional, ...]:  # fmt: skip
    """Return the cotangents of x, weight and bias, with the mean and the scale of a training step as functions of x.

    As in torch, nothing is differentiated by the running statistics.
    """
    if train:
        mean, var = _statistics(x)
        return _backward(ct, x, weight, None, None, mean, torch.rsqrt(var + eps), train, eps, wanted)
    assert running_mean is not None and running_var is not None
    fixed = running_mean.detach(), running_var.detach()
    return _backward(ct, x, weight, *fixed, None, None, train, eps, wanted)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._native_batch_norm_legit_functional.default: _training,
    torch.ops.aten._native_batch_norm_legit.no_stats: _without_statistics,
    torch.ops.aten._native_batch_norm_legit_no_training.default: _evaluation,
    torch.ops.aten.native_batch_norm_backward.default: _backward,
}
"""By overload: what compiled code has in place of it."""


# -- kernels


def _in_groups(x: torch.Tensor, count: int) -> torch.Tensor:
    """Return images with their channels last as images of one row, whose channels are those of groups of pixels."""
    channels = x.shape[1]
    rows = x.numel() // (channels * count)
    wide = channels * count
    return x.as_strided((1, wide, rows, 1), (rows * wide, 1, wide, wide))


def _groups(x: torch.Tensor) -> int:
    """Return into how many groups the pixels of images are divided for exact sums; 0: torch's kernel has exact ones.

    Of channels in front, it adds in float64. Of channels that are last, it adds the pixels one by one in float32: the
    mean of 30,000 is off by 30 roundings, and where that is large beside the deviation, results lose two digits.
    """
    last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    if not last or x.dtype is not torch.float32 or x.device.type != "cpu":
        return 0
    pixels = x.numel() // x.shape[1]
    if pixels <= ONE_BY_ONE:
        return 0
    least = -(-pixels // ONE_BY_ONE)
    return next((k for k in range(least, MOST_GROUPS * least) if pixels % k == 0), 0) or pixels


def _exact_statistics(x: torch.Tensor, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the biased variance of each channel in float64, from those of the groups.

    Source: Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample variances, 1979.
    """
    _, means, scales = torch.ops.aten._native_batch_norm_legit.no_stats(
        _in_groups(x, groups), None, None, True, 0.0, 0.0
    )
    means, deviations = means.double().view(groups, -1), scales.double().view(groups, -1)
    mean = means.mean(0)
    return mean, (deviations.pow(-2) + (means - mean).square()).mean(0)


def _exact(
    x: torch.Tensor, weight: Optional, bias: Optional, groups: int, momentum: float, eps: float
) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Return x normalized with the mean and the inverse deviation, and the mean and variance in float64."""
    mean, var = _exact_statistics(x, groups)
    kernel = torch.ops.aten._native_batch_norm_legit_no_training.default
    out, *_ = kernel(x, weight, bias, mean.float(), var.float(), momentum, eps)
    return [out, mean.float(), torch.rsqrt(var + eps).float()], mean, var


def _training_kernel(
    x: torch.Tensor, weight: Optional, bias: Optional, running_mean: torch.Tensor, running_var: torch.Tensor,
    training: bool, momentum: float, eps: float,
) -> Sequence[torch.Tensor]:  # fmt: skip
    groups = _groups(x) if training else 0
    if not groups:
        kernel = torch.ops.aten._native_batch_norm_legit_functional.default
        return kernel(x, weight, bias, running_mean, running_var, training, momentum, eps)
    results, mean, var = _exact(x, weight, bias, groups, momentum, eps)
    count = _count(x)
    new_mean = running_mean * (1 - momentum) + mean * momentum
    new_var = running_var * (1 - momentum) + var * (momentum * count / (count - 1))
    return [*results, new_mean.to(running_mean.dtype), new_var.to(running_var.dtype)]


def _kernel_without_statistics(
    x: torch.Tensor, weight: Optional, bias: Optional, training: bool, momentum: float, eps: float
) -> Sequence[torch.Tensor]:
    groups = _groups(x) if training else 0
    if not groups:
        kernel = torch.ops.aten._native_batch_norm_legit.no_stats
        return kernel(x, weight, bias, training, momentum, eps)
    return _exact(x, weight, bias, groups, momentum, eps)[0]


def _backward_kernel(
    ct: torch.Tensor, x: torch.Tensor, weight: Optional, running_mean: Optional, running_var: Optional, mean: Optional,
    scale: Optional, train: bool, eps: float, wanted: Sequence[bool],
) -> Sequence[Optional]:  # fmt: skip
    kernel = torch.ops.aten.native_batch_norm_backward.default
    groups = _groups(x) if train else 0
    if not groups or mean is None or scale is None or ct.stride() != x.stride():
        return kernel(ct, x, weight, running_mean, running_var, mean, scale, train, eps, wanted)
    parts = _in_groups(ct, groups), _in_groups(x, groups)
    _, by_weight, by_bias = kernel(
        *parts, None, None, None, mean.repeat(groups), scale.repeat(groups), True, eps, [False, True, True]
    )
    by_weight, by_bias = (y.double().view(groups, -1).sum(0).float() for y in (by_weight, by_bias))
    by_x = None
    if wanted[0]:
        factor, count = scale if weight is None else scale * weight, _count(x)
        by_x = x - _by_channel(mean, x)
        by_x.mul_(_by_channel(-factor * scale * by_weight / count, x)).add_(_by_channel(-factor * by_bias / count, x))
        by_x.addcmul_(ct, _by_channel(factor, x))
    return [by_x, by_weight if wanted[1] else None, by_bias if wanted[2] else None]


KERNELS: dict[str, Callable[..., Any]] = {
    "aten._native_batch_norm_legit_functional.default": _training_kernel,
    "aten._native_batch_norm_legit.no_stats": _kernel_without_statistics,
    "aten.native_batch_norm_backward.default": _backward_kernel,
}
"""By overload: what is called in place of torch's kernel, which it calls with sums that are as exact for any layout."""
