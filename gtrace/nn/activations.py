"""Activation functions that `gt` does not publish. Integers become float32; derivatives stay finite."""

from __future__ import annotations

import math
from typing import Any

from gtrace.extend import (
    Array,
    ShapeError,
    cast,
    lift,
    message,
    normalize_axis,
    ops,
    promote_arrays,
    replayable,
    slice_axis,
)
from gtrace.nn.common import check_number, floating, widened

__all__ = [
    "celu", "elu", "glu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "hardshrink", "leaky_relu",
    "log_sigmoid", "mish", "prelu", "relu6", "selu", "soft_sign", "softshrink", "softsign", "sparse_plus",
    "sparse_sigmoid", "squareplus", "swish", "tanhshrink", "threshold",
]  # fmt: skip

swish = ops.silu

_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


def _limited(x: Array, low: float, high: float) -> Array:
    """Return x limited to [low, high], with derivative 0 at a bound, unlike clip, and at NaN, as in JAX."""
    return ops.where((x > low) & (x < high), x, ops.clip(ops.stop_gradient(x), low, high))


def _negative_part(x: Array) -> Array:
    """Return min(x, 0), so that an exponential does not overflow where it is not selected."""
    return ops.where(x > 0, 0.0, x)


@replayable
def elu(x: Any, alpha: Any = 1.0) -> Array:
    """Return x where it is positive, and alpha * (exp(x) - 1) elsewhere (Clevert et al., 2015).

    >>> gt.round(gt.nn.elu(gt.array([-1., 2.])), 4)
    Array([-0.6321,  2.    ], dtype=float32)
    """
    x = floating("elu", x)
    return ops.where(x > 0, x, ops.expm1(_negative_part(x)) * alpha)


@replayable
def celu(x: Any, alpha: Any = 1.0) -> Array:
    """Return x where it is positive, and alpha * (exp(x / alpha) - 1) elsewhere (Barron, 2017).

    >>> gt.round(gt.nn.celu(gt.array([-1., 2.]), alpha=2.0), 4)
    Array([-0.7869,  2.    ], dtype=float32)
    """
    x = floating("celu", x)
    return ops.where(x > 0, x, ops.expm1(_negative_part(x) / alpha) * alpha)


@replayable
def selu(x: Any) -> Array:
    """Return 1.0507 * elu(x, 1.6733), which keeps mean 0 and variance 1 (Klambauer et al., 2017).

    >>> gt.round(gt.nn.selu(gt.array([-1., 2.])), 4)
    Array([-1.1113,  2.1014], dtype=float32)
    """
    return elu(x, _SELU_ALPHA) * _SELU_SCALE


