"""Convolution, pooling and norms without tracing: calls of torch's operators, and handwritten rules.

The rules equal those that torch would record. But torch's tracing imports torch.compile, which takes most of a second,
and these layers are too common for that.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.dtypes import FLOATS
from gtrace.core.ir.aval import Aval, Bundle, aval, bundle
from gtrace.core.ops.counts import unshortened
from gtrace.core.ops.gather import gather_op
from gtrace.core.ops.operands import cast
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind
from gtrace.interop.aten.overloads import OPERAND
from gtrace.interop.aten.translate import call_aten

CONVOLUTION = "aten.convolution.default"
CONVOLUTION_BACKWARD = "aten.convolution_backward.default"
MAX_POOL = "aten.max_pool2d_with_indices.default"
MAX_POOL_BACKWARD = "aten.max_pool2d_with_indices_backward.default"
AVG_POOL = "aten.avg_pool2d.default"
AVG_POOL_BACKWARD = "aten.avg_pool2d_backward.default"

NORM = "aten.linalg_vector_norm.default"
GROUP_NORM = "aten.native_group_norm.default"
GROUP_NORM_BACKWARD = "aten.native_group_norm_backward.default"

Pullback = Callable[[Any, Sequence[bool], Sequence[Array], tuple[Any, ...]], "list[Array | None] | None"]
"""(cotangent, needed operands, operands, constants of the call) -> cotangents of the operands.

None: the rule is traced."""

Tangent = Callable[["Sequence[Array | None]", Sequence[Array], Array, str, tuple[Any, ...]], Any]
"""(tangents of the operands, operands, result, overload, constants) -> tangent of the result, or a list of tangents.

None: the rule is traced."""


def each(value: Any, axes: int) -> tuple[int, ...] | None:
    """Return a size for each axis, given one for all or one for each; None for other values."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,) * axes
    if isinstance(value, (list, tuple)) and len(value) == axes and all(isinstance(n, int) for n in value):
        return tuple(value)
    return None


