"""Result types of layers' calls: normalizations, losses, attention, indexing; see `call_types`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core.backends.interpreter.batch_norms import statistics_dtype
from gtrace.core.base.dtypes import FLOATS
from gtrace.interop.aten.elementwise_types import (
    Rule,
    Tensor,
    axes_of,
    broadcast,
    dense_order,
    elementwise,
    new,
    of_floats,
    same_floats,
    tensors,
)

_WIDE = torch.float32, torch.float64


def _along(x: Tensor, dim: int, *rest: Any, **kwargs: Any) -> Tensor | None:
    """Return the type of a float function along an axis."""
    fits = x.dtype in FLOATS and axes_of(x, dim) is not None and not any(rest)
    return new(x.shape, x.dtype) if fits and not any(value is not None for value in kwargs.values()) else None


def _along_backward(ct: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Tensor | None:
    return new(out.shape, dtype) if ct.shape == out.shape and ct.dtype is out.dtype is dtype else None


def _layer_norm(
    x: Tensor, sizes: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...] | None:
    if not same_floats(tensors((x, weight, bias))) or x.dtype not in _WIDE:
        return None
    outer = x.dim() - len(sizes)
    if tuple(x.shape[outer:]) != tuple(sizes) or any(
        tuple(one.shape) != tuple(sizes) for one in tensors((weight, bias))
    ):
        return None
    shape = (*x.shape[:outer], *(1,) * len(sizes))
    return new(x.shape, x.dtype), new(shape, x.dtype), new(shape, x.dtype)


def _layer_norm_backward(
    ct: Tensor, x: Tensor, sizes: Sequence[int], mean: Tensor, scale: Tensor, weight: Tensor | None,
    bias: Tensor | None, wanted: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:  # fmt: skip
    if not same_floats(tensors((ct, x, mean, scale, weight, bias))):
        return None
    shapes = x.shape, tuple(sizes), tuple(sizes)
    return tuple([new(shape, x.dtype) if want else None for shape, want in zip(shapes, wanted, strict=True)])


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, size: int, groups: int,
    eps: float,
) -> tuple[Tensor, ...] | None:  # fmt: skip
    if not x.is_contiguous() or not same_floats(tensors((x, weight, bias))) or x.dtype not in _WIDE:
        return None
    return new(x.shape, x.dtype), new((batch, groups), x.dtype), new((batch, groups), x.dtype)


def _group_norm_backward(
    ct: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, batch: int, channels: int, size: int,
    groups: int, wanted: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:  # fmt: skip
    if not x.is_contiguous() or not same_floats(tensors((ct, x, mean, scale, weight))):
        return None
    shapes = x.shape, (channels,), (channels,)
    return tuple([new(shape, x.dtype) if want else None for shape, want in zip(shapes, wanted, strict=True)])


def _images(x: Tensor) -> Tensor | None:
    """Return a result with the layout of dense images; the kernel has another layout for others."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if x.dim() < 2 or 0 in x.shape:
        return None
    if x.is_contiguous():
        return new(x.shape, x.dtype)
    return new(x.shape, x.dtype, x.stride()) if last is not None and x.is_contiguous(memory_format=last) else None


def _fits_batch_norm(x: Tensor, *parameters: Tensor | None) -> bool:
    given = tensors(parameters)
    dtypes = {one.dtype for one in given}
    mixed = x.dtype not in _WIDE and dtypes == {torch.float32}
    return (
        x.dtype in FLOATS and (mixed or dtypes <= {x.dtype}) and all(tuple(one.shape) == (x.shape[1],) for one in given)
    )


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, training: bool, momentum: float,
    eps: float,
) -> tuple[Tensor, ...] | None:  # fmt: skip
    found = _images(x)
    if found is None or not training or not _fits_batch_norm(x, weight, bias, mean, var):
        return None
    return found, *(new(mean.shape, mean.dtype) for _ in range(4))


def _batch_norm_without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...] | None:
    found = _images(x)
    if found is None or not training or not _fits_batch_norm(x, weight, bias):
        return None
    dtype = statistics_dtype(x, (weight, bias))
    return found, new((x.shape[1],), dtype), new((x.shape[1],), dtype)


def _batch_norm_evaluated(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, ...] | None:
    found = _images(x)
    if found is None or not _fits_batch_norm(x, weight, bias, mean, var):
        return None
    return found, new((0,), mean.dtype), new((0,), mean.dtype)


