"""Elementwise float functions: signs, neighbours, lengths, and sums of exponentials without overflow."""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch

from gtrace.core.backends.interpreter.remainders import fmod as exact_fmod
from gtrace.core.ir import wide_unsigned
from gtrace.core.ir.cpp import Cpp, of_floats
from gtrace.core.ops.checks import counts_only, no_booleans, real_only
from gtrace.core.ops.declare import Array, lift
from gtrace.core.ops.draw_functions import nextafter
from gtrace.core.ops.elementwise import divide, exp, floor_divide, multiply, neg, sign, square, subtract, trunc
from gtrace.core.ops.logic import equal, where
from gtrace.core.ops.operands import binary, unary
from gtrace.core.ops.samples import binary_floats, binary_integers, both, floats_refused, unary_floats
from gtrace.core.ops.shape import constant
from gtrace.core.trace.bind import distinct

__all__ = ["copysign", "hypot", "logaddexp", "nextafter", "positive"]


def positive(x: Any) -> Array:
    """Return +x, which is x as an array.

    Raises:
        DtypeError: x is boolean, as in NumPy.

    >>> gt.positive(gt.array([1., -2.]))
    Array([ 1., -2.], dtype=float32)
    """
    x = lift("positive", x)
    no_booleans("positive", (x.aval,))
    return distinct(x)


copysign = binary(
    "copysign", torch.copysign, "Return x with the sign of y, which may be -0.0.",
    "gt.copysign(gt.array([1., -2.]), -1.0) => Array([-1., -2.], dtype=float32)", floating=True,
    partials=(lambda x, y, out: multiply(sign(x), sign(out)), lambda x, y, out: constant(0.0, out.aval)),
    samples=binary_floats(low=0.5), reference=numpy.copysign, cpp=Cpp("m::copysign({0}, {1})", "f"),
)  # fmt: skip


def _share(x: Any, out: Array) -> Array:
    # 0 / 0 at the origin, where the derivative does not exist: return 0
    return divide(x, where(equal(out, 0.0), 1.0, out))


hypot = binary(
    "hypot", torch.hypot, "Return sqrt(x ** 2 + y ** 2), without overflow. The derivative at the origin is 0.",
    "gt.hypot(gt.array([3., 5.]), gt.array([4., 12.])) => Array([ 5., 13.], dtype=float32)", floating=True,
    commutative=True, partials=(lambda x, y, out: _share(x, out), lambda x, y, out: _share(y, out)),
    samples=binary_floats(low=0.5), reference=numpy.hypot, cpp=Cpp("m::hypot({0}, {1})", "f", 10),
)  # fmt: skip


def _weight(x: Any, out: Array) -> Array:
    # the difference of equal infinities is NaN
    return exp(where(equal(x, out), 0.0, subtract(x, out)))


