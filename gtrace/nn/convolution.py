"""Convolutions, pooling and resampling, with torch's layout: batch, channels, then one to three spatial axes.

The functions and their derivatives are those of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F  # noqa: N812 - as everywhere

from gtrace.extend import (
    Array,
    ShapeError,
    avg_pool,
    call_torch,
    cast,
    convolution,
    max_pool,
    message,
    promote_arrays,
    unshortened,
    with_example,
)

__all__ = [
    "conv", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "max_pool1d",
    "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "lp_pool1d", "lp_pool2d",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "interpolate", "grid_sample", "affine_grid", "pixel_shuffle", "pixel_unshuffle", "unfold",
    "fold",
]  # fmt: skip

Sizes = int | Sequence[int]


_EXAMPLES = """
>>> gt.nn.conv1d(gt.array([[[1., 2., 4.]]]), gt.array([[[1., -1.]]]))
Array([[[-1., -2.]]], dtype=float32)
>>> gt.nn.conv2d(gt.ones((1, 1, 3, 3)), gt.ones((1, 1, 2, 3)))
Array([[[[6.],
         [6.]]]], dtype=float32)
>>> gt.nn.conv3d(gt.ones((1, 1, 2, 2, 2)), gt.ones((1, 1, 2, 2, 1)))
Array([[[[[4., 4.]]]]], dtype=float32)
>>> gt.nn.conv_transpose1d(gt.array([[[1., 2.]]]), gt.array([[[1., 10.]]]))
Array([[[ 1., 12., 20.]]], dtype=float32)
>>> gt.nn.conv_transpose2d(gt.ones((1, 1, 1, 2)), gt.ones((1, 1, 2, 2)))
Array([[[[1., 2., 1.],
         [1., 2., 1.]]]], dtype=float32)
>>> gt.nn.conv_transpose3d(gt.ones((1, 1, 1, 1, 2)), gt.ones((1, 1, 1, 1, 2)))
Array([[[[[1., 2., 1.]]]]], dtype=float32)
>>> gt.nn.max_pool1d(gt.array([[[1., 5., 2., 3.]]]), 2)
Array([[[5., 3.]]], dtype=float32)
>>> gt.nn.max_pool2d(gt.arange(16.).reshape(1, 1, 4, 4), 2)
Array([[[[ 5.,  7.],
         [13., 15.]]]], dtype=float32)
>>> gt.nn.max_pool3d(gt.arange(8.).reshape(1, 1, 2, 2, 2), (2, 2, 1))
Array([[[[[6., 7.]]]]], dtype=float32)
>>> gt.nn.avg_pool1d(gt.array([[[1., 5., 2., 3.]]]), 2)
Array([[[3. , 2.5]]], dtype=float32)
>>> gt.nn.avg_pool2d(gt.arange(16.).reshape(1, 1, 4, 4), 2)
Array([[[[ 2.5,  4.5],
         [10.5, 12.5]]]], dtype=float32)
