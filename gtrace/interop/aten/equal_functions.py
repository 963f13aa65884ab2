"""Equivalents, made of differentiable calls, of operators whose derivatives torch lacks.

Most are backward passes. torch cannot differentiate these, so it has no second and no forward derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Optional = torch.Tensor | None


# -- distances


def _slope(difference: torch.Tensor, distance: torch.Tensor, p: float) -> torch.Tensor:
    """Return the derivative of a p-norm with respect to the vector, 0 where torch defines it as 0."""
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return difference.sign()
    if p == math.inf:
        return torch.where(difference.abs() == distance, difference.sign(), 0)
    if p == 2:
        return torch.where(distance == 0, 0, difference / distance)
    still = (distance == 0) | (difference == 0) if p < 1 else distance == 0
    return torch.where(still, 0, difference.sign() * (difference.abs() / distance) ** (p - 1))


def _cdist_backward(
    grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, p: float, distance: torch.Tensor
) -> torch.Tensor:
    if not grad.numel():
        return torch.zeros_like(x)  # for an empty batch, the kernel keeps the operand's shape
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    return (grad.unsqueeze(-1) * _slope(difference, distance.unsqueeze(-1), p)).sum(-2)


def _pdist_backward(grad: torch.Tensor, x: torch.Tensor, p: float, distance: torch.Tensor) -> torch.Tensor:
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device).unbind(0)
    difference = x.index_select(0, first) - x.index_select(0, second)
    parts = grad.unsqueeze(-1) * _slope(difference, distance.unsqueeze(-1), p)
    return torch.zeros_like(x).index_add(0, first, parts).index_add(0, second, -parts)


# -- activations


def _hardsigmoid_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.where((x > -3) & (x < 3), grad / 6, 0)


# -- losses


def _by_row(grad: torch.Tensor, rows: int, reduction: int) -> torch.Tensor:
    """Return the cotangent of each row's loss before its reduction, which is none, the mean or the sum."""
    return grad.reshape(-1, 1) if reduction == 0 else grad / rows if reduction == 1 else grad


def _multi_margin_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, p: float, margin: float, weight: Optional = None,
    reduction: int = 1,
) -> torch.Tensor:  # fmt: skip
    classes = x.shape[-1] if x.dim() else 1
    rows, labels = x.reshape(-1, classes), target.reshape(-1, 1)
    own = torch.arange(classes, device=x.device) == labels
    gap = margin - rows.gather(1, labels) + rows
    slopes = torch.where((gap > 0) & ~own, 2 * gap if p == 2 else torch.ones_like(gap), 0) / classes
    if weight is not None:
        slopes = slopes * weight.index_select(0, labels.reshape(-1)).unsqueeze(1)
    slopes = torch.where(own, -slopes.sum(1, keepdim=True), slopes)
    return (slopes * _by_row(grad, rows.shape[0], reduction)).reshape(x.shape)


def _multilabel_margin_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, is_target: torch.Tensor
) -> torch.Tensor:
    classes = x.shape[-1] if x.dim() else 1
    rows, labels, named = (z.reshape(-1, classes) for z in (x, target, is_target))
    listed = (labels >= 0).long().cumprod(1) == 1  # labels end at the first -1
    labels = labels.clamp(min=0)
    gap = 1 - rows.gather(1, labels).unsqueeze(2) + rows.unsqueeze(1)
    hits = ((gap > 0) & listed.unsqueeze(2) & (named == 0).unsqueeze(1)).to(x.dtype) / classes
    slopes = hits.sum(1).scatter_add(1, labels, -hits.sum(2))
    return (slopes * _by_row(grad, rows.shape[0], reduction)).reshape(x.shape)


