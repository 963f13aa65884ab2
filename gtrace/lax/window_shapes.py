"""Shapes of results of windows, transposed convolutions, and the patches under a convolution's windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gtrace.core import ops
from gtrace.core.base.errors import ShapeError, message
from gtrace.core.ops.declare import Array, lift
from gtrace.lax.windows import (
    ConvDimensionNumbers,
    Pairs,
    conv_dimension_numbers,
    conv_general_dilated,
    padding_pairs,
)

__all__ = [
    "conv_general_dilated_patches", "conv_general_permutations", "conv_general_shape_tuple", "conv_shape_tuple",
    "conv_transpose", "conv_transpose_shape_tuple", "padtype_to_pads", "reduce_window_shape_tuple",
]  # fmt: skip

_LAYOUTS = {
    2: ("NC", "IO", "NC"),
    3: ("NHC", "HIO", "NHC"),
    4: ("NHWC", "HWIO", "NHWC"),
    5: ("NHWDC", "HWDIO", "NHWDC"),
}

Shape = Sequence[int]


def padtype_to_pads(
    in_shape: Shape, window_shape: Shape, window_strides: Shape, padding: str | Pairs
) -> list[tuple[int, int]]:
    """Return the padding before and after each axis for "SAME", "SAME_LOWER" or "VALID".

    >>> gt.lax.padtype_to_pads((5, 6), (3, 2), (1, 2), "SAME")
    [(1, 1), (0, 0)]
    """
    return padding_pairs("padtype_to_pads", padding, in_shape, window_shape, window_strides)


def _counts(sizes: Shape, windows: Shape, strides: Shape) -> tuple[int, ...]:
    return tuple(max((n - w) // s + 1, 0) for n, w, s in zip(sizes, windows, strides, strict=True))


def reduce_window_shape_tuple(
    operand_shape: Shape,
    window_dimensions: Shape,
    window_strides: Shape,
    padding: str | Pairs,
    base_dilation: Shape | None = None,
    window_dilation: Shape | None = None,
) -> tuple[int, ...]:
    """Return the shape of the result of `reduce_window`.

    >>> gt.lax.reduce_window_shape_tuple((6, 6), (2, 3), (2, 1), [(0, 0), (1, 1)])
    (3, 6)
    """
    ones = (1,) * len(operand_shape)
    sizes = [(n - 1) * d + 1 for n, d in zip(operand_shape, base_dilation or ones, strict=True)]
    windows = [(n - 1) * d + 1 for n, d in zip(window_dimensions, window_dilation or ones, strict=True)]
    around = padding_pairs("reduce_window", padding, sizes, windows, window_strides)
    return _counts([n + low + high for n, (low, high) in zip(sizes, around, strict=True)], windows, window_strides)


def conv_shape_tuple(
    lhs_shape: Shape, rhs_shape: Shape, strides: Shape, pads: str | Pairs, batch_group_count: int = 1
) -> tuple[int, ...]:
    """Return the shape of a convolution of (batch, features, *spatial) with (features out, features in, *spatial).

    >>> gt.lax.conv_shape_tuple((2, 3, 8, 8), (4, 3, 3, 3), (1, 2), "SAME")
    (2, 4, 8, 4)
    """
    spatial = reduce_window_shape_tuple(lhs_shape[2:], rhs_shape[2:], strides, pads)
    return (lhs_shape[0] // batch_group_count, rhs_shape[0], *spatial)


def conv_general_permutations(dimension_numbers: Sequence[str]) -> tuple[Shape, Shape, Shape]:
    """Return the permutations of three layouts such as ``("NHWC", "HWIO", "NHWC")`` to NCHW, OIHW and NCHW.

    >>> gt.lax.conv_general_permutations(("NHWC", "HWIO", "NHWC"))
    ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    """
    numbers = conv_dimension_numbers((1,) * len(dimension_numbers[0]), None, tuple(dimension_numbers))
    return numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec


def _arranged(shape: Shape, spec: Shape) -> list[int]:
    return [shape[k] for k in spec]


def _back(shape: Shape, spec: Shape) -> tuple[int, ...]:
    out = [0] * len(shape)
    for n, k in zip(shape, spec, strict=True):
        out[k] = n
    return tuple(out)


def conv_general_shape_tuple(
    lhs_shape: Shape, rhs_shape: Shape, window_strides: Shape, padding: str | Pairs, dimension_numbers: Any
) -> tuple[int, ...]:
    """Return the shape of the result of `conv_general_dilated`, without dilation.

    >>> gt.lax.conv_general_shape_tuple((2, 8, 8, 3), (3, 3, 3, 4), (2, 2), "VALID", ("NHWC", "HWIO", "NHWC"))
    (2, 3, 3, 4)
    """
    lhs, rhs, out = conv_dimension_numbers(lhs_shape, rhs_shape, dimension_numbers)
    shape = conv_shape_tuple(_arranged(lhs_shape, lhs), _arranged(rhs_shape, rhs), window_strides, padding)
    return _back(shape, out)


def _around_transposed(window: int, stride: int, padding: str) -> tuple[int, int]:
    """Return the padding of an axis for which the result is the gradient of a convolution with `padding`."""
    if padding == "SAME":
        whole = window + stride - 2
        before = window - 1 if stride > window - 1 else -(-whole // 2)
    else:
        whole = window + stride - 2 + max(window - stride, 0)
        before = window - 1
    return before, whole - before


def _transposed_pads(strides: Shape, padding: str | Pairs, windows: Shape, of_forward: bool = False) -> Pairs:
    """Return the padding of the operand with zeros between its elements.

    Args:
        of_forward: pairs are those of the convolution whose gradient the result is.
    """
    if isinstance(padding, str):
        padding = padding.upper()
        if padding not in ("SAME", "VALID"):
            raise ShapeError(message("conv_transpose", "SAME, VALID or pairs", repr(padding), "Pass one of them."))
        return [_around_transposed(n, s, padding) for n, s in zip(windows, strides, strict=True)]
    return (
        [(n - 1 - low, n - 1 - high) for n, (low, high) in zip(windows, padding, strict=True)]
        if of_forward
        else padding
    )


def conv_transpose_shape_tuple(
    lhs_shape: Shape, rhs_shape: Shape, window_strides: Shape, padding: str | Pairs, dimension_numbers: Any
) -> tuple[int, ...]:
    """Return the shape of the result of `conv_transpose`.

    >>> gt.lax.conv_transpose_shape_tuple((2, 4, 4, 3), (3, 3, 3, 5), (2, 2), "SAME", ("NHWC", "HWIO", "NHWC"))
    (2, 8, 8, 5)
    """
    lhs, rhs, out = conv_dimension_numbers(lhs_shape, rhs_shape, dimension_numbers)
    x, w = _arranged(lhs_shape, lhs), _arranged(rhs_shape, rhs)
    sizes = [(n - 1) * s + 1 for n, s in zip(x[2:], window_strides, strict=True)]
    around = _transposed_pads(window_strides, padding, w[2:])
    padded = [n + low + high for n, (low, high) in zip(sizes, around, strict=True)]
    return _back((x[0], w[0], *_counts(padded, w[2:], (1,) * len(padded))), out)


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Shape,
    padding: str | Pairs,
    rhs_dilation: Shape | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
) -> Array:
    """Return a convolution with fractional strides, as in the gradient of a convolution.

    Args:
        strides: the distance between elements of `lhs` after zeros are inserted, one per spatial axis.
        padding: "SAME", "VALID", or pairs for the operand with zeros.
        dimension_numbers: see `conv_dimension_numbers`; by default channels are last, and the kernel is HWIO.
        transpose_kernel: flip the kernel and exchange its features, for the exact gradient.
        precision: ignored.
        use_consistent_padding: pairs are the padding of the convolution whose gradient this is, as in torch.

    Raises:
        ShapeError, ArgumentError: operands or descriptions do not fit.

    >>> gt.lax.conv_transpose(gt.ones((1, 4, 4, 3)), gt.ones((2, 2, 3, 5)), (2, 2), "SAME").shape
    (1, 8, 8, 5)
    """
    x, w = lift("conv_transpose", lhs), lift("conv_transpose", rhs)
    layout = _LAYOUTS.get(x.ndim) if dimension_numbers is None else dimension_numbers
    numbers = conv_dimension_numbers(x.shape, w.shape, layout)
    gaps = rhs_dilation or (1,) * (x.ndim - 2)
    windows = [(w.shape[k] - 1) * d + 1 for k, d in zip(numbers.rhs_spec[2:], gaps, strict=True)]
    if transpose_kernel:
        w = ops.flip(w, numbers.rhs_spec[2:])
        first, second = numbers.rhs_spec[:2]
        numbers = numbers._replace(rhs_spec=(second, first, *numbers.rhs_spec[2:]))
    return conv_general_dilated(
        x, w, (1,) * (x.ndim - 2), _transposed_pads(strides, padding, windows, use_consistent_padding), strides, gaps,
        numbers, preferred_element_type=preferred_element_type,
    )  # fmt: skip


def conv_general_dilated_patches(
    lhs: Any,
    filter_shape: Shape,
    window_strides: Shape,
    padding: str | Pairs,
    lhs_dilation: Shape | None = None,
    rhs_dilation: Shape | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Return the patches under a convolution's windows as features, grouped by channel.

    Args: those of `conv_general_dilated`; `filter_shape` is the window's.

    >>> gt.lax.conv_general_dilated_patches(gt.ones((1, 3, 8, 8)), (2, 2), (2, 2), "VALID").shape
    (1, 12, 4, 4)
    """
    x = lift("conv_general_dilated_patches", lhs)
    window = tuple(filter_shape)
    numbers = conv_dimension_numbers(x.shape, (1, 1, *window), dimension_numbers)
    channels, count = x.shape[numbers.lhs_spec[1]], math.prod(window)
    picked = ops.reshape(ops.eye(count, dtype=x.aval.dtype, device=x.aval.device), (count, 1, *window))
    kernel = ops.tile(picked, (channels, *(1,) * (x.ndim - 1)))
    plain = ConvDimensionNumbers(numbers.lhs_spec, tuple(range(x.ndim)), numbers.out_spec)
    return conv_general_dilated(
        x, kernel, window_strides, padding, lhs_dilation, rhs_dilation, plain, channels,
        preferred_element_type=preferred_element_type,
    )  # fmt: skip
