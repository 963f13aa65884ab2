"""Sums of 16-bit floats: they are added as float32, and rounded once.

Some of torch's kernels round after each addition. A sum stops growing where its terms are less than half of its last
digit: 4,000 terms of 0.1 make 32 in bfloat16, and 256 in float16. `docs/accuracy.md` says what is added in which dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gtrace.core.base.rounding import is_inexact

SHORT = frozenset({torch.float16, torch.bfloat16})

_OF_PLACES = (
    "index_add.default", "scatter_add.default", "scatter.reduce", "scatter.value_reduce", "scatter_reduce.two",
    "index_reduce.default", "put.default", "embedding_dense_backward.default", "segment_reduce.default",
    "unfold_backward.default", "_embedding_bag_backward.default", "_embedding_bag_dense_backward.default",
)  # fmt: skip

_OF_WINDOWS = (
    "grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default", "col2im.default",
    "reflection_pad1d_backward.default", "reflection_pad2d_backward.default", "reflection_pad3d_backward.default",
    "replication_pad1d_backward.default", "replication_pad2d_backward.default", "replication_pad3d_backward.default",
    "_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default",
    "avg_pool2d_backward.default", "avg_pool3d_backward.default",
    "max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default",
)  # fmt: skip

SUMS = frozenset(f"aten.{name}" for name in (*_OF_PLACES, *_OF_WINDOWS, "native_layer_norm_backward.default"))
"""Overloads of torch that add up several values at one place, in kernels that may round after each addition."""

INDEX_PUT = "aten.index_put.default"
"""The overload that adds only if it is told to accumulate."""


def rounded_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors that converts 16-bit floats, and rounds its floats to their dtype once.

    >>> rounded_once(torch.add)(torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.float16)).dtype
    torch.float16
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = short_dtype(args, kwargs)
        if dtype is None:
            return function(*args, **kwargs)
        found = function(*[_wide(x) for x in args], **{k: _wide(x) for k, x in kwargs.items()})
        if isinstance(found, torch.Tensor):
            return _short(found, dtype)
        return type(found)([_short(x, dtype) for x in found])

    return call


def short_dtype(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """Return the 16-bit dtype of all floating tensors; None if they have another one, or several."""
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and is_inexact(x.dtype)]
    dtypes = {x.dtype for x in given}
    return next(iter(dtypes)) if len(dtypes) == 1 and dtypes <= SHORT else None


def _wide(x: Any) -> Any:
    return x.to(torch.float32) if isinstance(x, torch.Tensor) and x.dtype in SHORT else x


def _short(x: Any, dtype: torch.dtype) -> Any:
    return x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype is torch.float32 else x
