"""The error function's relatives, and the normal distribution's functions."""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.ops.declare import of_floats
from gtrace.core.ops.elementwise import neg
from gtrace.core.ops.operands import unary, widened
from gtrace.core.ops.samples import scipy_special, unary_floats
from gtrace.core.trace.array import Array

__all__ = ["erfc", "erfcx", "log_ndtr", "ndtr", "ndtri"]

_ROOT_2PI = math.sqrt(2.0 * math.pi)

erfc = unary(
    "erfc", widened(torch.special.erfc), "Return 1 - erf(x), exact where that is small.",
    "round(float(gt.special.erfc(0.5)), 4) => 0.4795",
    partials=(lambda x, out: ops.exp(neg(ops.square(x))) * (-2.0 / math.sqrt(math.pi)),),
    reference=scipy_special("erfc"), cpp=of_floats("erfc", 20, precise=True), jax="erfc",
)  # fmt: skip
erfcx = unary(
    "erfcx", widened(torch.special.erfcx), "Return exp(x ** 2) * erfc(x), without underflow.",
    "round(float(gt.special.erfcx(10.0)), 4) => 0.0561",
    partials=(lambda x, out: ops.multiply(x, out) * 2.0 - 2.0 / math.sqrt(math.pi),),
    reference=scipy_special("erfcx"),
)  # fmt: skip


def _ndtr(x: torch.Tensor) -> torch.Tensor:
    # torch's own is 1 + erf of something, without any digit where that is small
    return 0.5 * torch.special.erfc(x * -math.sqrt(0.5))


ndtr = unary(
    "ndtr", widened(_ndtr), "Return the distribution function of the standard normal distribution.",
    "round(float(gt.special.ndtr(1.0)), 4) => 0.8413",
    partials=(lambda x, out: ops.exp(ops.square(x) * -0.5) * (1.0 / _ROOT_2PI),),
    reference=scipy_special("ndtr"),
)  # fmt: skip
ndtri = unary(
    "ndtri", widened(torch.special.ndtri), "Return the quantile of the standard normal distribution at x.",
    "round(float(gt.special.ndtri(0.975)), 4) => 1.96",
    partials=(lambda x, out: ops.exp(ops.square(out) * 0.5) * _ROOT_2PI,),
    samples=unary_floats(0.05, 0.95),
    reference=scipy_special("ndtri"),
)  # fmt: skip


def _log_ndtr_slope(x: Any, out: Array) -> Array:
    """Return the density over the distribution function."""
    left = ops.less(x, 0.0)
    # far to the left both are 0, and their logarithms large: erfcx is their quotient
    scaled = erfcx(ops.where(left, x, 0.0) * -math.sqrt(0.5))
    size = ops.square(ops.where(left, 0.0, x)) * 0.5
    right = ops.exp(neg(size + ops.where(left, 0.0, out) + math.log(_ROOT_2PI)))
    return ops.where(left, ops.divide(math.sqrt(2.0 / math.pi), scaled), right)


log_ndtr = unary(
    "log_ndtr", widened(torch.special.log_ndtr), "Return the logarithm of ndtr(x), without underflow.",
    "round(float(gt.special.log_ndtr(-100.0)), 3) => -5005.524",
    partials=(_log_ndtr_slope,),
    samples=unary_floats(-5.0, 2.0), reference=scipy_special("log_ndtr"),
)  # fmt: skip