@replayable
def glu(x: Any, axis: int = -1) -> Array:
    """Return a * sigmoid(b), where a and b are the halves of x along `axis` (Dauphin et al., 2016).

    Raises:
        ShapeError: the size of the axis is odd, or there is no such axis.

    >>> gt.nn.glu(gt.array([1., 2., 0., 0.]))
    Array([0.5, 1. ], dtype=float32)
    """
    x = floating("glu", x)
    axis = normalize_axis("glu", axis, x.ndim)
    size = x.shape[axis]
    if size % 2:
        raise ShapeError(message("glu", "an axis of even size", f"{size} in {x.aval!r}", "It is cut into halves."))
    return slice_axis(x, axis, 0, size // 2) * ops.sigmoid(slice_axis(x, axis, size // 2, size))


@replayable
def relu6(x: Any) -> Array:
    """Return x limited to [0, 6]; the derivative at a bound is 0.

    >>> gt.nn.relu6(gt.array([-1., 2., 7.]))
    Array([0., 2., 6.], dtype=float32)
    """
    return _limited(floating("relu6", x), 0.0, 6.0)


@replayable
def hard_tanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Array:
    """Return x limited to [min_val, max_val]; the derivative at a bound is 1.

    >>> gt.nn.hard_tanh(gt.array([-2., 0.5, 2.]))
    Array([-1. ,  0.5,  1. ], dtype=float32)
    """
    x = floating("hard_tanh", x)
    return ops.where(x > max_val, max_val, ops.where(x < min_val, min_val, x))


@replayable
def hard_sigmoid(x: Any) -> Array:
    """Return relu6(x + 3) / 6.

    >>> gt.nn.hard_sigmoid(gt.array([-4., 0., 4.]))
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return relu6(floating("hard_sigmoid", x) + 3.0) / 6.0


@replayable
def hard_silu(x: Any) -> Array:
    """Return x * hard_sigmoid(x) (Howard et al., 2019). Another name is `hard_swish`.

    >>> gt.nn.hard_silu(gt.array([-4., 0., 4.]))
    Array([-0.,  0.,  4.], dtype=float32)
    """
    x = floating("hard_silu", x)
    return x * hard_sigmoid(x)


hard_swish = hard_silu


@replayable
def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Array:
    """Return x where it is at least 0, and negative_slope * x elsewhere.

    >>> gt.nn.leaky_relu(gt.array([-1., 2.]), 0.25)
    Array([-0.25,  2.  ], dtype=float32)
    """
    x = floating("leaky_relu", x)
    return ops.where(x >= 0, x, x * negative_slope)


@replayable
def prelu(x: Any, weight: Any) -> Array:
    """Return x where it is positive, and weight * x elsewhere (He et al., 2015).

    Args:
        x: floating array.
        weight: the slope: a number, an array of one element, or one slope per channel, which is axis 1 of x.

    Raises:
        ShapeError: the weight has another shape.

    >>> gt.nn.prelu(gt.array([[-1., -1.]]), gt.array([0.5, 0.25]))
    Array([[-0.5 , -0.25]], dtype=float32)
    """
    x, slope = promote_arrays("prelu", x, weight, floating=True)
    channels = x.shape[1] if x.ndim > 1 else 1
    if slope.ndim > 1 or slope.size not in (1, channels):
        got = f"{slope.aval!r} for {x.aval!r}"
        raise ShapeError(message("prelu", f"a weight of 1 or {channels} elements", got, "Channels are on axis 1."))
    slope = ops.reshape(slope, (slope.size, *(1,) * (x.ndim - 2)) if slope.size > 1 else ())
    return ops.where(x > 0, x, x * slope)


@replayable
def log_sigmoid(x: Any) -> Array:
    """Return log(sigmoid(x)), without overflow.

    >>> gt.round(gt.nn.log_sigmoid(gt.array([-1000., 0.])), 4)
    Array([-1.000e+03, -6.931e-01], dtype=float32)
    """
    return -ops.softplus(-floating("log_sigmoid", x))


@replayable
def mish(x: Any) -> Array:
    """Return x * tanh(softplus(x)) (Misra, 2019).

    >>> gt.round(gt.nn.mish(gt.array([-1., 2.])), 4)
    Array([-0.3034,  1.944 ], dtype=float32)
    """
    x = floating("mish", x)
    return x * ops.tanh(ops.softplus(x))


@replayable
def soft_sign(x: Any) -> Array:
    """Return x / (1 + |x|). Another name is `softsign`.

    >>> gt.nn.soft_sign(gt.array([-1., 3.]))
    Array([-0.5 ,  0.75], dtype=float32)
    """
    x = floating("soft_sign", x)
    return x / (ops.absolute(x) + 1.0)


softsign = soft_sign


@replayable
def squareplus(x: Any, b: Any = 4.0) -> Array:
    """Return (x + sqrt(x ** 2 + b)) / 2 (Barron, 2021), without cancellation for negative x.

    >>> gt.nn.squareplus(gt.array([0., 1.5]))
    Array([1., 2.], dtype=float32)
    """
    x, b = promote_arrays("squareplus", x, b, floating=True)
    wide = widened(x)  # its square soon overflows 16 bits
    positive = wide > 0
    size, far = ops.where(positive, wide, -wide), ops.square(wide) == math.inf
    root = ops.sqrt(ops.square(ops.where(far, 1.0, wide)) + b)
    larger = (ops.where(far, size, root) + size) * 0.5
    # the product of the two roots of y ** 2 - x * y = b / 4 gives the smaller one
    smaller = b * 0.25 / ops.where(larger == 0, 1.0, larger)
    return cast(ops.where(positive, larger, smaller), x.aval.dtype)


@replayable
def sparse_plus(x: Any) -> Array:
    """Return 0 up to x = -1, x from x = 1 on, and (x + 1) ** 2 / 4 between.

    >>> gt.nn.sparse_plus(gt.array([-2., 0., 2.]))
    Array([0.  , 0.25, 2.  ], dtype=float32)
    """
    x = floating("sparse_plus", x)
    return ops.where(x >= 1.0, x, ops.square(_limited(x, -1.0, 1.0) + 1.0) * 0.25)


@replayable
def sparse_sigmoid(x: Any) -> Array:
    """Return (x + 1) / 2 limited to [0, 1], the derivative of `sparse_plus`.

    >>> gt.nn.sparse_sigmoid(gt.array([-2., 0., 2.]))
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return (ops.clip(floating("sparse_sigmoid", x), -1.0, 1.0) + 1.0) * 0.5


@replayable
def hardshrink(x: Any, lambd: float = 0.5) -> Array:
    """Return x where |x| > lambd, and 0 elsewhere.

    >>> gt.nn.hardshrink(gt.array([-1., 0.25, 2.]))
    Array([-1.,  0.,  2.], dtype=float32)
    """
    x = floating("hardshrink", x)
    return ops.where(ops.absolute(x) <= check_number("hardshrink", "lambd", lambd, 0.0), 0.0, x)


@replayable
def softshrink(x: Any, lambd: float = 0.5) -> Array:
    """Return x moved towards 0 by lambd; 0 where |x| <= lambd.

    >>> gt.nn.softshrink(gt.array([-1., 0.25, 2.]))
    Array([-0.5,  0. ,  1.5], dtype=float32)
    """
    x = floating("softshrink", x)
    bound = check_number("softshrink", "lambd", lambd, 0.0)
    return ops.where(ops.absolute(x) <= bound, 0.0, ops.where(x > 0, x - bound, x + bound))


@replayable
def tanhshrink(x: Any) -> Array:
    """Return x - tanh(x).

    >>> gt.round(gt.nn.tanhshrink(gt.array([-1., 2.])), 4)
    Array([-0.2384,  1.036 ], dtype=float32)
    """
    x = floating("tanhshrink", x)
    return x - ops.tanh(x)


@replayable
def threshold(x: Any, threshold: Any, value: Any) -> Array:
    """Return x where it is above the threshold, and `value` elsewhere.

    >>> gt.nn.threshold(gt.array([0.5, 2.]), 1.0, -1.0)
    Array([-1.,  2.], dtype=float32)
    """
    x = lift("threshold", x)
    return ops.where(x <= threshold, value, x)
