"""Convolutions and reductions over windows, with JAX's description of layouts and padding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.declare import Array, lift
from gtrace.core.ops.index import getitem
from gtrace.core.ops.operands import cast, promote_arrays
from gtrace.core.ops.saturation import INTEGERS
from gtrace.core.trace.promotion import as_dtype, promote_dtypes
from gtrace.core.trace.replayable import replayable
from gtrace.lax.shapes import pad
from gtrace.nn import convolution
from gtrace.nn.convolution import avg_pool2d, max_pool2d

__all__ = [
    "ConvDimensionNumbers", "conv", "conv_dimension_numbers", "conv_general_dilated", "conv_with_general_padding",
    "reduce_window",
]  # fmt: skip

Pairs = Sequence[tuple[int, int]]

_TRANSPOSED = {1: convolution.conv_transpose1d, 2: convolution.conv_transpose2d, 3: convolution.conv_transpose3d}


class ConvDimensionNumbers(NamedTuple):
    """The positions of the batch, features and spatial axes in the operand, the kernel and the result.

    `lhs_spec` and `out_spec` are (batch, features, *spatial); `rhs_spec` is (features out, features in, *spatial).
    """

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


def conv_dimension_numbers(lhs_shape: Any, rhs_shape: Any, dimension_numbers: Any) -> ConvDimensionNumbers:
    """Return the axes that a description such as ``("NHWC", "HWIO", "NHWC")`` names.

    None means ``("NCHW", "OIHW", "NCHW")``.

    Raises:
        ArgumentError: the letters do not describe the axes.

    >>> gt.lax.conv_dimension_numbers((1, 8, 8, 3), (3, 3, 3, 4), ("NHWC", "HWIO", "NHWC")).rhs_spec
    (3, 2, 0, 1)
    """
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    ndim = len(lhs_shape)
    if dimension_numbers is None:
        axes = tuple(range(ndim))
        return ConvDimensionNumbers(axes, axes, axes)
    if len(dimension_numbers) != 3 or any(
        not isinstance(text, str) or len(set(text)) != ndim or len(text) != ndim for text in dimension_numbers
    ):
        expected = f"three texts of {ndim} letters, such as ('NHWC', 'HWIO', 'NHWC')"
        raise ArgumentError(message("conv", expected, repr(dimension_numbers), "Name each axis once."))
    lhs, rhs, out = dimension_numbers
    spatial = [letter for letter in rhs if letter not in "OI"]

    def places(text: str, first: str) -> tuple[int, ...]:
        letters = [*first, *spatial]
        if set(letters) != set(text):
            raise ArgumentError(message("conv", f"the letters {''.join(letters)}", text, "Use the same letters."))
        return tuple(text.index(letter) for letter in letters)

    return ConvDimensionNumbers(places(lhs, "NC"), places(rhs, "OI"), places(out, "NC"))


@replayable
def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Pairs,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Return the cross-correlation of `lhs` with the kernel `rhs`.

    Args:
        padding: (low, high) for each spatial axis, negative to remove elements; or "SAME", "SAME_LOWER", "VALID".
        lhs_dilation: the distance between elements of the operand after zeros are inserted, one per spatial axis.
        rhs_dilation: likewise for the kernel.
        dimension_numbers: see `conv_dimension_numbers`.
        batch_group_count: the number of parts of the batch, each of which has its own part of the kernel's features.
        precision: ignored; the dtype of the operands is used.
        preferred_element_type: the dtype of the result. Narrower operands are cast to it first; of integers the
            result is exact if it fits.

    Raises:
        ShapeError, ArgumentError: operands or descriptions do not fit.

    >>> x, w = gt.ones((1, 5, 5, 2)), gt.ones((3, 3, 2, 4))
    >>> gt.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).shape
    (1, 5, 5, 4)
    """
    kind = None if preferred_element_type is None else as_dtype(preferred_element_type)
    x, w = promote_arrays("conv", lhs, rhs, floating=kind not in INTEGERS)
    if kind is not None:
        x, w = (cast(z, promote_dtypes(z.aval.dtype, kind)) for z in (x, w))
    numbers = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    axes = x.ndim - 2
    strides, gaps = tuple(window_strides), tuple(rhs_dilation or (1,) * axes)
    spread = tuple(lhs_dilation or (1,) * axes)
    if x.ndim != w.ndim or axes < 0 or {len(strides), len(gaps), len(spread)} != {axes}:
        got = f"{x.aval!r}, {w.aval!r}, strides {strides}, dilations {spread} and {gaps}"
        expected = "an operand and a kernel with equally many axes, and an entry for each spatial axis"
        raise ShapeError(message("conv", expected, got, "Check the shapes."))
    _at_least_one("conv", "strides and dilations", (*strides, *gaps, *spread))
    _at_least_one("conv", "counts of groups", (feature_group_count, batch_group_count))
    x, w = ops.permute_dims(x, numbers.lhs_spec), ops.permute_dims(w, numbers.rhs_spec)
    groups = feature_group_count
    if batch_group_count != 1:
        x, groups = _parts_as_channels(x, w, batch_group_count, groups), batch_group_count
    if not axes:
        x, w, strides, gaps, spread, padding = ops.expand_dims(x, 2), ops.expand_dims(w, 2), (1,), (1,), (1,), "VALID"
    _at_least_one("conv", "sizes of windows", w.shape[2:])
    sizes = [(n - 1) * d + 1 if n else 0 for n, d in zip(x.shape[2:], spread, strict=True)]
    windows = [(n - 1) * d + 1 for n, d in zip(w.shape[2:], gaps, strict=True)]
    around = padding_pairs("conv", padding, sizes, windows, strides)
    whole = not x.aval.floating
    if w.shape[0] % groups or x.shape[1] != w.shape[1] * groups:
        got = f"{x.aval!r} and {w.aval!r} with {groups} groups"
        raise ArgumentError(message("conv", "an operand with the channels of the kernel", got, "Check both."))
    out = None
    counts = [
        max((n + low + high - window) // stride + 1, 0)
        for n, (low, high), window, stride in zip(sizes, around, windows, strides, strict=True)
    ]
    if 0 in counts:
        out = ops.zeros((x.shape[0], w.shape[0], *counts), x.aval.dtype, device=x.aval.device)
    elif set(spread) != {1} and not whole:
        out = _transposed(x, w, strides, around, spread, gaps, groups)
    if out is None:
        if whole or set(spread) != {1} or any(low != high or low < 0 for low, high in around):
            along = [(low, high, d - 1) for (low, high), d in zip(around, spread, strict=True)]
            x = pad(x, 0, [(0, 0, 0)] * 2 + along)
            around = [(0, 0)] * len(around)
        out = (
            _of_integers(x, w, strides, gaps, groups)
            if whole
            else convolution.conv(
                x, w, stride=strides, padding=tuple(low for low, _ in around), dilation=gaps, groups=groups
            )
        )
    if not axes:
        out = ops.squeeze(out, 2)
    out = ops.permute_dims(out, sorted(range(axes + 2), key=numbers.out_spec.__getitem__))
    return out if kind is None else cast(out, kind)


def _parts_as_channels(x: Array, w: Array, parts: int, groups: int) -> Array:
    """Return the parts of the batch side by side, as groups of channels."""
    if parts < 1 or groups != 1 or x.shape[0] % parts or w.shape[0] % parts:
        got = f"{parts} for {x.aval!r}, {w.aval!r} and feature_group_count {groups}"
        expected = "batch_group_count that divides the batch and the kernel's features, without groups of features"
        raise ArgumentError(message("conv", expected, got, "Check both counts."))
    count, channels, *sizes = x.shape
    x = ops.moveaxis(ops.reshape(x, (parts, count // parts, channels, *sizes)), 0, 1)
    return ops.reshape(x, (count // parts, parts * channels, *sizes))


def _of_integers(x: Array, w: Array, strides: Sequence[int], gaps: Sequence[int], groups: int) -> Array:
    """Return the convolution of padded integers, which torch has no kernels for: a sum over the window's elements."""
    features, channels, *window = w.shape
    count = x.shape[0]
    total: Any = 0
    for offsets, part in window_parts(x, (1, 1, *window), (1, 1, *strides), (1, 1, *gaps)):
        weights = getitem(w, (slice(None), slice(None), *offsets[2:]))
        a = ops.reshape(weights, (1, groups, features // groups, channels))
        b = ops.reshape(part, (count, groups, channels, math.prod(part.shape[2:])))
        total = total + a @ b
        sizes = part.shape[2:]
    return ops.reshape(total, (count, features, *sizes))


def window_parts(
    x: Array, window: Sequence[int], strides: Sequence[int], gaps: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yield each offset in a window, with the elements of all windows there: a strided part of x."""
    reach = [(n - 1) * gap + 1 for n, gap in zip(window, gaps, strict=True)]
    counts = [max((n - r) // stride + 1, 0) for n, r, stride in zip(x.shape, reach, strides, strict=True)]
    for offsets in itertools.product(*map(range, window)):
        starts = [k * gap for k, gap in zip(offsets, gaps, strict=True)]
        places = (
            slice(start, start + max((count - 1) * stride + 1, 0), stride)
            for start, count, stride in zip(starts, counts, strides, strict=True)
        )
        yield offsets, getitem(x, tuple(places))


def _transposed(
    x: Array, w: Array, strides: Sequence[int], around: Pairs, spread: Sequence[int], gaps: Sequence[int], groups: int
) -> Array | None:
    """Return a convolution of an operand with zeros between its elements, without inserting them; None: torch cannot.

    It is torch's transposed convolution of the flipped kernel. torch's padding counts how far the kernel's reach before
    the operand is cut. An excess there, compared to the reach after the operand, is computed and cut off.
    """
    if len(spread) not in _TRANSPOSED or set(strides) != {1} or 0 in (*x.shape, *w.shape) or w.shape[0] % groups:
        return None
    paddings, more, sizes = [], [], []
    reaches = [(n - 1) * gap for n, gap in zip(w.shape[2:], gaps, strict=True)]
    for n, d, gap, reach, (low, high) in zip(x.shape[2:], spread, gaps, reaches, around, strict=True):
        size = (n - 1) * d + 1 + low + high - reach
        if low > reach or high - low >= max(d, gap) or size < 1:
            return None
        paddings.append(reach - low)
        more.append(max(high - low, 0))
        sizes.append(size)
    channels, window = w.shape[1], w.shape[2:]
    kernel = ops.reshape(w, (groups, w.shape[0] // groups, channels, *window))
    kernel = ops.permute_dims(kernel, (0, 2, 1, *range(3, kernel.ndim)))
    kernel = ops.flip(ops.reshape(kernel, (groups * channels, w.shape[0] // groups, *window)), tuple(range(2, w.ndim)))
    out = _TRANSPOSED[len(spread)](
        x, kernel, stride=tuple(spread), padding=tuple(paddings), output_padding=tuple(more), groups=groups,
        dilation=tuple(gaps),
    )  # fmt: skip
    return getitem(out, (slice(None), slice(None), *map(slice, sizes)))


def conv(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Pairs,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Return `conv_general_dilated` without dilation, for operands of (batch, features, *spatial).

    >>> gt.lax.conv(gt.ones((1, 1, 4)), gt.ones((1, 1, 3)), (1,), "VALID")
    Array([[[3., 3.]]], dtype=float32)
    """
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, precision=precision, preferred_element_type=preferred_element_type
    )


def conv_with_general_padding(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Pairs,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Return `conv_general_dilated` for operands of (batch, features, *spatial).

    >>> gt.lax.conv_with_general_padding(gt.ones((1, 1, 3)), gt.ones((1, 1, 2)), (1,), [(1, 0)], None, None)
    Array([[[1., 2., 2.]]], dtype=float32)
    """
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, precision=precision,
        preferred_element_type=preferred_element_type,
    )  # fmt: skip


def _at_least_one(name: str, what: str, numbers: Sequence[int]) -> None:
    if min(numbers, default=1) < 1:
        raise ArgumentError(message(name, f"{what} of at least 1", repr(tuple(numbers)), "Fix those below."))


def padding_pairs(
    name: str, padding: str | Pairs, sizes: Sequence[int], windows: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    if not isinstance(padding, str):
        if any(numpy.shape(pair) != (2,) for pair in padding):
            raise ArgumentError(message(name, "pairs (low, high) as padding", repr(padding), "One for each axis."))
        pairs = [(int(low), int(high)) for low, high in padding]
        if len(pairs) != len(sizes):
            raise ShapeError(message(name, f"{len(sizes)} pairs of padding", f"{len(pairs)}", "One for each axis."))
        return pairs
    padding = padding.upper()
    if padding == "VALID":
        return [(0, 0)] * len(sizes)
    if padding not in ("SAME", "SAME_LOWER"):
        expected = "SAME, SAME_LOWER, VALID or pairs as padding"
        raise ArgumentError(message(name, expected, repr(padding), "Pass one of them."))
    out = []
    for n, window, stride in zip(sizes, windows, strides, strict=True):
        whole = int(max((-(-n // stride) - 1) * stride + window - n, 0))
        few, many = whole // 2, whole - whole // 2
        out.append((many, few) if padding == "SAME_LOWER" else (few, many))
    return out


@replayable
def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Pairs = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Return the reduction of each window of an array by `computation`, such as ``gt.lax.max`` or ``gt.lax.add``.

    Maxima and sums of floats over windows of one or two axes use torch's pooling. Its gradient goes to the first of
    equal maxima, as in JAX. Otherwise the elements of all windows at one offset are a strided part of the array, and
    `computation` combines these parts.

    Args:
        operand: an array, or a pytree of arrays of one shape. Then `computation` takes and returns such pytrees.
        init_value: the neutral element of `computation`; also the padding.
        window_dimensions: the size of a window along every axis; steps and padding have one entry per axis too.

    Raises:
        ShapeError: entries do not fit the array.
        ArgumentError: a size, stride or dilation is below 1, or the padding is unknown.

    >>> gt.lax.reduce_window(gt.array([1., 5., 2., 4.]), -gt.numpy.inf, gt.lax.max, (2,), (2,), "VALID")
    Array([5., 4.], dtype=float32)
    """
    arrays, structure = tree.flatten(operand)
    arrays = [lift("reduce_window", x) for x in arrays]
    inits = tree.flatten(init_value)[0]
    shapes = {x.shape for x in arrays}
    if len(inits) != len(arrays) or len(shapes) != 1 or any(numpy.ndim(init) for init in inits):
        got = f"{len(inits)} for {[x.aval for x in arrays]!r}"
        raise ShapeError(message("reduce_window", "a number as init_value for each array, and one shape", got))
    x = arrays[0]
    ones = (1,) * x.ndim
    sizes, strides = tuple(window_dimensions), tuple(window_strides or ones)
    spread, gaps = tuple(base_dilation or ones), tuple(window_dilation or ones)
    if {len(sizes), len(strides), len(spread), len(gaps)} != {x.ndim}:
        got = f"{len(sizes)} sizes and {len(strides)} strides for {x.aval!r}"
        raise ShapeError(message("reduce_window", "an entry for each axis", got, "Use 1 for axes without windows."))
    _at_least_one("reduce_window", "sizes, strides and dilations", (*sizes, *strides, *spread, *gaps))
    windows = [(n - 1) * d + 1 for n, d in zip(sizes, gaps, strict=True)]
    # as in JAX, paddings by name are those of the operand without elements in between
    around = padding_pairs("reduce_window", padding, x.shape, windows, strides)
    along = [(low, high, d - 1) for (low, high), d in zip(around, spread, strict=True)]
    arrays = [pad(x, init, along) for x, init in zip(arrays, inits, strict=True)]
    if len(arrays) == 1 and all(n >= window for n, window in zip(arrays[0].shape, windows, strict=True)):
        pooled = _pooled(arrays[0], inits[0], computation, sizes, strides, gaps)
        if pooled is not None:
            return tree.unflatten(structure, [pooled])
    total: Any = None
    for parts in zip(*[window_parts(x, sizes, strides, gaps) for x in arrays], strict=True):
        part = tree.unflatten(structure, [x for _, x in parts])
        total = part if total is None else computation(total, part)
    return computation(total, init_value)


def _pooled(
    x: Array, init: Any, computation: Any, sizes: Sequence[int], strides: Sequence[int], gaps: Sequence[int]
) -> Array | None:
    """Return the reduction of each window by torch's pooling; None if torch has no such pooling."""
    over = [k for k in range(x.ndim) if sizes[k] > 1 or strides[k] > 1]
    if not 1 <= len(over) <= 2 or not x.aval.dtype.is_floating_point or isinstance(init, Array):
        return None
    largest = stands_for(computation, ops.maximum)
    if not (largest and init == -math.inf) and not (
        stands_for(computation, ops.add) and init == 0 and set(gaps) == {1}
    ):
        return None
    rest = [k for k in range(x.ndim) if k not in over]
    order = [*rest, *over]
    window, stride, gap = ([n[k] for k in over] for n in (sizes, strides, gaps))
    if len(over) == 1:
        window, stride, gap = [1, *window], [1, *stride], [1, *gap]
    y = ops.permute_dims(x, order)
    shape = y.shape
    if (len(rest), len(over)) != (2, 2):
        # the last of the other axes are channels, also of a single example, to which a batch may add an axis
        *batch, channels = shape[: len(rest)] or (1,)
        y = ops.reshape(y, (math.prod(batch), channels, *([1] if len(over) == 1 else []), *shape[len(rest) :]))
    if largest:
        y = max_pool2d(y, window, stride, dilation=gap)
    else:
        y = avg_pool2d(y, window, stride, divisor_override=1)
    y = ops.reshape(y, (*shape[: len(rest)], *y.shape[4 - len(over) :]))
    return ops.permute_dims(y, sorted(range(x.ndim), key=lambda k: order[k]))


def stand_in(function: Any, operation: Any) -> Any:
    """Return a function, noted to compute what an operation does, or what the function that is given as such does."""
    vars(function)["stands_for"] = function, operation_of(operation)
    return function


def operation_of(function: Any) -> Any:
    """Return the operation that a function computes, if that was noted; else the function itself."""
    noted = getattr(function, "stands_for", None)
    # functools.wraps copies the note to a function that may compute something else
    return noted[1] if isinstance(noted, tuple) and noted[0] is function else function


def stands_for(function: Any, operation: Any) -> bool:
    """Return whether a function is an operation, or was noted to compute it, as those of `gtrace.jax`."""
    return operation_of(function) is operation