>>> gt.nn.avg_pool3d(gt.arange(8.).reshape(1, 1, 2, 2, 2), (2, 2, 1))
Array([[[[[3., 4.]]]]], dtype=float32)
>>> gt.nn.lp_pool1d(gt.array([[[3., 4., 6., 8.]]]), 2, 2)
Array([[[ 5., 10.]]], dtype=float32)
>>> gt.nn.lp_pool2d(gt.array([[[[1., 1.], [1., 1.]]]]), 2, 2)
Array([[[[2.]]]], dtype=float32)
>>> gt.nn.adaptive_avg_pool1d(gt.array([[[1., 5., 2., 3.]]]), 2)
Array([[[3. , 2.5]]], dtype=float32)
>>> gt.nn.adaptive_avg_pool2d(gt.arange(16.).reshape(1, 1, 4, 4), (1, 2))
Array([[[[6.5, 8.5]]]], dtype=float32)
>>> gt.nn.adaptive_avg_pool3d(gt.arange(8.).reshape(1, 1, 2, 2, 2), (1, 1, 2))
Array([[[[[3., 4.]]]]], dtype=float32)
>>> gt.nn.adaptive_max_pool1d(gt.array([[[1., 5., 2., 3.]]]), 2)
Array([[[5., 3.]]], dtype=float32)
>>> gt.nn.adaptive_max_pool2d(gt.arange(16.).reshape(1, 1, 4, 4), (1, 2))
Array([[[[13., 15.]]]], dtype=float32)
>>> gt.nn.adaptive_max_pool3d(gt.arange(8.).reshape(1, 1, 2, 2, 2), 1)
Array([[[[[7.]]]]], dtype=float32)
"""
"""Examples of the functions for one, two and three spatial axes."""


def _sizes(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _arrays(name: str, *operands: Any) -> list[Array | None]:
    """Return floating operands in one dtype; None is unchanged."""
    given = promote_arrays(name, *[x for x in operands if x is not None], floating=True)
    rest = iter(given)
    return [None if x is None else next(rest) for x in operands]


# -- convolution

_CONV: dict[int, Callable[..., Any]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Callable[..., Any]] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def conv(
    x: Any, weight: Any, bias: Any = None, *, stride: Sizes = 1, padding: Sizes | str = 0, dilation: Sizes = 1,
    groups: int = 1,
) -> Array:  # fmt: skip
    """Return the cross-correlation of x with `weight` over its one, two or three spatial axes.

    Args:
        x: (batch, channels, *spatial), or without the batch.
        weight: (features, channels // groups, *window).
        bias: (features,).
        padding: zeros on both sides of each spatial axis, "valid" (none) or "same" (the size stays).

    Returns:
        (batch, features, *spatial).

    Raises:
        ShapeError: the weight does not have one to three spatial axes.
        ArgumentError: shapes do not fit.

    >>> gt.nn.conv(gt.ones((1, 1, 4)), gt.ones((1, 1, 3)), padding="same")
    Array([[[2., 3., 3., 2.]]], dtype=float32)
    """
    x, weight, bias = _arrays("conv", x, weight, bias)
    axes = weight.ndim - 2
    if axes not in _CONV:
        fix = "The weight is (features, channels, *window)."
        raise ShapeError(message("conv", "a weight with one to three spatial axes", repr(weight.aval), fix))
    found = convolution(x, weight, bias, stride, padding, dilation, groups)
    if found is not None:
        return found
    return call_torch(
        f"conv{axes}d", _CONV[axes], x, weight, bias, _sizes(stride), _sizes(padding), _sizes(dilation), groups
    )


def _convolution(axes: int) -> Callable[..., Array]:
    def convolve(
        x: Any, weight: Any, bias: Any = None, stride: Sizes = 1, padding: Sizes | str = 0, dilation: Sizes = 1,
        groups: int = 1,
    ) -> Array:  # fmt: skip
        x, weight, bias = _arrays(f"conv{axes}d", x, weight, bias)
        if weight.ndim != axes + 2:
            got = repr(weight.aval)
            raise ShapeError(message(f"conv{axes}d", f"a weight with {axes} spatial axes", got, "See gt.nn.conv."))
        return conv(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)

    return _named(convolve, f"conv{axes}d", f"Return `conv` over {axes} spatial {'axis' if axes == 1 else 'axes'}.")


def _transposed(axes: int) -> Callable[..., Array]:
    name = f"conv_transpose{axes}d"

    def convolve(
        x: Any, weight: Any, bias: Any = None, stride: Sizes = 1, padding: Sizes = 0, output_padding: Sizes = 0,
        groups: int = 1, dilation: Sizes = 1,
    ) -> Array:  # fmt: skip
        x, weight, bias = _arrays(name, x, weight, bias)
        found = None
        if weight.ndim == axes + 2:
            found = convolution(x, weight, bias, stride, padding, dilation, groups, output_padding)
        if found is not None:
            return found
        return call_torch(
            name, _TRANSPOSED[axes], x, weight, bias, _sizes(stride), _sizes(padding), _sizes(output_padding), groups,
            _sizes(dilation),
        )  # fmt: skip

    doc = f"Return the transpose of `conv{axes}d` as a linear map of x; the weight is (channels, features, *window)."
    return _named(convolve, name, doc)


def _named(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = with_example(doc, name, _EXAMPLES)
    return function


conv1d, conv2d, conv3d = map(_convolution, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_transposed, (1, 2, 3))


# -- pooling


_WINDOW = """
    Args:
        x: (batch, channels, *spatial), or without the batch.
        kernel_size: the sizes of a window, one for all axes or one for each, as all that follow.
        stride: the distance of windows; None: their size.
"""
_PADDING = "        padding: how much is added on both sides of each axis, at most half a window: {}\n"
_CEIL = "        ceil_mode: let a last window go beyond the end.\n"
_REFUSED = """
    Raises:
        ArgumentError: sizes that do not fit.
    """


def _max_pool(axes: int) -> Callable[..., Array]:
    name, function = f"max_pool{axes}d", getattr(F, f"max_pool{axes}d")

    def pool(
        x: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> Array:  # fmt: skip
        x = _arrays(name, x)[0]
        found = max_pool(x, kernel_size, stride, padding, dilation, ceil_mode) if axes == 2 else None
        if found is not None:
            return found
        sizes = map(_sizes, (kernel_size, stride, padding, dilation))
        return call_torch(name, function, x, *sizes, ceil_mode)

    doc = f"Return the largest element of each window.\n{_WINDOW}{_PADDING.format('-inf.')}"
    return _named(pool, name, f"{doc}        dilation: the distance of the elements of a window.\n{_CEIL}{_REFUSED}")


def _avg_pool(axes: int) -> Callable[..., Array]:
    name, function = f"avg_pool{axes}d", getattr(F, f"avg_pool{axes}d")

    def pool(
        x: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Array:  # fmt: skip
        x = _arrays(name, x)[0]
        whole = ceil_mode, count_include_pad, divisor_override
        found = avg_pool(x, kernel_size, stride, padding, *whole) if axes == 2 else None
        if found is not None:
            return found
        return call_torch(name, function, x, *map(_sizes, (kernel_size, stride, padding)), *whole)

    def pool_rows(
        x: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Array:  # fmt: skip
        sizes = map(_sizes, (kernel_size, stride, padding))
        return call_torch(name, function, _arrays(name, x)[0], *sizes, ceil_mode, count_include_pad)

    doc = f"Return the mean of each window.\n{_WINDOW}{_PADDING.format('zeros.')}{_CEIL}"
    doc += "        count_include_pad: whether what is added counts for the mean.\n"
    if axes > 1:
        doc += "        divisor_override: divide by it, not by the number of elements.\n"
    return _named(pool if axes > 1 else pool_rows, name, doc + _REFUSED)


def _lp_pool(axes: int) -> Callable[..., Array]:
    name, function = f"lp_pool{axes}d", getattr(F, f"lp_pool{axes}d")

    def pool(
        x: Any, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
    ) -> Array:
        x = _arrays(name, x)[0]
        wide = unshortened(x)  # a window's sum may exceed 16 bits
        out = call_torch(name, function, wide, norm_type, _sizes(kernel_size), _sizes(stride), ceil_mode)
        return out if wide is x else cast(out, x.aval.dtype)

    doc = f"Return (sum x ** p) ** (1 / p) of each window, for p = `norm_type`.\n{_WINDOW}{_CEIL}{_REFUSED}"
    return _named(pool, name, doc)


def _adaptive_pool(kind: str, axes: int) -> Callable[..., Array]:
    name = f"adaptive_{kind}_pool{axes}d"
    function = getattr(F, name)

    def pool(x: Any, output_size: Any) -> Array:
        return call_torch(name, function, _arrays(name, x)[0], _sizes(output_size))

    what = "means" if kind == "avg" else "maxima"
    doc = f"""Return {what} over windows of about one size, as many as `output_size` says.

    Args:
        x: (batch, channels, *spatial), or without the batch.
        output_size: of the spatial axes of the result, one for all or one for each; None: the size of x.
{_REFUSED}"""
    return _named(pool, name, doc)


max_pool1d, max_pool2d, max_pool3d = map(_max_pool, (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = map(_avg_pool, (1, 2, 3))
lp_pool1d, lp_pool2d = map(_lp_pool, (1, 2))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_adaptive_pool("avg", k) for k in (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_adaptive_pool("max", k) for k in (1, 2, 3))


# -- resampling


def interpolate(
    x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    antialias: bool = False,
) -> Array:  # fmt: skip
    """Return x (batch, channels, *spatial) resampled to `size`, or to its size times `scale_factor`.

    Args:
        mode: nearest, nearest-exact, linear, bilinear, bicubic, trilinear or area.

    >>> gt.nn.interpolate(gt.array([[[1., 2.]]]), size=4)
    Array([[[1., 1., 2., 2.]]], dtype=float32)
    """
    x = _arrays("interpolate", x)[0]
    return call_torch(
        "interpolate", F.interpolate, x, _sizes(size), _sizes(scale_factor), mode, align_corners, antialias=antialias
    )


def grid_sample(
    x: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
) -> Array:
    """Sample x (batch, channels, height, width) at the coordinates `grid` (batch, h, w, 2), which are in [-1, 1].

    >>> gt.nn.grid_sample(gt.ones((1, 1, 2, 2)), gt.zeros((1, 1, 1, 2)))
    Array([[[[1.]]]], dtype=float32)
    """
    x, grid = _arrays("grid_sample", x, grid)
    return call_torch("grid_sample", F.grid_sample, x, grid, mode, padding_mode, align_corners)


def affine_grid(theta: Any, size: Sequence[int], align_corners: bool = False) -> Array:
    """Return the grid for `grid_sample` for affine maps (batch, 2, 3) and results of `size`.

    >>> gt.nn.affine_grid(gt.array([[[1., 0., 0.], [0., 1., 0.]]]), (1, 1, 1, 1))
    Array([[[[0., 0.]]]], dtype=float32)
    """
    return call_torch("affine_grid", F.affine_grid, _arrays("affine_grid", theta)[0], list(size), align_corners)


def pixel_shuffle(x: Any, upscale_factor: int) -> Array:
    """Return (..., channels * r ** 2, h, w) as (..., channels, h * r, w * r), for r = `upscale_factor`.

    >>> gt.nn.pixel_shuffle(gt.ones((1, 4, 2, 2)), 2).shape
    (1, 1, 4, 4)
    """
    return call_torch("pixel_shuffle", F.pixel_shuffle, _arrays("pixel_shuffle", x)[0], upscale_factor)


def pixel_unshuffle(x: Any, downscale_factor: int) -> Array:
    """Return the inverse of `pixel_shuffle`.

    >>> gt.nn.pixel_unshuffle(gt.ones((1, 1, 4, 4)), 2).shape
    (1, 4, 2, 2)
    """
    return call_torch("pixel_unshuffle", F.pixel_unshuffle, _arrays("pixel_unshuffle", x)[0], downscale_factor)


def unfold(x: Any, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Array:
    """Return the windows of x (batch, channels, h, w) as columns: (batch, channels * window, windows).

    >>> gt.nn.unfold(gt.ones((1, 1, 3, 3)), 2).shape
    (1, 4, 4)
    """
    rest = map(_sizes, (kernel_size, dilation, padding, stride))
    return call_torch("unfold", F.unfold, _arrays("unfold", x)[0], *rest)


def fold(
    x: Any, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Array:
    """Return the transpose of `unfold`: columns are added where their windows overlap.

    >>> gt.nn.fold(gt.ones((1, 4, 4)), 3, 2)[0, 0, 1]
    Array([2., 4., 2.], dtype=float32)
    """
    rest = map(_sizes, (output_size, kernel_size, dilation, padding, stride))
    return call_torch("fold", F.fold, _arrays("fold", x)[0], *rest)
