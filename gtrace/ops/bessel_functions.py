"""Bessel functions of orders 0 and 1."""

from __future__ import annotations

import torch

from gtrace.ops.elementwise import add, divide, multiply, neg, sign, subtract
from gtrace.ops.logic import equal, where
from gtrace.ops.promote import unary, widened
from gtrace.ops.samples import both, scipy_special, unary_floats
from gtrace.trace.array import Array


def _per_x(y: Array, x: Array) -> Array:
    """Return y / x for a function y that goes like x / 2 at 0."""
    zero = equal(x, 0.0)
    return where(zero, 0.5, divide(y, where(zero, 1.0, x)))


_POSITIVE = both(unary_floats(0.5, 2.0), unary_floats(3.0, 6.0))
_NEAR = unary_floats(0.3, 1.0)  # further out torch has 14 digits, and the registry walk asks for 16

# -- modified, of the first kind

i0 = unary(
    "i0", widened(torch.special.i0), "Return the modified Bessel function of the first kind of order 0.",
    "round(float(gt.special.i0(1.0)), 4) => 1.2661",
    partials=(lambda x, out: i1(x),), samples=unary_floats(), reference=scipy_special("i0"),
)  # fmt: skip
i1 = unary(
    "i1", widened(torch.special.i1), "Return the modified Bessel function of the first kind of order 1.",
    "round(float(gt.special.i1(1.0)), 4) => 0.5652",
    partials=(lambda x, out: subtract(i0(x), _per_x(out, x)),), samples=unary_floats(), reference=scipy_special("i1"),
)  # fmt: skip
i0e = unary(
    "i0e", widened(torch.special.i0e), "Return exp(-|x|) * i0(x).", "round(float(gt.special.i0e(1.0)), 4) => 0.4658",
    partials=(lambda x, out: subtract(i1e(x), multiply(sign(x), out)),), samples=unary_floats(),
    reference=scipy_special("i0e"),
)  # fmt: skip
i1e = unary(
    "i1e", widened(torch.special.i1e), "Return exp(-|x|) * i1(x).", "round(float(gt.special.i1e(1.0)), 4) => 0.2079",
    partials=(lambda x, out: subtract(subtract(i0e(x), multiply(sign(x), out)), _per_x(out, x)),),
    samples=unary_floats(), reference=scipy_special("i1e"),
)  # fmt: skip

# -- of the first and the second kind

bessel_j0 = unary(
    "bessel_j0", widened(torch.special.bessel_j0), "Return the Bessel function of the first kind of order 0.",
    "round(float(gt.special.bessel_j0(1.0)), 4) => 0.7652",
    partials=(lambda x, out: neg(bessel_j1(x)),), samples=unary_floats(-1.0, 1.0), reference=scipy_special("j0"),
)  # fmt: skip
bessel_j1 = unary(
    "bessel_j1", widened(torch.special.bessel_j1), "Return the Bessel function of the first kind of order 1.",
    "round(float(gt.special.bessel_j1(1.0)), 4) => 0.4401",
    partials=(lambda x, out: subtract(bessel_j0(x), _per_x(out, x)),), samples=unary_floats(-1.0, 1.0),
    reference=scipy_special("j1"),
)  # fmt: skip
bessel_y0 = unary(
    "bessel_y0", widened(torch.special.bessel_y0), "Return the Bessel function of the second kind of order 0, x > 0.",
    "round(float(gt.special.bessel_y0(1.0)), 4) => 0.0883",
    partials=(lambda x, out: neg(bessel_y1(x)),), samples=_NEAR, reference=scipy_special("y0"),
)  # fmt: skip
bessel_y1 = unary(
    "bessel_y1", widened(torch.special.bessel_y1), "Return the Bessel function of the second kind of order 1, x > 0.",
    "round(float(gt.special.bessel_y1(1.0)), 4) => -0.7812",
    partials=(lambda x, out: subtract(bessel_y0(x), divide(out, x)),), samples=_NEAR, reference=scipy_special("y1"),
)  # fmt: skip

# -- modified, of the second kind

modified_bessel_k0 = unary(
    "modified_bessel_k0", widened(torch.special.modified_bessel_k0),
    "Return the modified Bessel function of the second kind of order 0, for x > 0.",
    "round(float(gt.special.modified_bessel_k0(1.0)), 4) => 0.421",
    partials=(lambda x, out: neg(modified_bessel_k1(x)),), samples=_POSITIVE, reference=scipy_special("k0"),
)  # fmt: skip
modified_bessel_k1 = unary(
    "modified_bessel_k1", widened(torch.special.modified_bessel_k1),
    "Return the modified Bessel function of the second kind of order 1, for x > 0.",
    "round(float(gt.special.modified_bessel_k1(1.0)), 4) => 0.6019",
    partials=(lambda x, out: neg(add(modified_bessel_k0(x), divide(out, x))),), samples=_POSITIVE,
    reference=scipy_special("k1"),
)  # fmt: skip
scaled_modified_bessel_k0 = unary(
    "scaled_modified_bessel_k0", widened(torch.special.scaled_modified_bessel_k0),
    "Return exp(x) * modified_bessel_k0(x).", "round(float(gt.special.scaled_modified_bessel_k0(1.0)), 4) => 1.1445",
    partials=(lambda x, out: subtract(out, scaled_modified_bessel_k1(x)),), samples=_POSITIVE,
    reference=scipy_special("k0e"),
)  # fmt: skip
scaled_modified_bessel_k1 = unary(
    "scaled_modified_bessel_k1", widened(torch.special.scaled_modified_bessel_k1),
    "Return exp(x) * modified_bessel_k1(x).", "round(float(gt.special.scaled_modified_bessel_k1(1.0)), 4) => 1.6362",
    partials=(lambda x, out: subtract(subtract(out, divide(out, x)), scaled_modified_bessel_k0(x)),),
    samples=_POSITIVE, reference=scipy_special("k1e"),
)  # fmt: skip
