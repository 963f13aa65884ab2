"""Batch norms as elementwise operations and reductions, in the types of torch's kernels.

Programs call torch's kernels. Compiled code has these in their place, which become part of the loops around them, and
second derivatives are taken of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

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
