"""Images with their channels last in memory, where torch's convolutions on a CPU are faster for them.

torch computes such a convolution by oneDNN, which has the channels last, or in blocks, inside. Of images with the
channels first it copies operands and results; for large ones that takes longer than the convolution. What follows,
element by element or by pooling, keeps the layout, so that a network changes it once. The choice depends on the sizes
alone. Convolutions over one axis are of images of one row: those over one axis have no fast code in torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core.base.mechanisms import CHANNELS_LAST
from gtrace.core.ir.aval import Aval, contiguous_strides
from gtrace.core.ir.graph import Graph, Node
from gtrace.core.ir.views import find_views
from gtrace.core.passes.tuned import LEAST_IMAGE

IMAGES = {
    "aten.convolution.default": (1, (0,)),
    "aten.convolution_backward.default": (2, (0, 1)),
}
"""By overload: the place of the weights among the operands, and those of images."""

_ARGUMENTS = {"aten.convolution.default": (3, 6), "aten.convolution_backward.default": (4, 7)}
"""By overload: the places of strides, paddings and dilations begin here, and whether it is transposed stands there."""

POOLS = {
    "aten.max_pool2d_with_indices.default", "aten.max_pool2d_with_indices_backward.default", "aten.avg_pool2d.default",
    "aten.avg_pool2d_backward.default",
}  # fmt: skip
"""Overloads that keep the layout of their first operand."""

NORMS = {
    "aten._native_batch_norm_legit_functional.default": (0,), "aten._native_batch_norm_legit.no_stats": (0,),
    "aten._native_batch_norm_legit_no_training.default": (0,), "aten.native_batch_norm_backward.default": (1, 0),
    "aten.native_group_norm.default": (0,), "aten.native_group_norm_backward.default": (1, 0),
}  # fmt: skip
"""By overload: the places of its images among the operands. The result has the layout of the first.

torch's kernels are fast where all have the same layout, and either their channels first or last. That of group norms
takes all of its operands for dense, and those of less than four dimensions for contiguous.
"""

ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"
"""An overload whose first result lies in memory as its queries do; its second has the heads inside the lengths."""

PADDING = "aten.constant_pad_nd.default"

KEEPING = ("pad", "concat")
"""Operations of images whose results have the layout that all of their operands have."""

FIRST_OF_LAST = {3: (0, 2, 1), 4: (0, 3, 1, 2)}
"""By number of axes, the order that names the channels of images, or series, first that have them last."""

Strides = tuple[int, ...]


def channels_last(name: str, args: tuple[Any, ...], caller: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
    """Return a call of an overload that takes its images with the channels last, or all in the same layout.

    Args:
        args: its arguments, with places for operands.
        caller: returns a call that takes the operands as they are, for these arguments or others.
    """
    call = caller(args)
    if name in NORMS:
        return _in_one_layout(NORMS[name], call)
    if name == PADDING and 2 <= len(args[1]) <= 6:
        first, *others = (args[1][k : k + 2] for k in range(0, len(args[1]), 2))
        of_images = caller((args[0], (*first, 0, 0, *itertools.chain(*others)), *args[2:]))
        return lambda x: of_images(x.unsqueeze(2)).squeeze(2) if _has_channels_last(x) else call(x)
    if name not in IMAGES:
        return call
    weights, places = IMAGES[name]
    of_rows = caller(_arguments_of_images(name, args)) if _is_of_series(name, args) else None

    def laid_out(*tensors: torch.Tensor) -> Any:
        if of_rows is not None and _is_faster_in_rows(tensors[places[-1]], tensors[weights]):
            given = [x.unsqueeze(2) if x.dim() == 3 else x for x in tensors]
            for k in places:
                given[k] = _with_channels_last(given[k])
            results = of_rows(*given)
            if isinstance(results, torch.Tensor):
                return results.squeeze(2)
            return [x.squeeze(2) if x.dim() == 4 else x for x in results]
        if _is_faster(tensors[places[-1]], tensors[weights]):
            given = list(tensors)
            for k in places:
                given[k] = _with_channels_last(tensors[k])
            return call(*given)
        return call(*tensors)

    return laid_out


def _with_channels_last(x: torch.Tensor) -> torch.Tensor:
    """Return images with their channels last; of a single channel, only strides tell that."""
    CHANNELS_LAST.used()
    x = x.contiguous(memory_format=torch.channels_last)
    return x.as_strided(x.shape, strides_of_images(x.shape)) if x.shape[1] == 1 else x


def _is_of_series(name: str, args: tuple[Any, ...]) -> bool:
    first, transposed = _ARGUMENTS[name]
    return len(args[first]) == 1 and not args[transposed]


def _arguments_of_images(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a convolution of images of one row, for those of one over one axis."""
    first, transposed = _ARGUMENTS[name]
    stride, padding, dilation = args[first : first + 3]
    two = (1, *stride), (0, *padding), (1, *dilation), args[transposed], (0, *args[transposed + 1])
    return (*args[:first], *two, *args[first + 5 :])