def convolution(
    x: Array, weight: Array, bias: Array | None, stride: Any, padding: Any, dilation: Any, groups: Any,
    output_padding: Any = None,
) -> Array | None:  # fmt: skip
    """Return a convolution of a batch; None if the operands do not clearly fit: torch then reports the error.

    Args:
        x: (batch, channels, *spatial), or without the batch.
        weight: (features, channels // groups, *window); if transposed, (channels, features // groups, *window).
        bias: (features,).
        padding: "same" only if both sides get the same number of zeros.
        output_padding: for a transposed convolution.
    """
    axes = weight.ndim - 2
    if x.ndim == axes + 1:
        found = convolution(ops.expand_dims(x, 0), weight, bias, stride, padding, dilation, groups, output_padding)
        return None if found is None else ops.squeeze(found, 0)
    transposed = output_padding is not None
    steps, gaps, more = (each(value, axes) for value in (stride, dilation, output_padding or 0))
    if padding == "valid":
        padding = 0
    elif padding == "same" and gaps and steps == (1,) * axes:
        added = [gap * (n - 1) for gap, n in zip(gaps, weight.shape[2:], strict=True)]
        padding = None if any(n % 2 for n in added) else tuple(n // 2 for n in added)
    zeros = each(padding, axes)
    if None in (steps, gaps, more, zeros) or not isinstance(groups, int):
        return None
    constants = OPERAND, OPERAND, None if bias is None else OPERAND, steps, zeros, gaps, transposed, more, groups
    operands = [x, weight] if bias is None else [x, weight, bias]
    if type_of_convolution([one.aval for one in operands], constants) is None:
        return None
    return _one(CONVOLUTION, constants, operands)


def _one(overload: str, constants: tuple[Any, ...], operands: Sequence[Array]) -> Array:
    """Record a call of an operator with one result."""
    found: Array = call_aten(overload, constants, operands)
    return found


def type_of_convolution(avals: Sequence[Aval], args: tuple[Any, ...]) -> Aval | None:
    """Return the type of a call of `CONVOLUTION`; None if its operands do not clearly fit."""
    x, weight = avals[:2]
    axes = len(weight.shape) - 2
    steps, zeros, gaps, transposed, more, groups = args[3:]
    sizes = steps, zeros, gaps, more
    if axes < 1 or len(x.shape) != axes + 2 or any(len(one) != axes for one in sizes) or x.dtype not in FLOATS:
        return None
    if any(a.dtype is not x.dtype or a.device != x.device for a in avals):
        return None
    if min(*steps, *gaps, groups, *x.shape, *weight.shape) < 1 or min(*zeros, *more) < 0:
        return None
    features = weight.shape[1] * groups if transposed else weight.shape[0]
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if (
        x.shape[1] != channels
        or channels % groups
        or features % groups
        or (avals[2:] and avals[2].shape != (features,))
    ):
        return None
    spatial = []
    for n, w, step, zero, gap, extra in zip(x.shape[2:], weight.shape[2:], *sizes, strict=True):
        reach = gap * (w - 1) + 1
        if transposed and extra >= max(step, gap):
            return None
        spatial.append((n - 1) * step - 2 * zero + reach + extra if transposed else (n + 2 * zero - reach) // step + 1)
    return aval((x.shape[0], features, *spatial), x.dtype, x.device) if min(spatial) > 0 else None


def _type_of_convolution_backward(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    _, x, weight = avals
    features, wanted = args[3], args[-1]
    if any(a.dtype not in FLOATS for a in avals) or (wanted[2] and features is None):
        return None
    shapes = x.shape, weight.shape, features
    return bundle(tuple(aval(shape, x.dtype, x.device) for shape, want in zip(shapes, wanted, strict=True) if want))


def _convolution_pullback(
    ct: Array, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    x, weight = operands[:2]
    _, _, bias, *sizes = args
    features = None if bias is None else operands[2].shape
    wanted = (*needed[:2], len(needed) > 2 and needed[2])
    constants = OPERAND, OPERAND, OPERAND, features, *sizes, wanted
    results = iter(call_aten(CONVOLUTION_BACKWARD, constants, [ct, x, weight]))
    return [next(results) if need else None for need in needed]


def _convolved(
    parts: Sequence[Array | None], x: Array, weight: Array, shape: tuple[int, ...], sizes: tuple[Any, ...]
) -> Array | None:
    """Return the change of a convolution of this shape for changes of its images, weights and bias."""
    constants = OPERAND, OPERAND, None, *sizes
    of_x, of_weight, of_bias = (*parts, None)[:3]
    terms = [] if of_x is None else [_one(CONVOLUTION, constants, [of_x, weight])]
    if of_weight is not None:
        terms.append(_one(CONVOLUTION, constants, [x, of_weight]))
    if of_bias is not None:
        terms.append(ops.broadcast_to(ops.reshape(of_bias, (-1, *(1 for _ in shape[2:]))), shape))
    return functools.reduce(ops.add, terms) if terms else None


def _convolution_backward_pullback(
    cts: Sequence[Array | None], needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    """Return the cotangents of gradients. As <g, backward(ct)> = <ct, convolution(g)>, each is linear in the rest."""
    ct, x, weight = operands
    given = iter(cts)
    parts = [next(given) if want else None for want in args[-1]]
    of_x, of_weight, _ = parts
    constants = *args[:3], None, *args[4:-1]
    found: list[Array | None] = [None, None, None]
    if needed[0]:
        found[0] = _convolved(parts, x, weight, ct.shape, args[4:-1])
    if needed[1] and of_weight is not None:
        found[1] = call_aten(CONVOLUTION_BACKWARD, (*constants, (True, False, False)), [ct, x, of_weight])[0]
    if needed[2] and of_x is not None:
        found[2] = call_aten(CONVOLUTION_BACKWARD, (*constants, (False, True, False)), [ct, of_x, weight])[0]
    return found


def _pooled(a: Aval, window: Any, steps: Any, zeros: Any, gaps: Any, ceil_mode: bool) -> Aval | None:
    """Return the type of one number per window; None: no rule applies."""
    sizes = window, steps or window, zeros, gaps
    if ceil_mode or a.dtype not in FLOATS or len(a.shape) not in (3, 4) or any(len(one) != 2 for one in sizes):
        return None
    if min(*window, *sizes[1], *gaps) < 1 or any(not 0 <= 2 * z <= w for z, w in zip(zeros, window, strict=True)):
        return None
    spatial = [
        (n + 2 * zero - gap * (w - 1) - 1) // step + 1
        for n, w, step, zero, gap in zip(a.shape[-2:], *sizes, strict=True)
    ]
    return aval((*a.shape[:-2], *spatial), a.dtype, a.device) if min(*spatial, *a.shape) > 0 else None


def _sizes(x: Array, kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> tuple[Any, Any, Any, Any] | None:
    """Return the sizes for two axes; None if they do not clearly fit."""
    window, zeros, gaps = (each(value, 2) for value in (kernel_size, padding, dilation))
    steps = () if stride is None else each(stride, 2)
    if None in (window, zeros, gaps, steps) or _pooled(x.aval, window, steps, zeros, gaps, False) is None:
        return None
    return window, steps, zeros, gaps


def _without_defaults(constants: tuple[Any, ...], defaults: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the constants of a call without trailing defaults."""
    least = max((k + 1 for k, given in enumerate(constants) if given != defaults[k]), default=0)
    return constants[:least]


_MAX_DEFAULTS: tuple[Any, ...] = ((), (0, 0), (1, 1), False)
_AVG_DEFAULTS: tuple[Any, ...] = ((), (0, 0), False, True, None)


def max_pool(x: Array, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any) -> Array | None:
    """Return the largest element of each window of two axes; None if the operands do not clearly fit."""
    sizes = _sizes(x, kernel_size, stride, padding, dilation)
    if sizes is None or not isinstance(ceil_mode, bool):
        return None
    window, *rest = sizes
    constants = _without_defaults((*rest, ceil_mode), _MAX_DEFAULTS)
    found: Array = call_aten(MAX_POOL, (OPERAND, window, *constants), [x])[0]
    return found


def _max_pool_pullback(
    cts: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    places = call_aten(MAX_POOL, args, operands)[1]
    constants = OPERAND, OPERAND, args[1], *args[2:], *_MAX_DEFAULTS[len(args) - 2 :], OPERAND
    return [call_aten(MAX_POOL_BACKWARD, constants, [cts[0], *operands, places])]


def _at_places(x: Array, places: Array) -> Array:
    """Return the elements of images at indices into the flattened image, as `MAX_POOL` returns them."""
    flat, at = (ops.reshape(one, (*one.shape[:-2], -1)) for one in (x, places))
    return ops.reshape(bind(gather_op, (flat, at), (at.ndim - 1,)), places.shape)


def _max_pool_backward_pullback(
    ct: Array, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    return [_at_places(ct, operands[2]), None, None]


def avg_pool(
    x: Array, kernel_size: Any, stride: Any, padding: Any, ceil_mode: Any, count_include_pad: Any, divisor: Any
) -> Array | None:
    """Return the mean of each window of two axes; None if the operands do not clearly fit."""
    sizes = _sizes(x, kernel_size, stride, padding, 1)
    if sizes is None or not isinstance(ceil_mode, bool) or not isinstance(count_include_pad, bool):
        return None
    if divisor is not None and (not isinstance(divisor, int) or divisor < 1):
        return None
    window, steps, zeros, _ = sizes
    constants = _without_defaults((steps, zeros, ceil_mode, count_include_pad, divisor), _AVG_DEFAULTS)
    found: Array = call_aten(AVG_POOL, (OPERAND, window, *constants), [x])
    return found


def _avg_pool_pullback(
    ct: Array, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    constants = OPERAND, OPERAND, args[1], *args[2:], *_AVG_DEFAULTS[len(args) - 2 :]
    dtype = ct.aval.dtype
    if max(math.prod(args[1]), constants[-1] or 0) > _LARGEST_EXACT:  # torch's kernel divides by it in the short dtype
        ct, operands = unshortened(ct), [unshortened(x) for x in operands]
    return [cast(call_aten(AVG_POOL_BACKWARD, constants, [ct, *operands]), dtype)]


_LARGEST_EXACT = 256
"""Up to which each integer is a number of bfloat16."""


def _avg_pool_backward_pullback(
    ct: Array, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    return [_one(AVG_POOL, (OPERAND, *args[2:]), [ct]), None]


def _type_of_max_pool(avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    found = _pooled(avals[0], args[1], *args[2:], *_MAX_DEFAULTS[len(args) - 2 :])
    return None if found is None else bundle((found, aval(found.shape, torch.int64, found.device)))


def _type_of_avg_pool(avals: Sequence[Aval], args: tuple[Any, ...]) -> Aval | None:
    steps, zeros, ceil_mode, *_ = (*args[2:], *_AVG_DEFAULTS[len(args) - 2 :])
    return _pooled(avals[0], args[1], steps, zeros, (1, 1), ceil_mode)


def _type_of_second(avals: Sequence[Aval], args: tuple[Any, ...]) -> Aval | None:
    x = avals[1]
    return aval(x.shape, x.dtype, x.device) if x.dtype in FLOATS else None


def vector_norm(x: Array, order: float, axes: tuple[int, ...] | None, keepdims: bool) -> Array | None:
    """Return vector norms of floats; None if the operands do not clearly fit."""
    if x.aval.dtype not in FLOATS or not x.size or isinstance(order, bool) or axes == ():
        return None
    constants = _without_defaults((order, axes, bool(keepdims)), _NORM_DEFAULTS)
    found: Array = call_aten(NORM, (OPERAND, *constants), [x])
    return found


_NORM_DEFAULTS: tuple[Any, ...] = (2, None, False)


def _axes_of_norm(args: tuple[Any, ...], ndim: int) -> tuple[tuple[int, ...], bool] | None:
    """Return the axes of a 2-norm, and whether they are kept; None for other norms."""
    if len(args) > 4:
        return None
    order, axes, keepdims = (*args[1:], *_NORM_DEFAULTS[len(args) - 1 :])
    if order != 2 or isinstance(axes, int) or axes == ():
        return None
    return tuple(range(ndim)) if axes is None or not ndim else tuple(k % ndim for k in axes), keepdims


def _norm_pullback(
    ct: Array, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    (x,) = operands
    found = _axes_of_norm(args, x.ndim)
    if found is None:
        return None
    shape = tuple(1 if k in found[0] else n for k, n in enumerate(x.shape))
    norm = ops.reshape(call_aten(NORM, args, operands), shape)
    # not x over a norm that is never 0: the second derivative is not finite there, as in torch
    return [ops.reshape(ct, shape) * ops.where(norm == 0, 0, x / norm)]


def _norm_of_batch(
    overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]
) -> Array | None:
    (x,) = operands
    if len(args) > 4 or x.aval.dtype not in FLOATS or not x.size:
        return None
    order, axes, keepdims = (*args[1:], *_NORM_DEFAULTS[len(args) - 1 :])
    ndim = x.ndim - 1
    if isinstance(axes, int) or axes == () or not ndim:
        return None
    own = tuple(1 + k % ndim for k in (range(ndim) if axes is None else axes))
    return vector_norm(x, order, own, keepdims)


def _type_of_norm(avals: Sequence[Aval], args: tuple[Any, ...]) -> Aval | None:
    (x,) = avals
    found = _axes_of_norm((*args[:1], 2, *args[2:]), len(x.shape))
    if found is None or x.dtype not in FLOATS or not x.size:
        return None
    axes, keepdims = found
    shape = tuple(1 if k in axes else n for k, n in enumerate(x.shape) if keepdims or k not in axes)
    return aval(shape, x.dtype, x.device)


def _group_norm_pullback(
    cts: Sequence[Array | None], needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    """Return the cotangents by torch's kernel, plus those through the means and inverse deviations.

    torch's own derivative omits the latter unless both have a cotangent.
    """
    _, weight, bias, *sizes, _ = args
    given = iter(needed[1:])
    wanted = (needed[0], *(place is not None and next(given) for place in (weight, bias)))
    _, mean, scale = call_aten(GROUP_NORM, args, operands)
    found: list[Array | None] = [None] * len(needed)
    if cts[0] is not None:
        weights = () if weight is None else operands[1:2]
        constants = (*(OPERAND,) * 4, weight, *sizes, wanted)
        results = iter(call_aten(GROUP_NORM_BACKWARD, constants, [cts[0], operands[0], mean, scale, *weights]))
        found = [next(results) if need else None for need in needed]
    if needed[0]:
        x = operands[0]
        count = math.prod(x.shape[1:]) // mean.shape[1]
        shifts = ops.reshape(x, (*mean.shape, count)) - ops.expand_dims(mean, 2)
        for ct, slopes in ((cts[1], ops.ones_like(shifts)), (cts[2], -(ops.expand_dims(scale, 2) ** 3) * shifts)):
            if ct is not None:
                change = ops.reshape(unshortened(ops.expand_dims(ct, 2)) * slopes / max(count, 1), x.shape)
                change = cast(change, x.aval.dtype)
                found[0] = change if found[0] is None else found[0] + change
    return found


TYPES: dict[str, Callable[[Sequence[Aval], tuple[Any, ...]], Aval | Bundle | None]] = {
    CONVOLUTION: type_of_convolution,
    CONVOLUTION_BACKWARD: _type_of_convolution_backward,
    MAX_POOL: _type_of_max_pool,
    MAX_POOL_BACKWARD: _type_of_second,
    AVG_POOL: _type_of_avg_pool,
    AVG_POOL_BACKWARD: _type_of_second,
    NORM: _type_of_norm,
}
PULLBACKS: dict[str, Pullback] = {
    CONVOLUTION: _convolution_pullback, MAX_POOL: _max_pool_pullback, AVG_POOL: _avg_pool_pullback,
    NORM: _norm_pullback, GROUP_NORM: _group_norm_pullback, CONVOLUTION_BACKWARD: _convolution_backward_pullback,
    MAX_POOL_BACKWARD: _max_pool_backward_pullback, AVG_POOL_BACKWARD: _avg_pool_backward_pullback,
}  # fmt: skip
BATCHES = {NORM: _norm_of_batch}