def _batch_norm_backward(
    ct: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    mean: Tensor | None, scale: Tensor | None, train: bool, eps: float, wanted: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:  # fmt: skip
    found, parameters = _images(x), (weight, running_mean, running_var, mean, scale)
    if found is None or ct.dtype is not x.dtype or ct.shape != x.shape or not _fits_batch_norm(x, *parameters):
        return None
    of_channels = new((x.shape[1],), statistics_dtype(x, parameters))
    return found if wanted[0] else None, of_channels if wanted[1] else None, of_channels if wanted[2] else None


_MEAN_OR_SUM = 1, 2
"""torch's numbers of loss reductions; 0 is none."""


def _loss(x: Tensor, *rest: Any) -> Tensor | None:
    """Return the type of an elementwise loss. An integer among the arguments is its reduction, by default the mean."""
    reduction = next((r for r in rest if type(r) is int), 1)
    found = of_floats(x, *[r for r in rest if isinstance(r, Tensor)])
    return found if found is None or reduction not in _MEAN_OR_SUM else new((), x.dtype)


def _loss_backward(ct: Tensor, x: Tensor, target: Tensor, *rest: Any) -> Tensor | None:
    return new(x.shape, x.dtype) if x.shape == target.shape and ct.dtype is x.dtype else None


def _nll(x: Tensor, target: Tensor, weight: Any, reduction: int, ignored: int) -> tuple[Tensor, Tensor] | None:
    fits = x.dtype in FLOATS and target.dtype is torch.int64 and x.dim() in (2, 4)
    if not fits or (x.shape[0], *x.shape[2:]) != tuple(target.shape):
        return None
    return new(() if reduction in _MEAN_OR_SUM else target.shape, x.dtype), new((), x.dtype)


def _nll_backward(ct: Tensor, x: Tensor, *rest: Any) -> Tensor | None:
    return new(x.shape, x.dtype) if x.dtype in FLOATS and x.is_contiguous() else None


def _embedding(weight: Tensor, indices: Tensor, *rest: Any) -> Tensor | None:
    return new((*indices.shape, weight.shape[1]), weight.dtype) if weight.dim() == 2 and _integers(indices) else None


def _embedding_backward(ct: Tensor, indices: Tensor, count: int, *rest: Any) -> Tensor:
    return new((count, ct.shape[-1]), ct.dtype)


def _integers(x: Tensor) -> bool:
    return x.dtype in (torch.int64, torch.int32)


def _indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor | None:
    given = [k for k, index in enumerate(indices) if index is not None]
    found = [index for index in indices if index is not None]
    if not found or not all(_integers(index) and index.is_contiguous() for index in found):
        return None
    if given != list(range(given[0], given[-1] + 1)) or not x.is_contiguous():
        return None
    shape = broadcast(*[index.shape for index in found])
    return None if shape is None else new((*x.shape[: given[0]], *shape, *x.shape[given[-1] + 1 :]), x.dtype)


def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor | None:
    if not x.dim() or index.dim() != 1 or not _integers(index) or axes_of(x, dim) is None:
        return None
    dim %= x.dim()
    return new((*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :]), x.dtype)


