"""``jax.nn.gelu``, whose exact form keeps its digits for negative numbers; softmax of complex numbers."""

from __future__ import annotations

import functools
import math
from typing import Any

from gtrace.extend import Array, cast, lift, ops, replayable
from gtrace.jax import complex_order
from gtrace.jax.weakness import with_weakness
from gtrace.nn.common import floating, widened
from gtrace.special import erfc

_FAR = 40.0  # the normal distribution has the probability 0 below its negative, also in float64


@functools.partial(with_weakness, "jax.nn.gelu")
@replayable
def gelu(x: Any, approximate: bool = True) -> Array:
    """Return x times the probability that a standard normal number is below x, or a function near it.

    Args:
        approximate: use tanh. Otherwise results are exact to the last digits, however small.

    >>> gelu(gt.array([0., 20.]), approximate=False)
    Array([ 0., 20.], dtype=float32)
    """
    values = floating("gelu", x)
    if approximate:
        return ops.gelu(values, True)
    wide = widened(values)
    wide = ops.where(wide < -_FAR, -_FAR, wide)
    probability = 0.5 * erfc(-(0.5**0.5) * ops.where(wide > _FAR, _FAR, wide))
    return cast(wide * probability, values.aval.dtype)


def _shifted(name: str, x: Any, axis: Any, where: Any) -> tuple[Array, Array]:
    """Return complex numbers without the greatest one along an axis, and the sum of their exponentials."""
    values = lift(name, x)
    most = complex_order.max(values, axis, keepdims=True, where=where, initial=None if where is None else -math.inf)
    kept = values if where is None else ops.where(where, values, -math.inf)
    out = ops.subtract(kept, ops.stop_gradient(most))
    return out, ops.sum(ops.exp(out), axis, keepdims=True)


@functools.partial(with_weakness, "jax.nn.softmax")
def softmax(x: Any, axis: Any = -1, where: Any = None) -> Array:
    """``gt.nn.softmax``, also of complex numbers.

    >>> softmax(gt.array([0j, 0j]))
    Array([0.5+0.j, 0.5+0.j], dtype=complex64)
    """
    if not complex_order.is_complex(x):
        return ops.softmax(x, axis, where)
    shifted, total = _shifted("softmax", x, axis, where)
    found = ops.divide(ops.exp(shifted), total)
    return found if where is None else ops.where(where, found, 0)


@functools.partial(with_weakness, "jax.nn.log_softmax")
def log_softmax(x: Any, axis: Any = -1, where: Any = None) -> Array:
    """``gt.nn.log_softmax``, also of complex numbers.

    >>> log_softmax(gt.array([0j])).real
    Array([0.], dtype=float32)
    """
    if not complex_order.is_complex(x):
        return ops.log_softmax(x, axis, where)
    shifted, total = _shifted("log_softmax", x, axis, where)
    found = ops.subtract(shifted, ops.log(total))
    return found if where is None else ops.where(where, found, -math.inf)