def _logaddexp_impl(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.logaddexp(x, y)
    if not out.is_complex():
        return out
    turns = torch.ceil((out.imag - math.pi) / (2 * math.pi))  # of complex numbers, torch returns another branch
    return torch.complex(out.real, out.imag - turns * (2 * math.pi))


logaddexp = binary(
    "logaddexp", _logaddexp_impl, "Return log(exp(x) + exp(y)), without overflow.",
    "round(float(gt.logaddexp(0.5, 1000.0)), 4) => 1000.0", floating=True, commutative=True,
    partials=(lambda x, y, out: _weight(x, out), lambda x, y, out: _weight(y, out)), samples=binary_floats(),
    reference=numpy.logaddexp, cpp=Cpp("logaddexp<{T}>({0}, {1})", "f", 20),
)  # fmt: skip


# -- primitives with NumPy's names


def _cbrt_impl(x: torch.Tensor) -> torch.Tensor:
    out = torch.copysign(torch.abs(x) ** (1.0 / 3.0), x)
    # one Newton step makes roots of cubes exact; zeros, infinities and subnormals stay distinct
    square_ = out * out
    step = (square_ * out - x) / (3.0 * square_)
    return torch.where(torch.isfinite(step), out - step, out)


cbrt = unary(
    "cbrt", _cbrt_impl, "Return the real cube root.",
    "gt.numpy.cbrt(gt.array([8., -27.])) => Array([ 2., -3.], dtype=float32)",
    partials=(lambda x, out: divide(1.0 / 3.0, square(out)),), samples=unary_floats(0.5, 3.0), reference=numpy.cbrt,
    jax="cbrt",
)  # fmt: skip
exp2 = unary(
    "exp2", torch.exp2, "Return 2 ** x.", "gt.numpy.exp2(gt.array([3., -1.])) => Array([8. , 0.5], dtype=float32)",
    partials=(lambda x, out: multiply(out, 0.6931471805599453),), reference=numpy.exp2,
    cpp=of_floats("exp2"), jax="exp2",
)  # fmt: skip
fmod = binary(
    "fmod", exact_fmod, "Return x - trunc(x / y) * y, with the sign of x.",
    "gt.numpy.fmod(gt.array([7., -7.]), 4) => Array([ 3., -3.], dtype=float32)", check=no_booleans,
    partials=(lambda x, y, out: 1, lambda x, y, out: neg(trunc(divide(x, y)))),
    samples=both(binary_floats(low2=0.5), binary_integers(low2=1)), reference=numpy.fmod,
    unsigned=wide_unsigned.remainder, cpp=Cpp("fmod_<{T}>({0}, {1}, refused)", "if", 10), jax="rem",
)  # fmt: skip


_DIVISORS: dict[str, Any] = {"commutative": True, "check": counts_only, "nondiff": "it is defined on integers",
                             "samples": binary_integers(), "errors": floats_refused()}  # fmt: skip


def _gcd(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # torch.gcd is negative for the least integer, whose absolute value overflows
    found = torch.gcd(x, y)
    return torch.abs(found) if found.dtype.is_signed else found


gcd = binary(
    "gcd", _gcd, "Return the greatest common divisor, >= 0.",
    "gt.numpy.gcd(gt.array([12, -9]), 6) => Array([6, 3], dtype=int64)", reference=numpy.gcd,
    unsigned=wide_unsigned.greatest_divisor, **_DIVISORS, cpp=Cpp("gcd<{T}>({0}, {1})", "i", 60),
)  # fmt: skip


def lcm(x: Any, y: Any) -> Array:
    """Return the least common multiple of integers, >= 0.

    >>> gnp.lcm(gnp.array([4, 0]), 6)
    Array([12,  0], dtype=int64)
    """
    divisor = gcd(x, y)
    zero = equal(divisor, 0)
    x, y = (z if z.aval.dtype is torch.bool else abs(z) for z in (lift("lcm", x), lift("lcm", y)))
    return where(zero, 0, multiply(floor_divide(x, where(zero, 1, divisor)), y))  # it may wrap around


def _exponent_impl(x: torch.Tensor) -> torch.Tensor:
    # from the bits: for float64, the vector code of Inductor for torch.frexp does not compile (torch 2.9)
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    kind, bits, bias = (torch.int64, 52, 1022) if wide.dtype is torch.float64 else (torch.int32, 23, 126)
    tiny = torch.abs(wide) < torch.finfo(wide.dtype).smallest_normal
    biased = (torch.where(tiny, wide * 2.0**bits, wide).view(kind) >> bits) & (2 * bias + 3)
    exponent = biased - torch.where(tiny, bias + bits, bias)
    return torch.where(torch.isfinite(wide) & (wide != 0), exponent, 0).to(torch.int32)


exponent_of = unary(
    "frexp_exponent", _exponent_impl, "Return the exponent e of x = m * 2 ** e, 0.5 <= |m| < 1.",
    "gt.numpy.frexp(gt.array([8., 0.3]))[1] => Array([ 4, -1], dtype=int32)",
    nondiff="piecewise constant: the derivative is zero wherever it exists", check=real_only,
    reference=lambda x: numpy.frexp(x)[1],
)  # fmt: skip
