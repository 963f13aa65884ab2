"""Decompositions of torch operators: some for all traces, others only for derivatives that torch lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core.backends.interpreter.batch_norms import differentiable_backward
from gtrace.interop.aten.equal_functions import EQUAL_FUNCTIONS

Optional = torch.Tensor | None


def _native_batch_norm(
    x: torch.Tensor, weight: Optional, bias: Optional, running_mean: Optional, running_var: Optional, training: bool,
    momentum: float, eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Call the torch operator whose name says what this one does for these operands."""
    if training and running_mean is not None:
        return NotImplemented  # it writes to them
    if running_mean is None or running_var is None:
        return torch.ops.aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, eps)
    return torch.ops.aten._native_batch_norm_legit_no_training.default(
        x, weight, bias, running_mean, running_var, momentum, eps
    )


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Optional = None, scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the attention of (..., length, depth) operands, and the logsumexp of its scores."""
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if attn_mask is not None:
        scores = scores + attn_mask
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def _attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, logsumexp: torch.Tensor,
    dropout_p: float, is_causal: bool, *, attn_mask: Optional = None, scale: float | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]

    return torch.func.vjp(forward, q, k, v)[1](grad)


def _layer_norm(
    x: torch.Tensor, sizes: Sequence[int], weight: Optional, bias: Optional, eps: float
) -> tuple[torch.Tensor, ...]:
    """Return x normalized over its last axes, and the means and inverse deviations, as functions of x."""
    axes = list(range(x.dim() - len(sizes), x.dim()))
    mean = x.mean(axes, keepdim=True)
    scale = torch.rsqrt((x - mean).square().mean(axes, keepdim=True) + eps)
    out = (x - mean) * scale
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias), mean, scale


def _group_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, weight: Optional, batch: int,
    channels: int, size: int, groups: int, wanted: Sequence[bool],
) -> tuple[Optional, ...]:  # fmt: skip
    """Return the cotangents of a group norm, with the mean and the scale as functions of x."""
    inner, shape = (batch, groups, channels // groups, size), x.shape
    grad, x, scale = grad.reshape(inner), x.reshape(inner), scale.reshape(batch, groups, 1, 1)
    deviation = x - x.mean((2, 3), keepdim=True)
    variance = deviation.square().mean((2, 3), keepdim=True)
    # the scale determines the number that was added to the variance
    scale = torch.rsqrt(variance + (scale**-2 - variance).detach())
    normal = deviation * scale
    by_channel = None if weight is None else weight.reshape(1, groups, channels // groups, 1)
    ct = grad if by_channel is None else grad * by_channel
    along = (ct * normal).mean((2, 3), keepdim=True)
    by_x = (ct - ct.mean((2, 3), keepdim=True) - normal * along) * scale
    return (
        by_x.reshape(shape) if wanted[0] else None,
        (grad * normal).sum((0, 3)).reshape(channels) if wanted[1] else None,
        grad.sum((0, 3)).reshape(channels) if wanted[2] else None,
    )


def _copy(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return source.to(x.dtype).expand(x.shape)


def _weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Trace contiguous operands. The kernel assumes them without checking, but arrays may have any layout."""
    norm = torch.norm_except_dim(v, 2, dim)
    return v * (g / norm), norm


def _as_strided_scatter(
    x: torch.Tensor, source: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> torch.Tensor:
    """Write to the elements of a view of a dense x: torch's derivative does not follow writes to memory."""
    places = torch.arange(x.numel(), device=x.device).as_strided(size, stride, offset)
    return x.reshape(-1).index_put((places.reshape(-1),), source.reshape(-1)).reshape(x.shape)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_batch_norm.default: _native_batch_norm,
    torch.ops.aten._weight_norm_interface.default: _weight_norm,
    torch.ops.aten.copy.default: _copy,
    torch.ops.aten.as_strided_scatter.default: _as_strided_scatter,
    torch.ops.aten._efficientzerotensor.default: torch.ops.aten.zeros.default,
}
"""By overload: a replacement for kernels that write to operands, misread them or lack derivatives."""

_FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"
FLASH = f"{_FLASH}.default"
"""Attention on a CPU. torch has no derivative of it with respect to the mask; for that it uses `attention`."""


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    sizes = [1] * x.dim()
    if sizes:
        sizes[dim] = -1
    mask = torch.zeros(x.shape[dim] if x.dim() else 1, dtype=torch.bool, device=x.device).index_fill(0, index, True)
    return torch.where(mask.reshape(sizes), value, x)


def _in_single_precision(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Compute with float32 where the operand has 16 bits, as torch's kernel of the first derivative does."""

    def wider(x: torch.Tensor) -> torch.Tensor:
        return function(x.float()).to(x.dtype) if x.dtype in (torch.float16, torch.bfloat16) else function(x)

    return wider


ALTERNATIVES: dict[tuple[str, str], Callable[..., Any]] = {
    # torch differentiates these twice by formulas, whose terms cancel
    ("vjp", "aten.silu.default"): _in_single_precision(torch.ops.aten.silu.default),
    ("vjp", "aten.mish.default"): _in_single_precision(torch.ops.aten.mish.default),
    ("jvp", "aten.native_layer_norm.default"): _layer_norm,
    ("vjp", "aten.index_fill.int_Tensor"): _index_fill,
    # torch calls one of the two without a gradient, and has a gradient only of the other
    ("vjp", "aten._embedding_bag_forward_only.default"): torch.ops.aten._embedding_bag.default,
    ("jvp", "aten._embedding_bag_forward_only.default"): torch.ops.aten._embedding_bag.default,
    ("vjp", "aten.native_group_norm_backward.default"): _group_norm_backward,
    ("jvp", "aten.native_group_norm_backward.default"): _group_norm_backward,
    ("vjp", "aten.native_batch_norm_backward.default"): differentiable_backward,
    ("jvp", "aten.native_batch_norm_backward.default"): differentiable_backward,
    ("jvp", FLASH): attention,
    ("vjp", f"{_FLASH}_backward.default"): _attention_backward,
    ("jvp", f"{_FLASH}_backward.default"): _attention_backward,
    **{(rule, overload): function for overload, function in EQUAL_FUNCTIONS.items() for rule in ("vjp", "jvp")},
}
"""By rule and overload: an equal function with derivatives in torch."""

TRANSPOSED = {
    "aten.cholesky_inverse.default",
    "aten.max_unpool2d.default",
    "aten.max_unpool3d.default",
    "aten.triangular_solve.default",
}
"""Overloads with wrong forward derivatives in torch; the transposed backward derivative replaces them."""

TOGETHER = {"aten.linalg_eig.default": (1,), "aten._linalg_eigh.default": (1,), "aten._linalg_svd.default": (0, 2)}
"""By overload: results that are unique up to a factor of modulus 1. If one of them has a cotangent, the rule gets
cotangents of all results. With fewer, torch keeps a part that is zero for functions independent of the factors. In
second derivatives, that part cancels only in the sum over all uses of the decomposition.
"""