def _linear_cross_entropy(
    x: torch.Tensor, weights: torch.Tensor, target: torch.Tensor, bias: Optional, of_classes: Optional, reduction: str,
    ignored: int, smoothing: float, dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """Return the loss of all rows at once; torch has its derivatives of all orders."""
    scores = torch.nn.functional.linear(x.to(dtype), weights.to(dtype), None if bias is None else bias.to(dtype))
    share = None if of_classes is None else of_classes.to(dtype)
    loss = torch.nn.functional.cross_entropy(
        scores, target, share, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing
    )
    return loss.to(x.dtype)


def _cross_entropy_in_chunks(
    x: torch.Tensor, weights: torch.Tensor, target: torch.Tensor, bias: Optional, of_classes: Optional, reduction: str,
    ignored: int, smoothing: float, size: int, policy: str, dtype: torch.dtype, retain: bool, *wanted: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return the loss without the gradients that the operator computes in its forward pass.

    Only the operator's own backward pass reads these gradients, so zeros replace them.
    """
    loss = _linear_cross_entropy(x, weights, target, bias, of_classes, reduction, ignored, smoothing, dtype)
    shapes = x.shape, weights.shape, weights.shape[:1]
    gradients = [x.new_zeros(shape if want else (0,) * len(shape)) for shape, want in zip(shapes, wanted, strict=True)]
    return loss, *gradients


def _cross_entropies_in_chunks(
    x: torch.Tensor, weights: torch.Tensor, target: torch.Tensor, bias: Optional, of_classes: Optional, ignored: int,
    size: int, policy: str, dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    return _linear_cross_entropy(x, weights, target, bias, of_classes, "none", ignored, 0.0, dtype)


def _ctc_loss_backward(grad: torch.Tensor, log_probs: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Return a derivative that is linear in the cotangent. As in torch, derivatives by the probabilities raise."""
    ones = torch.ones_like(grad.detach())
    return grad.reshape(1, -1, 1) * torch.ops.aten._ctc_loss_backward.default(ones, log_probs, *rest)


# -- bags and segments


def _bag_of_each(count: int, offsets: torch.Tensor) -> torch.Tensor:
    """Return the bag of each row. torch returns it too, unless its kernel does not use it."""
    starts = torch.zeros(count + 1, dtype=torch.int64, device=offsets.device)
    starts = starts.index_add(0, offsets, torch.ones_like(offsets, dtype=torch.int64))
    return starts.cumsum(0)[:-1] - 1


def _bag_weights_backward(
    grad: torch.Tensor, table: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor, bags: torch.Tensor,
    mode: int, padding: int = -1,
) -> torch.Tensor:  # fmt: skip
    own = _bag_of_each(places.shape[0], offsets[: grad.shape[0]])
    slopes = (grad.index_select(0, own) * table.index_select(0, places)).sum(1)
    return slopes.masked_fill(places == padding, 0) if padding >= 0 else slopes


def _embedding_bag_backward(
    grad: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor, bags: torch.Tensor, sizes: torch.Tensor,
    largest: torch.Tensor, count: int, by_frequency: bool, mode: int, sparse: bool, weights: Optional,
    padding: int = -1,
) -> torch.Tensor:  # fmt: skip
    if by_frequency:  # the kernel divides by counts of other rows
        raise NotImplementedError("torch has no derivative of embedding_bag's gradient scaled by frequency")
    out = grad.new_zeros((count, grad.shape[1]))
    if mode == 2:
        empty = (sizes[: grad.shape[0]] == 0).unsqueeze(1)
        return out.scatter_add(0, largest.long().clamp(min=0), grad.masked_fill(empty, 0))
    own = _bag_of_each(places.shape[0], offsets[: grad.shape[0]])
    rows = grad.index_select(0, own)
    if mode == 1:
        rows = rows / sizes.clamp(min=1).index_select(0, own).unsqueeze(1)
    if weights is not None:
        rows = rows * weights.unsqueeze(1)
    if padding >= 0:
        rows = rows.masked_fill((places == padding).unsqueeze(1), 0)
    return out.index_add(0, places, rows)


def _segment_reduce_backward(
    grad: torch.Tensor, out: torch.Tensor, data: torch.Tensor, reduce: str, *, lengths: Optional = None,
    offsets: Optional = None, axis: int = 0, initial: float | None = None,
) -> torch.Tensor:  # fmt: skip
    if reduce == "prod":
        raise NotImplementedError("torch has no derivative of the gradient of products of segments")
    if lengths is None:
        assert offsets is not None
        lengths = offsets.diff(dim=-1)
    ends, steps = lengths.cumsum(-1), torch.arange(data.shape[axis], device=data.device)
    own = (steps.unsqueeze(-1) >= ends.unsqueeze(-2)).sum(-1).clamp(max=max(ends.shape[-1] - 1, 0))
    beyond = (1,) * (data.dim() - own.dim())
    places = own.reshape(own.shape + beyond).expand(data.shape)
    if reduce in ("sum", "mean"):
        if reduce == "mean":
            grad = grad / lengths.clamp(min=1).reshape(lengths.shape + beyond)
        return grad.gather(axis, places)
    hits = ((data == out.gather(axis, places)) | data.isnan()).to(data.dtype)
    shared = torch.zeros_like(out).scatter_add(axis, places, hits).clamp(min=1)
    return hits * (grad / shared).gather(axis, places)


# -- products at equal indices


def _scatter_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Decompose products: torch's derivative of them reads values, and has no second derivative where zeros meet."""
    if reduce != "prod":
        return torch.scatter_reduce(x, dim, index, source, reduce, include_self=include_self)
    if not x.dim():
        found = _scatter_reduce(
            x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self
        )
        return found.reshape(())
    places, order = torch.sort(index, stable=True, dim=dim)
    products, size = source.gather(dim, order), index.shape[dim]
    # after the step of length n, each element is the product of its last 2 n predecessors of the same index
    step = 1
    while step < size:
        later, sooner = (z.narrow(dim, step, size - step) for z in (places, products))
        same = later == places.narrow(dim, 0, size - step)
        joint = torch.where(same, sooner * products.narrow(dim, 0, size - step), sooner)
        products = torch.cat([products.narrow(dim, 0, step), joint], dim)
        step *= 2
    if size:
        ends = places.narrow(dim, 0, size - 1) != places.narrow(dim, 1, size - 1)
        last = torch.cat([ends, torch.ones_like(places.narrow(dim, 0, 1), dtype=torch.bool)], dim)
        products = torch.where(last, products, 0)
    hit = torch.zeros(x.shape, dtype=torch.int64, device=x.device).scatter_add(dim, index, torch.ones_like(index)) > 0
    whole = torch.where(hit, torch.zeros_like(x).scatter_add(dim, places, products), 1)
    return x * whole if include_self else torch.where(hit, whole, x)


def _index_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    if reduce != "prod":
        return torch.index_reduce(x, dim, index, source, reduce, include_self=include_self)
    sizes = [1] * source.dim()
    if sizes:
        sizes[dim] = -1
    places = index.long().reshape(sizes).expand(source.shape)
    return _scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


# -- indices from masks


def _index_put(
    x: torch.Tensor, indices: Sequence[Optional], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Write where a mask holds. The number of indices depends on values, or does not matter."""
    masks = [k for k, index in enumerate(indices) if index is not None and index.dtype in (torch.bool, torch.uint8)]
    others = [index for k, index in enumerate(indices) if index is not None and k not in masks]
    if len(masks) != 1 or others:
        return torch.ops.aten.index_put.default(x, indices, values, accumulate)
    mask = indices[masks[0]]
    assert mask is not None
    mask, before = mask.bool(), masks[0]
    after = x.dim() - before - mask.dim()
    beyond = values.dim() - after
    if beyond > 0 and values.shape[beyond - 1] != 1:
        count = values.shape[beyond - 1]
        places = torch.ops.aten.nonzero_static.default(mask, size=count).unbind(1)
        return torch.ops.aten.index_put.default(x, [None] * before + list(places), values, accumulate)
    if beyond > 0:
        values = values.reshape(values.shape[: beyond - 1] + (1,) * mask.dim() + values.shape[beyond:])
    held = mask.reshape((1,) * before + tuple(mask.shape) + (1,) * after)
    return torch.where(held, x + values if accumulate else values, x)


EQUAL_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "aten.hardsigmoid_backward.default": _hardsigmoid_backward,
    "aten._cdist_backward.default": _cdist_backward,
    "aten._pdist_backward.default": _pdist_backward,
    "aten.multi_margin_loss_backward.default": _multi_margin_loss_backward,
    "aten.multilabel_margin_loss_backward.default": _multilabel_margin_loss_backward,
    "aten._ctc_loss_backward.default": _ctc_loss_backward,
    "aten._embedding_bag_backward.default": _embedding_bag_backward,
    "aten._embedding_bag_per_sample_weights_backward.default": _bag_weights_backward,
    "aten._segment_reduce_backward.default": _segment_reduce_backward,
    "aten.scatter_reduce.two": _scatter_reduce,
    "aten.index_reduce.default": _index_reduce,
    "aten.index_put.default": _index_put,
    "torch_nn._linear_cross_entropy_batch_chunked.default": _cross_entropy_in_chunks,
    "torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default": _cross_entropies_in_chunks,
}
"""By overload, for both directions."""