def _is_faster_in_rows(series: torch.Tensor | Aval, weights: torch.Tensor | Aval) -> bool:
    """Whether series are images of one row for a convolution: of all channels, or of each by itself."""
    if not _is_float32(series, 3) or weights.shape[1] not in (1, series.shape[1]):
        return False
    batch, channels, length = series.shape
    features = weights.shape[0]
    return _is_large(batch * max(channels, features) * length, features * weights.shape[1] * weights.shape[2])


_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _format(x: torch.Tensor) -> torch.memory_format:
    """Return whether a tensor has its channels last, or in front."""
    last = _LAST.get(x.dim())
    is_last = last is not None and not x.is_contiguous() and x.is_contiguous(memory_format=last)
    return last if is_last else torch.contiguous_format  # type: ignore[return-value]


def _in_one_layout(places: Sequence[int], call: Callable[..., Any]) -> Callable[..., Any]:
    def laid_out(*tensors: torch.Tensor) -> Any:
        x = tensors[places[0]]
        if not isinstance(x.numel(), int):
            return call(*tensors)  # sizes that are open: it is taken apart, whatever its layout
        if x.dim() == 3 and x.stride(1) == 1 and not x.is_contiguous():  # series are images of one row
            results = laid_out(*[one.unsqueeze(2) if k in places else one for k, one in enumerate(tensors)])
            return [one.squeeze(2) if one.dim() == 4 else one for one in results]
        form = _format(x)
        results = call(*[one.contiguous(memory_format=form if k in places else torch.contiguous_format)
                         for k, one in enumerate(tensors)])  # fmt: skip
        if form is not torch.contiguous_format and results[0].shape == x.shape:
            results[0] = results[0].contiguous(memory_format=form)  # what compiled code has in its place may differ
        return results

    return laid_out


def _is_faster(images: torch.Tensor | Aval, weights: torch.Tensor | Aval) -> bool:
    count, least = (x.size if isinstance(x, Aval) else x.numel() for x in (images, weights))
    return _is_float32(images, 4) and _is_large(count, least)


def _is_float32(images: torch.Tensor | Aval, axes: int) -> bool:
    return (
        CHANNELS_LAST.on and len(images.shape) == axes and images.dtype is torch.float32 and images.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
    )  # fmt: skip


def _is_large(images: Any, weights: Any) -> bool:
    """Whether images of so many elements are large beside the weights, which would be copied as well."""
    # sizes that are open are taken for large ones, without an assumption on them
    return not isinstance(images, int) or images >= max(LEAST_IMAGE, weights)


def are_images(avals: Sequence[Aval]) -> bool:
    """Whether two arrays may be images of one shape, so large that one layout saves more than a copy takes."""
    a = avals[0]
    return len(a.shape) == 4 and a.device.type == "cpu" and a.size >= LEAST_IMAGE and avals[1].shape == a.shape


