"""Elementwise operations, each in one declaration with its partial derivatives."""

from __future__ import annotations

import builtins
import cmath
import math
from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core.backends.interpreter.remainders import remainder as exact_remainder
from gtrace.core.base import tree
from gtrace.core.base.errors import DtypeError, message
from gtrace.core.ir import wide_unsigned
from gtrace.core.ir.cpp import Cpp, of_floats
from gtrace.core.ir.op import REGISTRY, define
from gtrace.core.ops import exact_arithmetic
from gtrace.core.ops.batching import unchanged
from gtrace.core.ops.checks import complex_only, no_booleans
from gtrace.core.ops.complex_parts import conj, imag, real
from gtrace.core.ops.declare import Array, Aval, Sample
from gtrace.core.ops.logic import equal, greater, less, less_equal, logical_and, where
from gtrace.core.ops.operands import binary, cast, promote, unary
from gtrace.core.ops.samples import (
    binary_floats,
    binary_integers,
    both,
    complex_uniform,
    shapes_differ,
    unary_floats,
    uniform,
)
from gtrace.core.ops.shape import as_int, constant
from gtrace.core.trace.bind import bind, distinct, emit
from gtrace.core.trace.convert import lift, python_scalar
from gtrace.core.trace.promotion import default_dtype
from gtrace.core.trace.record import thread

__all__ = [
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "negative", "reciprocal", "power", "pow",
    "maximum", "minimum", "clip", "absolute", "abs", "sign", "floor", "ceil", "trunc", "round", "exp", "expm1",
    "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "square", "stop_gradient",
]  # fmt: skip

_STEP = "piecewise constant: the derivative is zero wherever it exists"


# -- arithmetic

neg = unary(
    "neg", exact_arithmetic.negative, "Return -x.",
    "gt.negative(gt.array([1., -2.])) => Array([-1.,  2.], dtype=float32)",
    algebraic=True, floating=False, direct=exact_arithmetic.unless_complex(torch.neg), check=no_booleans,
    partials=(lambda x, out: -1,), reference=numpy.negative, cpp=Cpp("-{0}", "if"), jax="neg", aten="neg",
)  # fmt: skip
add = binary(
    "add", exact_arithmetic.by_parts(torch.add), "Return x + y.",
    "gt.add(gt.array([1., 2.]), 1) => Array([2., 3.], dtype=float32)",
    algebraic=True, commutative=True, sum=True, fresh=True, host_numbers=True,
    direct=exact_arithmetic.unless_complex(torch.add),
    partials=(lambda x, y, out: 1, lambda x, y, out: 1), samples=both(binary_floats(), binary_integers()),
    reference=numpy.add, cpp=Cpp("{0} + {1}", boolean="{0} | {1}"), jax="add",
)  # fmt: skip
subtract = binary(
    "sub", exact_arithmetic.by_parts(torch.sub), "Return x - y.",
    "gt.subtract(gt.array([1., 2.]), 1) => Array([0., 1.], dtype=float32)",
    algebraic=True, sum=True, fresh=True, check=no_booleans, host_numbers=True,
    direct=exact_arithmetic.unless_complex(torch.sub),
    partials=(lambda x, y, out: 1, lambda x, y, out: -1), samples=both(binary_floats(), binary_integers()),
    reference=numpy.subtract, cpp=Cpp("{0} - {1}", "if"), jax="sub",
)  # fmt: skip
multiply = binary(
    "mul", torch.mul, "Return x * y.", "gt.multiply(gt.array([1., 2.]), 3) => Array([3., 6.], dtype=float32)",
    algebraic=True, commutative=True, product=True, fresh=True, host_numbers=True,
    partials=(lambda x, y, out: y, lambda x, y, out: x), samples=both(binary_floats(), binary_integers()),
    reference=numpy.multiply, cpp=Cpp("{0} * {1}", boolean="{0} & {1}"), jax="mul",
)  # fmt: skip
divide = binary(
    "div", torch.div, "Return x / y, floating for any dtype.",
    "gt.divide(gt.array([1, 3]), 2) => Array([0.5, 1.5], dtype=float32)", algebraic=True, floating=True, fresh=True,
    host_numbers=True,
    partials=(lambda x, y, out: _inverse(y), lambda x, y, out: neg(divide(out, y))),
    samples=both(binary_floats(low2=0.5), binary_integers(low2=1)), reference=numpy.divide,
    cpp=Cpp("{0} / {1}", "f", 4), jax="div",
)  # fmt: skip


