"""Products with logarithms, defined where a factor is 0; entropies and divergences; the logit."""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.ops.declare import Cpp
from gtrace.core.ops.elementwise import neg
from gtrace.core.ops.operands import as_arrays, binary, unary, widened
from gtrace.core.ops.samples import binary_floats, scipy_special, unary_floats
from gtrace.core.trace.array import Array

__all__ = ["entr", "kl_div", "logit", "rel_entr", "xlog1py", "xlogy"]

xlogy = binary(
    "xlogy", widened(torch.special.xlogy), "Return x * log(y), 0 where x is 0.",
    "float(gt.special.xlogy(0.0, 0.0)) => 0.0", floating=True,
    partials=(lambda x, y, out: ops.log(y), lambda x, y, out: ops.divide(x, y)),
    samples=binary_floats(-2.0, 2.0, 0.3, 4.0), reference=scipy_special("xlogy"),
    cpp=Cpp("xlogy<double>({0}, {1})", "f", 20, precise=True),
)  # fmt: skip
xlog1py = binary(
    "xlog1py", widened(torch.special.xlog1py), "Return x * log(1 + y), 0 where x is 0.",
    "float(gt.special.xlog1py(0.0, -1.0)) => 0.0", floating=True,
    partials=(lambda x, y, out: ops.log1p(y), lambda x, y, out: x / ops.add(y, 1.0)),
    samples=binary_floats(-2.0, 2.0, -0.7, 3.0), reference=scipy_special("xlog1py"),
    cpp=Cpp("xlog1py<double>({0}, {1})", "f", 20, precise=True),
)  # fmt: skip
entr = unary(
    "entr", widened(torch.special.entr), "Return -x * log(x), the term of an entropy; -inf for negative x.",
    "round(float(gt.special.entr(0.5)), 4) => 0.3466",
    partials=(lambda x, out: ops.subtract(neg(ops.log(x)), 1.0),), samples=unary_floats(0.2, 3.0),
    reference=scipy_special("entr"), cpp=Cpp("entr<double>({0})", "f", 20, precise=True),
)  # fmt: skip
logit = unary(
    "logit", widened(torch.special.logit), "Return log(x / (1 - x)), the inverse of expit.",
    "round(float(gt.special.logit(0.75)), 4) => 1.0986",
    partials=(lambda x, out: ops.reciprocal(x * ops.subtract(1.0, x)),), samples=unary_floats(0.1, 0.9),
    reference=scipy_special("logit"),
)  # fmt: skip


def rel_entr(p: Any, q: Any) -> Array:
    """Return p * log(p / q), the term of a relative entropy: 0 where p is 0, inf where it has no value.

    >>> gt.special.rel_entr(gt.array([0.0, 1.0, -1.0]), 1.0)
    Array([ 0.,  0., inf], dtype=float32)
    """
    p, q = as_arrays("rel_entr", p, q)
    inside = ops.logical_and(ops.greater(p, 0.0), ops.greater(q, 0.0))
    one, two = ops.where(inside, p, 1.0), ops.where(inside, q, 1.0)
    ratio = one / two
    close = ops.logical_and(ratio > 0.5, ratio < 2.0)
    near = ops.log1p(ops.where(close, (one - two) / two, 0.0))
    # the quotient may overflow where the difference of the logarithms does not
    logarithm = ops.where(close, near, ops.log(one) - ops.log(two))
    return ops.where(inside, one * logarithm, _outside(p, q, 0.0))


def _outside(p: Array, q: Array, empty: Any) -> Array:
    """Return the value where p or q is not positive: `empty` for p = 0, NaN for NaN, infinity elsewhere."""
    missing = ops.logical_or(ops.isnan(p), ops.isnan(q))
    nothing = ops.logical_and(ops.equal(p, 0.0), q >= 0.0)
    return ops.where(nothing, empty, ops.where(missing, p + q, math.inf))


def kl_div(p: Any, q: Any) -> Array:
    """Return p * log(p / q) - p + q, the term of a Kullback-Leibler divergence, as SciPy defines it.

    >>> round(float(gt.special.kl_div(0.5, 0.25)), 4)
    0.0966
    """
    p, q = as_arrays("kl_div", p, q)
    inside = ops.logical_and(ops.greater(p, 0.0), ops.greater(q, 0.0))
    one, two = ops.where(inside, p, 1.0), ops.where(inside, q, 1.0)
    return ops.where(inside, rel_entr(one, two) - one + two, _outside(p, q, q))