def _gathered(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor | None:
    fits = x.dim() == index.dim() and index.dtype is torch.int64 and axes_of(x, dim) is not None
    within = fits and all(
        a <= b for k, (a, b) in enumerate(zip(index.shape, x.shape, strict=True)) if k != dim % x.dim()
    )
    return new(index.shape, x.dtype) if within else None


def _joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    first = parts[0]
    if not first.dim() or axes_of(first, dim) is None:
        return None
    dim %= first.dim()
    for x in parts:
        if x.dtype is not first.dtype or x.dim() != first.dim() or not (x.dim() < 4 or x.is_contiguous()):
            return None
        if any(a != b for k, (a, b) in enumerate(zip(x.shape, first.shape, strict=True)) if k != dim):
            return None
    return new((*first.shape[:dim], sum(x.shape[dim] for x in parts), *first.shape[dim + 1 :]), first.dtype)


def _stacked(parts: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    first = parts[0]
    if any(
        x.dtype is not first.dtype or x.shape != first.shape or not (x.dim() < 3 or x.is_contiguous()) for x in parts
    ):
        return None
    if not -first.dim() - 1 <= dim <= first.dim():
        return None
    dim %= first.dim() + 1
    return new((*first.shape[:dim], len(parts), *first.shape[dim:]), first.dtype)


def _padded(x: Tensor, pads: Sequence[int], value: Any = 0) -> Tensor | None:
    if not x.is_contiguous() or len(pads) % 2 or len(pads) > 2 * x.dim():
        return None
    shape = list(x.shape)
    for k in range(len(pads) // 2):
        shape[-1 - k] += pads[2 * k] + pads[2 * k + 1]
    return new(shape, x.dtype) if min(shape) > 0 else None


def _attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, *, attn_mask: Any = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    order = dense_order(q)
    if not same_floats((q, k, v)) or order is None or q.dim() != 4:
        return None
    batch, heads, length, _ = q.shape
    wide = q.dtype if q.dtype in _WIDE else torch.float32
    return new(q.shape, q.dtype, order), new((batch, length, heads), wide).transpose(1, 2)


def _attention_backward(ct: Tensor, *operands: Any, **kwargs: Any) -> tuple[Tensor, ...] | None:
    if not same_floats((ct, *operands[:3])) or ct.dim() != 4:
        return None
    return tuple([
        new((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), x.dtype).transpose(1, 2) for x in operands[:3]
    ])  # fmt: skip


def _attention_of_zeros(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor | None:
    """Return the type of a softmax that is 0 where nothing is attended to."""
    return _along(x, dim) if dtype is None else None


def _dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor] | None:
    found, kept = of_floats(x), elementwise(torch.bool, x)
    return None if found is None or kept is None or train is False else (found, kept)


def _pooled(x: Tensor, sizes: Sequence[int]) -> Tensor | None:
    """Return the type of the means of a given number of windows."""
    fits = x.dtype in FLOATS and x.is_contiguous() and x.dim() in (3, 4) and 0 not in x.shape
    return new((*x.shape[:-2], *sizes), x.dtype) if fits else None


def _pooled_backward(ct: Tensor, x: Tensor) -> Tensor | None:
    return new(x.shape, x.dtype) if x.is_contiguous() and same_floats((ct, x)) else None


def _moved(x: Tensor, *rest: Any) -> Tensor | None:
    return new(x.shape, x.dtype) if x.is_contiguous() and x.dim() else None


def _place(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor | None:
    axes = axes_of(x, dim)
    if axes is None or 0 in x.shape:
        return None
    return new([1 if k in axes else n for k, n in enumerate(x.shape) if keepdim or k not in axes], torch.int64)


def _ctc_loss(
    x: Tensor, targets: Tensor, lengths: Sequence[int], counts: Sequence[int], *rest: Any, **kwargs: Any
) -> tuple[Tensor, ...]:
    """Return the types of the losses, and of the log-probabilities of labels with blanks between and around them."""
    steps, batch, _ = x.shape
    return new((batch,), x.dtype), new((batch, steps, 2 * max(counts, default=0) + 1), x.dtype)


def _ctc_loss_backward(ct: Tensor, x: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
    return new(x.shape, x.dtype)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("_softmax.default", "_log_softmax.default", "cumsum.default", "cumprod.default"), _along),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _along_backward),
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "_native_batch_norm_legit_functional": _batch_norm,
    "_native_batch_norm_legit.no_stats": _batch_norm_without_statistics,
    "_native_batch_norm_legit_no_training": _batch_norm_evaluated,
    "native_batch_norm_backward": _batch_norm_backward,
    **dict.fromkeys(
        (
            "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
        ),
        _loss,
    ),
    **dict.fromkeys(("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward"), _loss_backward),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _nll),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _nll_backward),
    "_ctc_loss.default": _ctc_loss,
    "_ctc_loss_backward.default": _ctc_loss_backward,
    "embedding.default": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "index.Tensor": _indexed,
    "index_select": _index_select,
    "gather": _gathered,
    "cat.default": _joined,
    "stack": _stacked,
    "constant_pad_nd": _padded,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_safe_softmax": _attention_of_zeros,
    "native_dropout": _dropout,
    "_adaptive_avg_pool2d": _pooled,
    "_adaptive_avg_pool2d_backward": _pooled_backward,
    **dict.fromkeys(("tril", "triu", "flip", "roll"), _moved),
    **dict.fromkeys(("argmax", "argmin"), _place),
}  # fmt: skip
"""By overload, or by operator for all its overloads."""