def _inverse(y: Any) -> Any:
    # keep a Python number, because an array would round it to float32
    if type(y) is Array:
        return reciprocal(y)
    if y:
        return 1.0 / y
    return builtins.complex(math.nan, math.nan) if isinstance(y, builtins.complex) else math.copysign(math.inf, y)


floor_divide = binary(
    "floor_divide", torch.floor_divide, "Return the floor of x / y. Integers divided by zero raise when run.",
    "gt.floor_divide(gt.array([7, -7]), 2) => Array([ 3, -4], dtype=int64)", check=no_booleans, nondiff=_STEP,
    host_numbers=True,
    samples=both(binary_floats(low2=0.5), binary_integers(low2=1)), reference=numpy.floor_divide,
    unsigned=wide_unsigned.quotient, cpp=Cpp("floor_divide<{T}>({0}, {1}, refused)", "if", 10),
)  # fmt: skip
remainder = binary(
    "remainder", exact_remainder, "Return x - floor(x / y) * y, with the sign of y.",
    "gt.remainder(gt.array([7, -7]), 4) => Array([3, 1], dtype=int64)", check=no_booleans, host_numbers=True,
    partials=(lambda x, y, out: 1, lambda x, y, out: neg(floor_divide(x, y))),
    samples=both(binary_floats(low2=0.5), binary_integers(low2=1)), reference=numpy.remainder,
    unsigned=wide_unsigned.remainder, cpp=Cpp("remainder<{T}>({0}, {1}, refused)", "if", 10),
)  # fmt: skip


_BITS = {
    torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16,
}  # fmt: skip


