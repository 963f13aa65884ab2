"""Faults of Inductor's lowerings and of its C++ for CPUs, mended while a program is compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gtrace.core.backends.inductor.exactness import HELD
from gtrace.core.base import torch_internals as internals
from gtrace.core.base.mechanisms import CEIL_MODE_POOLING, EXTREME_PLACES, REDUCTION_TILING, SHORT_FLOATS

_aten = torch.ops.aten

_OVERHANGING = (_aten.avg_pool2d_backward.default, _aten.avg_pool3d_backward.default)
"""Gradients of average pooling. Inductor divides windows that overhang by their full size (pytorch/pytorch#198119)."""


_SORTS = (_aten.sort.default, _aten.sort.stable)


@contextlib.contextmanager
def mended() -> Iterator[None]:
    """Let Inductor call torch where its own lowering is wrong, and its C++ round, and write within its memory."""
    lowerings, kernel = internals.WRONG_LOWERINGS.get(), internals.WRONG_KERNEL.get()
    tiling, reduction = internals.TILING_SELECT.get(), internals.WRONG_REDUCTION.get()
    before = {op: lowerings[op] for op in (*_OVERHANGING, *_SORTS)}
    cached, chosen = internals.CACHE_DTYPE.get(), internals.SELECT_TILING.get()
    made = vars(reduction)["create"]
    lowerings[HELD] = _held
    if CEIL_MODE_POOLING.on:
        lowerings |= {op: _pooling(op, before[op]) for op in _OVERHANGING}
    lowerings |= {op: _sorting(op, before[op]) for op in _SORTS}
    if SHORT_FLOATS.on:
        # what was rounded to 16 bits and stored is not what is converted back (#181568)
        kernel.cache_dtype_convert = _nothing
    if REDUCTION_TILING.on:
        tiling.select_tiling = _along_one_axis(chosen)
    if EXTREME_PLACES.on:
        reduction.create = classmethod(_with_places(made.__func__))
    try:
        yield
    finally:
        lowerings |= before
        del lowerings[HELD]
        kernel.cache_dtype_convert, tiling.select_tiling, reduction.create = cached, chosen, made


def _nothing(self: Any, *_: Any) -> None:
    pass


def _held(x: Any) -> Any:
    x.realize()
    return x


def _pooling(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a lowering that calls torch's kernel as a whole for windows that may overhang."""

    def pooled(*args: Any, **kwargs: Any) -> Any:
        if args[5] if len(args) > 5 else kwargs["ceil_mode"]:
            CEIL_MODE_POOLING.used()
            return internals.FALLBACK.get()(op, add_to_fallback_set=False)(*args, **kwargs)
        return function(*args, **kwargs)

    return pooled


def _sorting(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a lowering that calls torch's kernel on a GPU, because Triton compiles its own for long.

    Measured: 19 s for one of three configurations, rows of 70 elements, Triton 3.6, on a busy Intel processor.
    """

    def sorted_(x: Any, *args: Any, **kwargs: Any) -> Any:
        if x.get_device().type == "cuda":
            return internals.FALLBACK.get()(op, add_to_fallback_set=False)(x, *args, **kwargs)
        return function(x, *args, **kwargs)

    return sorted_


def _along_one_axis(choose: Callable[..., Any]) -> Callable[..., Any]:
    """Return a choice of the axes of vectors that takes one for reductions.

    In the tail of a reduction that is tiled along two axes, Inductor stores a whole vector, beyond the end of its
    memory (pytorch/pytorch#196681).
    """

    def select(self: Any, functions: Any, sizes: Any) -> Any:
        factors, axes, *rest = choose(self, functions, sizes)
        if len(axes) == 2 and any(reduced for _, reduced in sizes):
            factors, axes = factors[:1], axes[1:]
            REDUCTION_TILING.used()
        return (factors, axes, *rest)

    return select


def _with_places(create: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `create` of reductions that counts the places of extremes in the order of the reduced axes.

    Inductor counts in the order of its loops, which follow the memory that they read. It corrects that only for an
    operand that is a transposed array. In max pooling, and where an expression is reduced, places are wrong, even
    negative. Gradients are then written to other memory (pytorch/pytorch#197434).
    """

    def reduction(
        cls: Any, device: Any, dst_dtype: Any, src_dtype: Any, inner_fn: Callable[..., Any], ranges: Any,
        reduction_ranges: Any, reduction_type: str, *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        def with_place(index: Any, place: Any) -> Any:
            value = inner_fn(index, place)
            if isinstance(value, tuple) or all(getattr(k, "is_number", True) for k in place):
                return value  # Inductor, which writes out short reductions, counts these itself
            linear: Any = 0
            for k, size in zip(place, reduction_ranges, strict=True):
                linear = linear * size + k
            return value, internals.OPS.get().index_expr(linear, torch.int64)

        several = reduction_type in ("argmax", "argmin") and len(reduction_ranges) > 1 and device.type == "cpu"
        if several:
            EXTREME_PLACES.used()
        function = with_place if several else inner_fn
        return create(
            cls, device, dst_dtype, src_dtype, function, ranges, reduction_ranges, reduction_type, *args, **kwargs
        )

    return reduction
