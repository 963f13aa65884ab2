"""Gradients of pooling in compiled code, for images with the channels last.

Inductor finds the place of each maximum again, with its rules for NaN written out in masks, and scatters an element at
a time. Windows that do not overlap are a loop over the channels, in C++ of our own (`native/pooling.h`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gtrace.core.backends.inductor.operators import C_TYPES, NATIVE, POINTER, OwnOperator, code, define, empty
from gtrace.core.backends.inductor.tuned import LEAST_POOLED_CHANNELS, MAX_WINDOW
from gtrace.core.base.mechanisms import POOLING_KERNEL

_SOURCE = (NATIVE / "pooling.h").read_text()

GRADIENT = torch.ops.aten.max_pool2d_with_indices_backward.default


@functools.cache
def max_pool_gradient(dtype: torch.dtype, window: tuple[int, int]) -> OwnOperator:
    """Return the operator for windows of this size, of x[n, c, h, w] and the gradient g[n, c, h // a, w // b]."""
    own = C_TYPES[dtype]
    name = f"max_pool_gradient_{own}_{window[0]}_{window[1]}"
    body = (
        "  int64_t* size;\n  if (aoti_torch_get_sizes(x, &size)) return AOTI_TORCH_FAILURE;\n"
        + empty("out", dtype, [f"size[{k}]" for k in range(4)],
                ["size[1] * size[2] * size[3]", 1, "size[1] * size[3]", "size[1]"])
        + "".join(POINTER.format(name=n, tensor=t) for n, t in (("x", "x"), ("g", "g"), ("out", "*out")))
        + f"  gtrace_{name}::max_pool_gradient<{own}, {window[0]}, {window[1]}>(static_cast<{own}*>(x_data),"
        f" static_cast<{own}*>(g_data), static_cast<{own}*>(out_data), size[0], size[2], size[3], size[1]);\n"
    )  # fmt: skip
    op = define(name, "(Tensor x, Tensor g) -> Tensor", lambda x, g: torch.empty_like(x))
    return OwnOperator(op, code(name, _SOURCE, "AtenTensorHandle x, AtenTensorHandle g, AtenTensorHandle* out", body))


def pooling(table: Mapping[Any, Callable[..., Any]], shims: dict[Any, list[str]]) -> dict[Any, Callable[..., Any]]:
    """Return decompositions by which gradients of pooling become operators of our own, where these are faster.

    Args:
        table: decompositions for the rest.
        shims: the C++ of operators, to which that of the operators used is added.
    """
    otherwise = table.get(GRADIENT, _by_inductor)  # torch 2.11 and 2.12 have no decomposition, but a lowering

    def gradient(
        g: torch.Tensor, x: torch.Tensor, window: Sequence[int], strides: Sequence[int], padding: Sequence[int],
        dilation: Sequence[int], ceil_mode: bool, indices: torch.Tensor,
    ) -> Any:  # fmt: skip
        sizes = tuple(window) * (3 - len(window))
        apart = POOLING_KERNEL.on and (not strides or tuple(strides) * (3 - len(strides)) == sizes)
        if not (apart and not any(padding) and set(dilation) == {1} and not ceil_mode and _suits(x, g, sizes)):
            return otherwise(g, x, window, strides, padding, dilation, ceil_mode, indices)
        POOLING_KERNEL.used()
        made = max_pool_gradient(x.dtype, sizes)
        shims[made.op] = [made.code]
        return made.op(x, g.contiguous(memory_format=torch.channels_last))

    return {**table, GRADIENT: gradient}


def _by_inductor(*_: Any) -> Any:
    return NotImplemented


def _suits(x: torch.Tensor, g: torch.Tensor, window: tuple[int, ...]) -> bool:
    return (
        x.dim() == 4 and x.dtype in C_TYPES and x.device.type == "cpu" and all(type(n) is int for n in x.shape)
        and x.shape[1] >= LEAST_POOLED_CHANNELS and x.is_contiguous(memory_format=torch.channels_last)
        and window[0] * window[1] <= MAX_WINDOW and g.numel() > 0
    )  # fmt: skip
