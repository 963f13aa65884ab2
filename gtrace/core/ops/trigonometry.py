"""Trigonometric and hyperbolic functions, each in one declaration with its partial derivatives."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace.core.ir.cpp import Cpp, of_floats
from gtrace.core.ops import exact_arithmetic
from gtrace.core.ops.declare import Array
from gtrace.core.ops.elementwise import add, divide, neg, reciprocal, rsqrt, square, subtract
from gtrace.core.ops.hyperbolic import finite
from gtrace.core.ops.operands import binary, unary
from gtrace.core.ops.samples import binary_floats, unary_floats

__all__ = [
    "sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh", "arcsinh", "arccosh",
    "arctanh", "asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh",
]  # fmt: skip

sin = unary(
    "sin", torch.sin, "Return the sine; x in radians.", "round(float(gt.sin(0.5)), 4) => 0.4794",
    partials=(lambda x, out: cos(x),), reference=numpy.sin, cpp=of_floats("sin"), jax="sin", aten="sin",
)  # fmt: skip
cos = unary(
    "cos", torch.cos, "Return the cosine; x in radians.", "round(float(gt.cos(0.5)), 4) => 0.8776",
    partials=(lambda x, out: neg(sin(x)),), reference=numpy.cos, cpp=of_floats("cos"), jax="cos", aten="cos",
)  # fmt: skip
tan = unary(
    "tan", torch.tan, "Return the tangent; x in radians.", "round(float(gt.tan(0.5)), 4) => 0.5463",
    partials=(lambda x, out: add(square(out), 1.0),), samples=unary_floats(-1.2, 1.2), reference=numpy.tan,
    cpp=of_floats("tan"), jax="tan", aten="tan",
)  # fmt: skip
arcsin = unary(
    "asin", torch.asin, "Return the angle in radians whose sine is x.", "round(float(gt.arcsin(0.5)), 4) => 0.5236",
    partials=(lambda x, out: rsqrt(subtract(1.0, square(x))),), samples=unary_floats(-0.8, 0.8), reference=numpy.arcsin,
    cpp=of_floats("asin"), jax="asin", aten="asin",
)  # fmt: skip
arccos = unary(
    "acos", exact_arithmetic.arccos, "Return the angle in radians whose cosine is x.",
    "round(float(gt.arccos(0.5)), 4) => 1.0472", direct=exact_arithmetic.unless_complex(torch.acos),
    partials=(lambda x, out: neg(rsqrt(subtract(1.0, square(x)))),), samples=unary_floats(-0.8, 0.8),
    reference=numpy.arccos, cpp=of_floats("acos"), jax="acos", aten="acos",
)  # fmt: skip
arctan = unary(
    "atan", torch.atan, "Return the angle in radians whose tangent is x.", "round(float(gt.arctan(0.5)), 4) => 0.4636",
    partials=(lambda x, out: reciprocal(add(square(x), 1.0)),), reference=numpy.arctan,
    cpp=of_floats("atan"), jax="atan", aten="atan",
)  # fmt: skip
arctan2 = binary(
    "atan2", torch.atan2,
    "Return the angle in radians of the point (y, x), called as arctan2(y, x). Its derivatives at (0, 0) are NaN, as in"
    " JAX; those of torch.atan2 are 0.",
    "round(float(gt.arctan2(1.0, -1.0)), 4) => 2.3562",
    floating=True,
    partials=(
        lambda y, x, out: divide(x, add(_squared(x), _squared(y))),
        lambda y, x, out: neg(divide(y, add(_squared(x), _squared(y)))),
    ),
    samples=binary_floats(low=0.5), reference=numpy.arctan2, cpp=Cpp("m::atan2({0}, {1})", "f", 20), jax="atan2",
)  # fmt: skip


def _squared(x: Any) -> Any:
    return square(x) if type(x) is Array else x * x  # a Python number is not rounded to float32


sinh = unary(
    "sinh", finite(torch.sinh), "Return the hyperbolic sine.", "round(float(gt.sinh(0.5)), 4) => 0.5211",
    partials=(lambda x, out: cosh(x),), reference=numpy.sinh, cpp=of_floats("sinh"), jax="sinh", aten="sinh",
)  # fmt: skip
cosh = unary(
    "cosh", finite(torch.cosh), "Return the hyperbolic cosine.", "round(float(gt.cosh(0.5)), 4) => 1.1276",
    partials=(lambda x, out: sinh(x),), reference=numpy.cosh, cpp=of_floats("cosh"), jax="cosh", aten="cosh",
)  # fmt: skip
tanh = unary(
    "tanh", torch.tanh, "Return the hyperbolic tangent.", "round(float(gt.tanh(0.5)), 4) => 0.4621", fresh=True,
    partials=(lambda x, out: subtract(1.0, square(out)),), reference=numpy.tanh, cpp=of_floats("tanh"), jax="tanh",
    aten="tanh",
)  # fmt: skip
arcsinh = unary(
    "asinh", torch.asinh, "Return the inverse hyperbolic sine.", "round(float(gt.arcsinh(0.5)), 4) => 0.4812",
    partials=(lambda x, out: rsqrt(add(square(x), 1.0)),), reference=numpy.arcsinh, cpp=of_floats("asinh"), jax="asinh",
    aten="asinh",
)  # fmt: skip
arccosh = unary(
    "acosh", torch.acosh, "Return the inverse hyperbolic cosine.", "round(float(gt.arccosh(2.0)), 4) => 1.317",
    partials=(lambda x, out: rsqrt(subtract(square(x), 1.0)),), samples=unary_floats(1.5, 3.0), reference=numpy.arccosh,
    cpp=of_floats("acosh"), jax="acosh", aten="acosh",
)  # fmt: skip
arctanh = unary(
    "atanh", torch.atanh, "Return the inverse hyperbolic tangent.", "round(float(gt.arctanh(0.5)), 4) => 0.5493",
    partials=(lambda x, out: reciprocal(subtract(1.0, square(x))),), samples=unary_floats(-0.8, 0.8),
    reference=numpy.arctanh, cpp=of_floats("atanh"), jax="atanh", aten="atanh",
)  # fmt: skip

# the names of the array API
acos, acosh, asin, asinh, atan, atan2, atanh = arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh
