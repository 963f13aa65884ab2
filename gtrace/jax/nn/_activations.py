"""``jax.nn.gelu``, whose exact form keeps its digits for negative numbers."""

from __future__ import annotations

import functools
from typing import Any

from gtrace.extend import Array, cast, ops, replayable
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