def in_layout_of(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return images with their channels where those of others of their shape are.

    torch's kernels for derivatives take thirty times as long for images of two layouts.
    """
    return x.contiguous(memory_format=_format(other))


def _has_channels_last(x: torch.Tensor) -> bool:
    """Whether series have their channels last."""
    return x.dim() == 3 and not x.is_contiguous() and x.unsqueeze(2).is_contiguous(memory_format=torch.channels_last)


def pad_in_layout(x: torch.Tensor, widths: Sequence[tuple[int, int]], value: float) -> torch.Tensor:
    """Return an array with (before, after) elements more along each axis; images and series keep their layout."""
    if _has_channels_last(x):
        return pad_in_layout(x.unsqueeze(2), (*widths[:2], (0, 0), widths[2]), value).squeeze(2)
    return torch.constant_pad_nd(x, [n for pair in reversed(widths) for n in pair], value)


def join_in_layout(arrays: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
    """Return arrays one behind the other along an axis; images and series keep their layout."""
    if all(map(_has_channels_last, arrays)):
        return torch.cat([x.unsqueeze(2) for x in arrays], dim=axis + (axis == 2)).squeeze(2)
    return torch.cat(arrays, dim=axis)  # type: ignore[arg-type]  # a list or a tuple


def strides_of_images(shape: Sequence[int]) -> Strides:
    """Return the strides of images or series of this shape, (batch, channels, *spatial), with the channels last.

    >>> strides_of_images((2, 3, 4, 5)), strides_of_images((2, 3, 4))
    ((60, 1, 15, 3), (12, 1, 3))
    """
    channels = shape[1]
    batch, *others = contiguous_strides((shape[0], *shape[2:], channels))
    return batch, 1, *others[:-1]


def _strides_of_attention(result: Node, queries: Strides | None) -> Strides:
    """Return the strides of a result of attention, (batch, heads, length, width) or (batch, heads, length).

    Args:
        queries: strides of the queries; None: row by row.
    """
    shape = result.instr.aval.shape
    if result.instr.index:
        _, heads, length = shape
        return heads * length, 1, heads
    order = range(4) if queries is None else sorted(range(4), key=lambda k: -queries[k])
    strides = [1] * 4
    for outer, inner in reversed(list(itertools.pairwise(order))):
        strides[outer] = strides[inner] * shape[inner]
    return tuple(strides)


def predicted_strides(graph: Graph, strides: Sequence[Strides]) -> dict[int, Strides]:
    """Return the strides of the values of a program that are expected to have their channels last, or their heads.

    Args:
        strides: of each input.
    """
    last = {
        value
        for value, a, own in zip(graph.inputs, graph.avals, strides, strict=True)
        if len(a.shape) in FIRST_OF_LAST and tuple(own) == strides_of_images(a.shape)
    }
    images_of: dict[int, int] = {}  # by operation with several results: how many of them have their channels last
    queries = {
        node.out: node.ins[0]
        for node in graph.nodes
        if node.op.name == "aten" and node.attributes["overload"] == ATTENTION
    }
    views = find_views(graph) if queries else {}
    found: dict[int, Strides] = {}
    for node in graph.nodes:
        if node.op.projection:
            if node.instr.index < images_of.get(node.ins[0], 0):  # type: ignore[arg-type]
                last.add(node.out)
            elif node.ins[0] in queries:
                view = views.get(queries[node.ins[0]])  # type: ignore[arg-type, index]  # values
                found[node.out] = _strides_of_attention(node, None if view is None else view.strides)
        elif node.op.name == "permute":
            if node.attributes["axes"] in FIRST_OF_LAST.values() and node.ins[0] not in last:
                last.add(node.out)
        elif not _keeps(node, last):
            continue
        elif isinstance(node.instr.aval, Aval):
            last.add(node.out)
        else:
            images_of[node.out] = len(node.instr.aval.avals) if node.attributes.get("overload") in POOLS else 1
    kinds = graph.value_avals()
    found |= {value: strides_of_images(kinds[value].shape) for value in last}
    return {value: own for value, own in found.items() if own != contiguous_strides(kinds[value].shape)}


def _keeps(node: Node, last: set[int]) -> bool:
    """Whether the result of an operation, or its first one, has its channels last, as those in `last` have."""
    ins = node.instr.ins
    if node.op.name == "aten":
        overload, args = node.attributes["overload"], node.attributes["args"]
        if overload not in IMAGES:
            if overload not in NORMS:
                keeps = overload in POOLS or overload == PADDING
                return keeps and node.ins[0] in last
            # of a gradient, the first result is that of the images only if it is asked for
            return node.ins[NORMS[overload][0]] in last and (len(NORMS[overload]) == 1 or args[-1][0])
        weights, places = IMAGES[overload]
        if not isinstance(node.instr.aval, Aval) and not args[-1][0]:
            return False  # without the gradient of the images
        if len(ins[weights].shape) == 3:
            return _is_of_series(overload, args) and _is_faster_in_rows(ins[places[-1]], ins[weights])
        return _is_faster(ins[places[-1]], ins[weights]) or any(node.ins[k] in last for k in places)
    if not (node.op.elementwise or node.op.name in KEEPING) or len(node.instr.aval.shape) not in FIRST_OF_LAST:
        return False
    if node.op.name in KEEPING:
        return all(x in last for x, a in zip(node.ins, ins, strict=True) if a.shape)
    # torch takes the order of the first operand that has all elements
    whole = [x for x, a in zip(node.ins, ins, strict=True) if a.shape == node.instr.aval.shape]
    return bool(whole) and whole[0] in last