def _extreme(
    name: str, pick: Callable[..., torch.Tensor], combine: Callable[..., torch.Tensor], zero: int,
    beats: Callable[[Any, Any], Array], doc: str, example: str, reference: Any,
) -> Callable[[Any, Any], Array]:  # fmt: skip
    """Declare the maximum or minimum, in which 0.0 is larger than -0.0, as in IEEE 754-2019. torch may return either.

    Args:
        combine: makes the result's sign bit from the operands' sign bits.
        zero: the sign of the result for zeros of both signs.
    """

    def impl(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = pick(x, y)
        if not out.is_floating_point():
            return out
        one = torch.ones((), dtype=x.dtype, device=x.device)
        return torch.copysign(out, torch.copysign(one, x) + torch.copysign(one, y) + zero)

    def direct(avals: tuple[Aval, ...]) -> Callable[..., torch.Tensor] | None:
        dtype = avals[0].dtype
        if dtype not in _BITS:
            return None
        bits = _BITS[dtype]

        def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out = pick(x, y)
            if y.ndim == 0 and y.device.type == "cpu" and y.item() != 0:
                return out  # at most one operand is zero, so torch's result is right
            return out.copysign_(combine(x.view(bits), y.view(bits)).view(dtype))

        return call

    return binary(
        name, impl, doc, example, direct=direct, commutative=True, host_numbers=True, unsigned=wide_unsigned.ORDER,
        partials=(lambda x, y, out: _wins(x, y, out, beats), lambda x, y, out: _wins(y, x, out, beats)),
        samples=both(binary_floats(), binary_integers()), errors=shapes_differ, reference=reference,
        cpp=(Cpp(f"{name}<{{T}}>({{0}}, {{1}})", "if", 4), Cpp("{0} | {1}" if zero == 1 else "{0} & {1}", "b")),
        jax=name[:3],
    )  # fmt: skip


maximum = _extreme(
    "maximum", torch.maximum, torch.bitwise_and, 1, greater, "Return the larger of x and y; NaN if either is NaN.",
    "gt.maximum(gt.array([1., 5.]), 3) => Array([3., 5.], dtype=float32)", numpy.maximum,
)  # fmt: skip
minimum = _extreme(
    "minimum", torch.minimum, torch.bitwise_or, -1, less, "Return the smaller of x and y; NaN if either is NaN.",
    "gt.minimum(gt.array([1., 5.]), 3) => Array([1., 3.], dtype=float32)", numpy.minimum,
)  # fmt: skip


def _wins(x: Any, y: Any, out: Array, beats: Callable[[Any, Any], Array]) -> Array:
    """Return the share of `x` in the derivative: 1, 0, or 1/2 at a tie."""
    return add(cast(beats(x, y), out.aval.dtype), multiply(cast(equal(x, y), out.aval.dtype), 0.5))


def _whole_power(y: int) -> str:
    return f"whole_power({{0}}, {y})"


def _float_power(y: int) -> str:
    power = {0: "{T}(1)", 1: "{0}", 2: "{0} * {0}", 3: "{0} * {0} * {0}"}.get(builtins.abs(y))
    if power is None or y < -2:
        return f"m::pow({{0}}, {{T}}({y}))"
    return power if y >= 0 else f"{{T}}(1) / ({power})"


_integer_pow = define(
    "integer_pow", lambda x, y: torch.pow(x, y), params=("y",), elementwise=True, algebraic=True,
    partials=(lambda x, out, y: multiply(power(x, y - 1), float(y)) if y else constant(0.0, x.aval),),
    samples=lambda: [*[Sample((uniform(-2, 2, 3, 4), y)) for y in (2, 3, 0, 1)], Sample((uniform(0.5, 2, 4), -2))],
    reference=numpy.power, user=lambda x, y: power(x, y), cpp=(Cpp(_float_power, "f", 4), Cpp(_whole_power, "i", 4)),
)  # fmt: skip
_pow = binary(
    "pow", exact_arithmetic.power, "Return x ** y for arrays x and y.",
    "gt.power(gt.array([2., 3.]), gt.array([3., 2.])) => Array([8., 9.], dtype=float32)", algebraic=True,
    direct=exact_arithmetic.unless_complex(torch.pow), check=no_booleans, host_numbers=True,
    partials=(lambda x, y, out: _base_partial(x, y), lambda x, y, out: _exponent_partial(x, out)),
    samples=binary_floats(low=0.5), reference=numpy.power, unsigned=wide_unsigned.raised,
    cpp=Cpp("power<{T}>({0}, {1})", "if", 20), jax="pow",
)  # fmt: skip


def _base_partial(x: Array, y: Any) -> Array:
    if type(y) is not Array:
        return multiply(_pow(x, y - 1.0), y) if y else constant(0.0, x.aval)
    info, size = torch.finfo(x.aval.dtype), absolute(x)
    # where x ** -1 * log(x) may be infinite, and times 0 NaN, a constant is x ** -1 in the derivative by y; but
    # that is NaN for x <= 0, like the logarithm
    steep = logical_and(less_equal(size, -math.log(info.tiny) * info.tiny), equal(y, 0.0))
    base = where(steep, where(greater(real(x), 0.0), 0.5, -0.5), x)
    half = stop_gradient(minimum(divide(0.5, size), info.max))
    return multiply(where(steep, multiply(y, half), y), _pow(base, subtract(y, 1.0)))


def _exponent_partial(x: Any, out: Array) -> Array:
    # x**y log x; for x = 0 its limit from the right for y > 0, which is 0
    if type(x) is not Array:
        if isinstance(x, complex):
            return multiply(out, cmath.log(x) if x else 0.0)
        return multiply(out, math.log(x) if x > 0 else 0.0 if x == 0 else math.nan)
    zero = equal(x, 0.0)
    return multiply(out, where(zero, 0.0, log(where(zero, 1.0, x))))


def power(x: Any, y: Any) -> Array:
    """Return x ** y. A Python integer exponent is part of the program, so x ** 2 is a square.

    >>> gt.power(gt.array([1., 2., 3.]), 2)
    Array([1., 4., 9.], dtype=float32)
    """
    if y.__class__ is int and x.__class__ is Array:
        instr = _integer_pow.table.get(((y,), x.aval))
        if instr is not None:
            return emit(instr, (x,))
    if isinstance(y, int) and not isinstance(y, bool) and python_scalar(x) is None:
        base = lift("pow", x)
        if y < 0 and not base.aval.floating:
            raise DtypeError(message("pow", "an exponent >= 0 for integers", str(y), "Use x.astype(gt.float32) ** y."))
        if y == 1 and base.aval.dtype is not torch.bool:
            return distinct(base)
        (base,) = promote("pow", cast(base, default_dtype(int)) if base.aval.dtype is torch.bool else base)  # type: ignore[assignment]
        return bind(_integer_pow, (base,), (y,))
    out = _pow(x, y)
    if out.aval.weak and type(y) is Array and not (y.aval.weak or y.aval.floating):
        # as in JAX, a weak base gives a weak result only for a known scalar exponent
        return cast(out, out.aval.dtype) if y.shape or thread.trace.capture is not None else out
    return out


# -- rounding and signs


def _sign(x: torch.Tensor) -> torch.Tensor:
    # torch.sign of NaN is 0
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


absolute = unary(
    "abs", torch.abs, "Return |x|, which is real for complex x too.",
    "gt.abs(gt.array([-1.5, 2.])) => Array([1.5, 2. ], dtype=float32)", floating=False,
    of_complex=lambda x: bind(_modulus, (x,)), check=no_booleans, partials=(lambda x, out: sign(x),),
    reference=numpy.abs, unsigned=wide_unsigned.itself, cpp=Cpp("absolute<{T}>({0})", "if"), jax="abs", aten="abs",
)  # fmt: skip
sign = unary(
    "sign", _sign, "Return -1, 0 or 1 by the sign of x; NaN for NaN. For complex x: x / abs(x), and 0 for 0.",
    "gt.sign(gt.array([-2., 0., 3.])) => Array([-1.,  0.,  1.], dtype=float32)", floating=False,
    of_complex=lambda x: _direction(x), check=no_booleans, nondiff=_STEP, reference=numpy.sign,
    unsigned=wide_unsigned.positive, cpp=Cpp("sign<{T}>({0})", "if", 3), jax="sign",
)  # fmt: skip
_modulus = define(
    "modulus", torch.abs, elementwise=True, complex=True, check=complex_only,
    vjp=lambda ct, needed, x, out: (multiply(ct, conj(_direction(x))),),
    jvp=lambda ts, x, out: real(multiply(ts[0], conj(_direction(x)))),
    samples=lambda: [Sample((complex_uniform(3, 4),)), Sample((complex_uniform(),))],
    reference=numpy.abs, user=lambda x: absolute(x), jax="abs",
)  # fmt: skip


def _direction(x: Array) -> Array:
    return bind(REGISTRY["complex_sign"], (x,))


floor = unary(
    "floor", torch.floor, "Return the largest integer <= x.",
    "gt.floor(gt.array([1.5, -1.5])) => Array([ 1., -2.], dtype=float32)", floating=False, check=no_booleans,
    nondiff=_STEP, reference=numpy.floor, cpp=(Cpp("m::floor({0})", "f"), Cpp("{0}", "i")), jax="floor", aten="floor",
)  # fmt: skip
ceil = unary(
    "ceil", torch.ceil, "Return the smallest integer >= x.",
    "gt.ceil(gt.array([1.5, -1.5])) => Array([ 2., -1.], dtype=float32)", floating=False, check=no_booleans,
    nondiff=_STEP, reference=numpy.ceil, cpp=(Cpp("m::ceil({0})", "f"), Cpp("{0}", "i")), jax="ceil", aten="ceil",
)  # fmt: skip
trunc = unary(
    "trunc", torch.trunc, "Return x without its fraction.",
    "gt.trunc(gt.array([1.5, -1.5])) => Array([ 1., -1.], dtype=float32)", floating=False, check=no_booleans,
    nondiff=_STEP, reference=numpy.trunc, cpp=(Cpp("m::trunc({0})", "f"), Cpp("{0}", "i")), aten="trunc",
)  # fmt: skip
rint = unary(
    "round", torch.round, "Return the nearest integer, halves to even.",
    "gt.round(gt.array([0.5, 1.5, 2.4])) => Array([0., 2., 2.], dtype=float32)", floating=False,
    of_complex=lambda x: round(x), check=no_booleans, nondiff=_STEP,
    reference=numpy.round, cpp=(Cpp("m::nearbyint({0})", "f"), Cpp("{0}", "i")),
)  # fmt: skip

# -- exponentials and logarithms

exp = unary(
    "exp", torch.exp, "Return e ** x.", "round(float(gt.exp(0.5)), 4) => 1.6487", fresh=True,
    partials=(lambda x, out: out,), reference=numpy.exp, cpp=of_floats("exp"), jax="exp", aten="exp",
)  # fmt: skip
expm1 = unary(
    "expm1", exact_arithmetic.expm1, "Return e ** x - 1, exact for small x.",
    "round(float(gt.expm1(0.5)), 4) => 0.6487", direct=exact_arithmetic.unless_complex(torch.expm1),
    partials=(lambda x, out: add(out, 1.0),), reference=numpy.expm1, cpp=of_floats("expm1"), jax="expm1", aten="expm1",
)  # fmt: skip
log = unary(
    "log", torch.log, "Return the natural logarithm.", "round(float(gt.log(0.5)), 4) => -0.6931",
    partials=(lambda x, out: reciprocal(x),), samples=unary_floats(0.5, 3.0), reference=numpy.log,
    cpp=of_floats("log"), jax="log", aten="log",
)  # fmt: skip
log1p = unary(
    "log1p", exact_arithmetic.log1p, "Return log(1 + x), exact for small x.",
    "round(float(gt.log1p(0.5)), 4) => 0.4055", direct=exact_arithmetic.unless_complex(torch.log1p),
    partials=(lambda x, out: reciprocal(add(x, 1.0)),), samples=unary_floats(-0.5, 3.0), reference=numpy.log1p,
    cpp=of_floats("log1p"), jax="log1p", aten="log1p",
)  # fmt: skip
log2 = unary(
    "log2", torch.log2, "Return the logarithm to base 2.",
    "gt.log2(gt.array([1., 8.])) => Array([0., 3.], dtype=float32)",
    partials=(lambda x, out: divide(1.0 / math.log(2.0), x),), samples=unary_floats(0.5, 3.0), reference=numpy.log2,
    cpp=of_floats("log2"), aten="log2",
)  # fmt: skip
log10 = unary(
    "log10", torch.log10, "Return the logarithm to base 10.",
    "gt.log10(gt.array([1., 100.])) => Array([0., 2.], dtype=float32)",
    partials=(lambda x, out: divide(1.0 / math.log(10.0), x),), samples=unary_floats(0.5, 3.0), reference=numpy.log10,
    cpp=of_floats("log10"), aten="log10",
)  # fmt: skip
sqrt = unary(
    "sqrt", torch.sqrt, "Return the square root.", "gt.sqrt(gt.array([4., 9.])) => Array([2., 3.], dtype=float32)",
    algebraic=True, partials=(lambda x, out: divide(0.5, out),), samples=unary_floats(0.5, 3.0), reference=numpy.sqrt,
    cpp=of_floats("sqrt", 4), jax="sqrt", aten="sqrt",
)  # fmt: skip
rsqrt = unary(
    "rsqrt", torch.rsqrt, "Return 1 / sqrt(x).", "gt.rsqrt(gt.array([1., 4.])) => Array([1. , 0.5], dtype=float32)",
    algebraic=True, partials=(lambda x, out: multiply(divide(out, x), -0.5),), samples=unary_floats(0.5, 3.0),
    reference=lambda x: 1 / numpy.sqrt(x), cpp=Cpp("{T}(1) / m::sqrt({0})", "f", 6), jax="rsqrt", aten="rsqrt",
)  # fmt: skip
reciprocal = unary(
    "reciprocal", torch.reciprocal, "Return 1 / x.",
    "gt.reciprocal(gt.array([2., 4.])) => Array([0.5 , 0.25], dtype=float32)", algebraic=True,
    partials=(lambda x, out: neg(multiply(out, out)),), samples=unary_floats(0.5, 3.0), reference=numpy.reciprocal,
    cpp=Cpp("{T}(1) / {0}", "f", 4), aten="reciprocal",
)  # fmt: skip
square = unary(
    "square", torch.square, "Return x * x.", "gt.square(gt.array([2., -3.])) => Array([4., 9.], dtype=float32)",
    algebraic=True, floating=False, fresh=True, check=no_booleans, partials=(lambda x, out: multiply(x, 2.0),),
    reference=numpy.square, cpp=Cpp("{0} * {0}", "if"), jax="square",
)  # fmt: skip

# -- limits and rounding


def squared_magnitude(x: Array) -> Array:
    """Return the squared magnitudes."""
    return add(square(real(x)), square(imag(x))) if x.aval.complex else square(x)


def clip(x: Any, min: Any = None, max: Any = None) -> Array:  # noqa: A002 - the names of the array API
    """Return x limited to [min, max]; None means no limit. The derivative at a bound is one half.

    >>> gt.clip(gt.array([-2., 0.5, 2.]), -1, 1)
    Array([-1. ,  0.5,  1. ], dtype=float32)
    """
    out = lift("clip", x)
    if out.aval.complex:
        raise DtypeError(message("clip", "real numbers", repr(out.aval), "Clip x.real, x.imag or gt.abs(x)."))
    if min is None and max is None:
        return distinct(out)
    if min is not None:
        out = maximum(out, min)
    if max is not None:
        out = minimum(out, max)
    return out


def round(x: Any, decimals: int = 0) -> Array:  # noqa: A001 - the name of the array API
    """Return x rounded to `decimals` digits, halves to even.

    >>> gt.round(gt.array([0.5, 1.5, 2.345]), 2)
    Array([0.5 , 1.5 , 2.34], dtype=float32)
    """
    x, places = lift("round", x), as_int("round", "decimals", decimals)
    if x.aval.complex:
        return bind(REGISTRY["complex"], (round(real(x), places), round(imag(x), places)))
    if places == 0 or (places > 0 and not x.aval.floating):
        return rint(x)
    wide = x if x.aval.floating else cast(x, torch.float64)
    digits = math.log10(torch.finfo(wide.aval.dtype).max)
    if builtins.abs(places) > digits:  # it has no digits there, or only some that do not count
        return stop_gradient(x) if places > 0 else cast(multiply(x, 0), x.aval.dtype)
    scale = 10.0 ** builtins.abs(places)  # powers of ten above 1 are exact, those below are not
    near = divide(rint(multiply(x, scale)), scale) if places > 0 else multiply(rint(divide(wide, scale)), scale)
    # where the scaled number overflows, x has no more digits
    return cast(where(less(absolute(near), math.inf), near, stop_gradient(wide)), x.aval.dtype)


# -- gradient markers

_stop_gradient = define(
    "stop_gradient", lambda x: x, identity=True, batch=unchanged, nondiff="its purpose is to have none",
    samples=unary_floats(), user=lambda x: stop_gradient(x), reference=lambda x: x,
    cpp=Cpp("{0}", "bifu"), jax="stop_gradient",
)  # fmt: skip


def stop_gradient(x: Any) -> Any:
    """Return x, an array or a pytree of arrays, as a constant for derivatives.

    >>> gt.grad(lambda x: x * gt.stop_gradient(x))(3.0)
    Array(3., dtype=float32)
    """
    if x.__class__ is Array:
        return bind(_stop_gradient, (x,))
    return tree.map(lambda leaf: bind(_stop_gradient, (lift("stop_gradient", leaf),)), x)


_marker = define(
    "identity", lambda x: x, identity=True, vjp=lambda ct, needed, x, out: (ct,), linear=True, batch=unchanged,
    samples=unary_floats(), user=lambda x: identity(x), reference=lambda x: x, cpp=Cpp("{0}"),
)  # fmt: skip


def identity(x: Any) -> Array:
    """Return x as another Array.

    >>> gt.nn.identity(gt.array(2.0))
    Array(2., dtype=float32)
    """
    return bind(_marker, (lift("identity", x),))


# -- aliases of the array API and NumPy

abs = absolute  # noqa: A001 - the name of the array API
negative, pow = neg, power  # noqa: A001 - the name of the array API
