"""The gamma function and what is made of it: its logarithm, the derivatives of that, and the incomplete integrals.

The derivatives of the incomplete integrals by the shape parameter are integrals over half a line, computed by a double
exponential rule (Takahasi and Mori, 1974).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.errors import ArgumentError, message
from gtrace.ir.cases import BadSample, Sample
from gtrace.ir.op import define
from gtrace.ops.checks import broadcasts
from gtrace.ops.elementwise import exp, log, maximum, multiply, neg, subtract
from gtrace.ops.logic import equal, less, where
from gtrace.ops.promote import as_arrays, binary, cast, promote, promote_arrays, unary, widened
from gtrace.ops.samples import binary_floats, scipy_special, shapes_differ, unary_floats, uniform
from gtrace.ops.shape import as_int
from gtrace.trace.array import Array
from gtrace.trace.bind import bind

# -- derivatives of the logarithm


gammaln = unary(
    "gammaln", widened(torch.special.gammaln), "Return the logarithm of the absolute value of the gamma function.",
    "round(float(gt.special.gammaln(5.0)), 4) => 3.1781",
    partials=(lambda x, out: digamma(x),), samples=unary_floats(0.2, 6.0), reference=scipy_special("gammaln"),
)  # fmt: skip
digamma = unary(
    "digamma", widened(torch.special.digamma), "Return the derivative of the logarithm of the gamma function.",
    "round(float(gt.special.digamma(1.0)), 4) => -0.5772",
    partials=(lambda x, out: polygamma(1, x),), samples=unary_floats(0.2, 6.0), reference=scipy_special("digamma"),
)  # fmt: skip


def _polygamma(x: torch.Tensor, n: int) -> torch.Tensor:
    # torch.special.polygamma has 9 digits for n = 1
    order = torch.tensor(n + 1.0, dtype=torch.float64, device=x.device)
    scale = float(math.factorial(n)) * (-1.0) ** (n + 1)
    return (torch.special.zeta(order, x.double()) * scale).to(x.dtype)


_polygamma_op = define(
    "polygamma", _polygamma, params=("n",), elementwise=True, partials=(lambda x, out, n: polygamma(n + 1, x),),
    samples=lambda: [Sample((n, uniform(0.5, 6.0, 3, 4))) for n in (1, 2, 5)],
    errors=lambda: [BadSample((-1, uniform(0.5, 6.0, 3)), {}, ArgumentError, r"an order >= 0")],
    reference=scipy_special("polygamma"), user=lambda n, x: polygamma(n, x),
)  # fmt: skip


def polygamma(n: Any, x: Any) -> Array:
    """Return the derivative of order n of the digamma function.

    Args:
        n: a Python integer >= 0.
        x: array.

    Raises:
        ArgumentError: n is no integer >= 0.

    >>> import gtrace as gt
    >>> round(float(gt.special.polygamma(1, 1.0)), 4)
    1.6449
    """
    order = as_int("polygamma", "order", n)
    if order < 0:
        raise ArgumentError(message("polygamma", "an order >= 0", str(order), "Pass a non-negative integer."))
    (value,) = promote_arrays("polygamma", x, floating=True)
    return bind(_polygamma_op, (value,), (order,)) if order else digamma(value)


# -- incomplete integrals


def _lower_side(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x < a.clamp(min=1.0)


_NODES = 100
_FIRST, _LAST = -4.0, 5.0


def _moment(a: torch.Tensor, x: torch.Tensor, order: int, shift: int) -> torch.Tensor:
    dtype = a.dtype
    a, x = torch.broadcast_tensors(a.double(), x.double())
    step = (_LAST - _FIRST) / (_NODES - 1)
    u = torch.arange(_NODES, dtype=torch.float64, device=a.device) * step + _FIRST
    s = torch.exp(u - torch.exp(-u))
    weight = s * (1.0 + torch.exp(-u)) * step
    # the width of the integrand
    scale = torch.where(x < 1.0, 1.0 / a, 1.0 / ((a - x).abs() + x.sqrt())).unsqueeze(-1)
    sign = torch.where(_lower_side(a, x), 1.0, -1.0).unsqueeze(-1).to(torch.float64)
    s = s * scale * sign
    a, x = a.unsqueeze(-1), x.unsqueeze(-1)
    # far out the exponent overflows, to minus infinity
    exponent = -(a + shift) * s - x * torch.expm1(-s)
    terms = torch.exp(exponent) * weight
    for _ in range(order):
        terms = terms * s
    return (terms.sum(-1) * scale.squeeze(-1)).to(dtype)


_moment_op = define(
    "gamma_moment", _moment, params=("order", "shift"), arity=2, elementwise=True, check=broadcasts,
    partials=(
        lambda a, x, out, order, shift: neg(_moment_of(a, x, order + 1, shift)),
        lambda a, x, out, order, shift: subtract(out, _moment_of(a, x, order, shift + 1)),
    ),
    samples=lambda: [
        Sample((uniform(2.0, 6.0, 3, 4), uniform(0.2, 1.8, 4, seed=1), 0, 0)),
        Sample((uniform(0.5, 2.0, 3), uniform(2.5, 9.0, 3, seed=1), 1, 1)),
    ],
    errors=lambda: [BadSample((uniform(1, 2, 2, 3), uniform(1, 2, 4), 0, 0), {}, ValueError, r"broadcast")],
    user=lambda a, x, order, shift: _moment_of(a, x, order, shift),
)  # fmt: skip


def _moment_of(a: Any, x: Any, order: int, shift: int) -> Array:
    """Return the integral of s**order * exp(-(a + shift) * s + x * (1 - exp(-s))) over s.

    It goes from 0 to infinity where x < max(a, 1), else over -s from 0 to infinity.
    """
    return bind(_moment_op, promote("gamma_moment", a, x, floating=True), (order, shift))


def log_sample_slope(a: Any, log_x: Any, x: Any) -> Array:
    """Return the derivative of log(x) by a along which the regularized lower integral P(a, x) stays the same.

    Substituting t = x exp(-s) in the integral of log(t) t**(a - 1) exp(-t) gives two integrals without large terms.
    """
    total = multiply(subtract(log_x, digamma(a)), _moment_of(a, x, 0, 0))
    rest = subtract(_moment_of(a, x, 1, 0), total)
    return where(less(x, maximum(a, 1.0)), rest, neg(rest))


def _density(a: Any, x: Any, power: float) -> Array:
    """Return x ** (a - power) * exp(-x) / gamma(a)."""
    a, x = as_arrays("gammainc", a, x)
    zero = equal(x, 0.0)
    logarithm = log(where(zero, 1.0, x))
    inside = exp(subtract(subtract(multiply(subtract(a, power), logarithm), x), gammaln(a)))
    at_zero = where(less(a, power), math.inf, cast(equal(a, power), inside.dtype))
    return where(zero, at_zero, inside)


def _by_a(a: Any, x: Any) -> Array:
    a, x = as_arrays("gammainc", a, x)
    inside = where(equal(x, 0.0), 1.0, x)
    slope = multiply(log_sample_slope(a, log(inside), inside), _density(a, inside, 0.0))
    return where(equal(x, 0.0), 0.0, neg(slope))


gammainc = binary(
    "gammainc", widened(torch.special.gammainc), "Return the regularized lower incomplete gamma function P(a, x).",
    "round(float(gt.special.gammainc(1.0, 2.0)), 4) => 0.8647", floating=True, check=broadcasts,
    partials=(lambda a, x, out: _by_a(a, x), lambda a, x, out: _density(a, x, 1.0)),
    samples=binary_floats(2.0, 5.0, 0.2, 1.8), errors=shapes_differ, reference=scipy_special("gammainc"),
)  # fmt: skip
gammaincc = binary(
    "gammaincc", widened(torch.special.gammaincc),
    "Return the regularized upper incomplete gamma function, 1 - P(a, x).",
    "round(float(gt.special.gammaincc(1.0, 2.0)), 4) => 0.1353", floating=True, check=broadcasts,
    partials=(lambda a, x, out: neg(_by_a(a, x)), lambda a, x, out: neg(_density(a, x, 1.0))),
    samples=binary_floats(2.0, 5.0, 0.2, 1.8), errors=shapes_differ, reference=scipy_special("gammaincc"),
)  # fmt: skip
