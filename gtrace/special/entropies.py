"""Products with logarithms, defined where a factor is 0; entropies and divergences; the logit."""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.core.ops.checks import broadcasts
from gtrace.core.ops.elementwise import add, divide, log, log1p, multiply, neg, reciprocal, subtract
from gtrace.core.ops.logic import equal, greater, greater_equal, isnan, logical_and, where
from gtrace.core.ops.promote import as_arrays, binary, unary, widened
from gtrace.core.ops.samples import binary_floats, scipy_special, shapes_differ, unary_floats
from gtrace.core.trace.array import Array

__all__ = ["entr", "kl_div", "logit", "rel_entr", "xlog1py", "xlogy"]

xlogy = binary(
    "xlogy", widened(torch.special.xlogy), "Return x * log(y), 0 where x is 0.",
    "float(gt.special.xlogy(0.0, 0.0)) => 0.0", floating=True, check=broadcasts,
    partials=(lambda x, y, out: log(y), lambda x, y, out: divide(x, y)), samples=binary_floats(-2.0, 2.0, 0.3, 4.0),
    errors=shapes_differ, reference=scipy_special("xlogy"),
)  # fmt: skip
xlog1py = binary(
    "xlog1py", widened(torch.special.xlog1py), "Return x * log(1 + y), 0 where x is 0.",
    "float(gt.special.xlog1py(0.0, -1.0)) => 0.0", floating=True, check=broadcasts,
    partials=(lambda x, y, out: log1p(y), lambda x, y, out: divide(x, add(y, 1.0))),
    samples=binary_floats(-2.0, 2.0, -0.7, 3.0), errors=shapes_differ, reference=scipy_special("xlog1py"),
)  # fmt: skip
entr = unary(
    "entr", widened(torch.special.entr), "Return -x * log(x), the term of an entropy; -inf for negative x.",
    "round(float(gt.special.entr(0.5)), 4) => 0.3466",
    partials=(lambda x, out: subtract(neg(log(x)), 1.0),), samples=unary_floats(0.2, 3.0),
    reference=scipy_special("entr"),
)  # fmt: skip
logit = unary(
    "logit", widened(torch.special.logit), "Return log(x / (1 - x)), the inverse of expit.",
    "round(float(gt.special.logit(0.75)), 4) => 1.0986",
    partials=(lambda x, out: reciprocal(multiply(x, subtract(1.0, x))),), samples=unary_floats(0.1, 0.9),
    reference=scipy_special("logit"),
)  # fmt: skip


def rel_entr(p: Any, q: Any) -> Array:
    """Return p * log(p / q), the term of a relative entropy: 0 where p is 0, inf where it has no value.

    >>> import gtrace as gt
    >>> gt.special.rel_entr(gt.array([0.0, 1.0, -1.0]), 1.0)
    Array([ 0.,  0., inf], dtype=float32)
    """
    p, q = as_arrays("rel_entr", p, q)
    inside = logical_and(greater(p, 0.0), greater(q, 0.0))
    term = multiply(p, log(divide(where(inside, p, 1.0), where(inside, q, 1.0))))
    empty = logical_and(equal(p, 0.0), greater_equal(q, 0.0))
    total = add(p, q)
    outside = where(empty, 0.0, where(isnan(total), total, math.inf))
    return where(inside, term, outside)


def kl_div(p: Any, q: Any) -> Array:
    """Return p * log(p / q) - p + q, the term of a Kullback-Leibler divergence, as SciPy defines it.

    >>> import gtrace as gt
    >>> round(float(gt.special.kl_div(0.5, 0.25)), 4)
    0.0966
    """
    p, q = as_arrays("kl_div", p, q)
    return add(subtract(rel_entr(p, q), p), q)
