"""Comparisons, logical and bitwise operations, which have no derivatives, and `where`."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace.core.base.exact_keys import is_other_nan
from gtrace.core.ir import wide_unsigned
from gtrace.core.ir.cpp import Cpp
from gtrace.core.ir.graph import Scalar
from gtrace.core.ir.op import Instr, define
from gtrace.core.ops.checks import counts_only, integers_only
from gtrace.core.ops.declare import ORDER, Array, Aval, Sample
from gtrace.core.ops.operands import binary, promote, unary
from gtrace.core.ops.samples import (
    binary_booleans,
    binary_floats,
    binary_integers,
    both,
    floats_refused,
    shapes_differ,
    unary_floats,
    unary_integers,
    uniform,
)
from gtrace.core.trace.bind import bind, emit
from gtrace.core.trace.convert import lift, number_operand, scalar_aval
from gtrace.core.trace.promotion import meeting

__all__ = [
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "isfinite", "isinf", "isnan", "signbit",
    "where", "logical_and", "logical_not", "logical_or", "logical_xor", "bitwise_and", "bitwise_invert",
    "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
]  # fmt: skip

_TRUTH = "the result is a truth value or an integer"

# -- comparisons

_COMPARE: dict[str, Any] = {"nondiff": _TRUTH, "errors": shapes_differ, "host_numbers": True,
            "samples": both(binary_floats(), binary_integers())}  # fmt: skip
equal = binary(
    "eq", torch.eq, "Return x == y.", "gt.equal(gt.array([1, 2, 3]), 2) => Array([False,  True, False], dtype=bool)",
    commutative=True, reference=numpy.equal, **_COMPARE, cpp=Cpp("{0} == {1}"), jax="eq", aten="eq",
)  # fmt: skip
not_equal = binary(
    "ne", torch.ne, "Return x != y.",
    "gt.not_equal(gt.array([1, 2, 3]), 2) => Array([ True, False,  True], dtype=bool)",
    commutative=True, reference=numpy.not_equal, **_COMPARE, cpp=Cpp("{0} != {1}"), jax="ne", aten="ne",
)  # fmt: skip
less = binary(
    "lt", torch.lt, "Return x < y.", "gt.less(gt.array([1, 2, 3]), 2) => Array([ True, False, False], dtype=bool)",
    unsigned=ORDER, reference=numpy.less, **_COMPARE, cpp=Cpp("{0} < {1}"), jax="lt", aten="lt",
)  # fmt: skip
less_equal = binary(
    "le", torch.le, "Return x <= y.",
    "gt.less_equal(gt.array([1, 2, 3]), 2) => Array([ True,  True, False], dtype=bool)",
    unsigned=ORDER, reference=numpy.less_equal, **_COMPARE, cpp=Cpp("{0} <= {1}"), jax="le", aten="le",
)  # fmt: skip
greater = binary(
    "gt", torch.gt, "Return x > y.", "gt.greater(gt.array([1, 2, 3]), 2) => Array([False, False,  True], dtype=bool)",
    unsigned=ORDER, reference=numpy.greater, **_COMPARE, cpp=Cpp("{0} > {1}"), jax="gt", aten="gt",
)  # fmt: skip
greater_equal = binary(
    "ge", torch.ge, "Return x >= y.",
    "gt.greater_equal(gt.array([1, 2, 3]), 2) => Array([False,  True,  True], dtype=bool)",
    unsigned=ORDER, reference=numpy.greater_equal, **_COMPARE, cpp=Cpp("{0} >= {1}"), jax="ge", aten="ge",
)  # fmt: skip

_CLASSIFY: dict[str, Any] = {"floating": False, "nondiff": _TRUTH, "samples": unary_floats()}
isnan = unary(
    "isnan", torch.isnan, "Return where x is NaN.",
    "gt.isnan(gt.array([1., float('nan')])) => Array([False,  True], dtype=bool)",
    reference=numpy.isnan, **_CLASSIFY, cpp=Cpp("{0} != {0}"),
)  # fmt: skip
isfinite = unary(
    "isfinite", torch.isfinite, "Return where x is neither infinite nor NaN.",
    "gt.isfinite(gt.array([1., float('inf')])) => Array([ True, False], dtype=bool)",
    reference=numpy.isfinite, **_CLASSIFY,
    cpp=(Cpp("m::fabs({0}) < highest<{A}>()", "f"), Cpp("true", "bi")), jax="is_finite",
)  # fmt: skip
isinf = unary(
    "isinf", torch.isinf, "Return where x is infinite.",
    "gt.isinf(gt.array([1., float('inf')])) => Array([False,  True], dtype=bool)",
    reference=numpy.isinf, **_CLASSIFY, cpp=(Cpp("m::fabs({0}) == highest<{A}>()", "f"), Cpp("false", "bi")),
)  # fmt: skip
signbit = unary(
    "signbit", torch.signbit, "Return where the sign of x is negative, -0.0 included.",
    "gt.signbit(gt.array([1., -0.])) => Array([False,  True], dtype=bool)",
    reference=numpy.signbit, **_CLASSIFY, cpp=(Cpp("m::signbit({0})", "f"), Cpp("{0} < 0", "i"), Cpp("false", "b")),
)  # fmt: skip

# -- bits and truth values

_BITS: dict[str, Any] = {
    "check": integers_only, "commutative": True, "nondiff": _TRUTH, "errors": floats_refused(),
    "samples": both(binary_integers(), binary_booleans),
}  # fmt: skip
_SHIFT: dict[str, Any] = {
    "check": counts_only, "nondiff": _TRUTH, "errors": floats_refused(), "samples": binary_integers(low2=0, high2=5),
}  # fmt: skip

bitwise_and = binary(
    "bitwise_and", torch.bitwise_and, "Return x & y.",
    "gt.bitwise_and(gt.array([6, 5]), 3) => Array([2, 1], dtype=int64)",
    reference=numpy.bitwise_and, **_BITS, cpp=Cpp("{0} & {1}", "bi"), jax="and",
)  # fmt: skip
bitwise_or = binary(
    "bitwise_or", torch.bitwise_or, "Return x | y.", "gt.bitwise_or(gt.array([6, 5]), 3) => Array([7, 7], dtype=int64)",
    reference=numpy.bitwise_or, **_BITS, cpp=Cpp("{0} | {1}", "bi"), jax="or",
)  # fmt: skip
bitwise_xor = binary(
    "bitwise_xor", torch.bitwise_xor, "Return x ^ y.",
    "gt.bitwise_xor(gt.array([6, 5]), 3) => Array([5, 6], dtype=int64)",
    reference=numpy.bitwise_xor, **_BITS, cpp=Cpp("{0} ^ {1}", "bi"), jax="xor",
)  # fmt: skip
bitwise_left_shift = binary(
    "bitwise_left_shift", torch.bitwise_left_shift, "Return x << y.",
    "gt.bitwise_left_shift(gt.array([1, 3]), 2) => Array([ 4, 12], dtype=int64)",
    reference=numpy.left_shift, **_SHIFT, cpp=Cpp("left_shift<{T}>({0}, {1})", "i", 3), jax="shift_left",
)  # fmt: skip
bitwise_right_shift = binary(
    "bitwise_right_shift", torch.bitwise_right_shift, "Return x >> y.",
    "gt.bitwise_right_shift(gt.array([4, 13]), 2) => Array([1, 3], dtype=int64)",
    unsigned=wide_unsigned.shifted_right, reference=numpy.right_shift, **_SHIFT,
    cpp=Cpp("right_shift<{T}>({0}, {1})", "i", 3),
)  # fmt: skip
bitwise_invert = unary(
    "bitwise_not", torch.bitwise_not, "Return ~x.",
    "gt.bitwise_invert(gt.array([0, 5])) => Array([-1, -6], dtype=int64)",
    floating=False, check=integers_only, nondiff=_TRUTH, samples=unary_integers, errors=floats_refused(numpy.ones(3)),
    reference=numpy.invert, cpp=Cpp("~{0}", "bi", boolean="!{0}"), jax="not",
)  # fmt: skip
logical_not = unary(
    "logical_not", torch.logical_not, "Return where x is zero.",
    "gt.logical_not(gt.array([0., 2.])) => Array([ True, False], dtype=bool)",
    floating=False, nondiff=_TRUTH, samples=both(unary_floats(), unary_integers), reference=numpy.logical_not,
    cpp=Cpp("!{0}"),
)  # fmt: skip
logical_and = binary(
    "logical_and", torch.logical_and, "Return where both x and y are nonzero.",
    "gt.logical_and(gt.array([True, False]), True) => Array([ True, False], dtype=bool)",
    commutative=True, reference=numpy.logical_and, **_COMPARE, cpp=Cpp("bool({0}) & bool({1})"),
)  # fmt: skip
logical_or = binary(
    "logical_or", torch.logical_or, "Return where x or y is nonzero.",
    "gt.logical_or(gt.array([True, False]), False) => Array([ True, False], dtype=bool)",
    commutative=True, reference=numpy.logical_or, **_COMPARE, cpp=Cpp("bool({0}) | bool({1})"),
)  # fmt: skip
logical_xor = binary(
    "logical_xor", torch.logical_xor, "Return where exactly one of x and y is nonzero.",
    "gt.logical_xor(gt.array([True, False]), True) => Array([False,  True], dtype=bool)",
    commutative=True, reference=numpy.logical_xor, **_COMPARE, cpp=Cpp("bool({0}) != bool({1})"),
)  # fmt: skip

# -- selection


def _where_samples() -> list[Sample]:
    mask = uniform(-1, 1, 3, 4) > 0
    x, y = uniform(-2, 2, 3, 4, seed=1), uniform(-2, 2, 4, seed=2)
    return [Sample((mask, x, y)), Sample((mask, x, 0.0)), Sample((mask, 1.0, y)), Sample((mask, 1.0, 0.0))]


_where = define(
    "where", torch.where, arity=3, elementwise=True, linear=(1, 2), host_numbers=True,
    keeps=slice(1, None),  # a choice is as weak as what it chooses from
    vjp=lambda ct, needed, c, x, y, out: (None, where(c, ct, 0.0), where(c, 0.0, ct)),
    samples=_where_samples, reference=numpy.where, user=lambda c, x, y: where(c, x, y),
    cpp=Cpp("{0} ? {1} : {2}", "bifu"),
)  # fmt: skip


def where(condition: Any, x: Any, y: Any) -> Array:
    """Return x where `condition` holds and y elsewhere; the three broadcast.

    The cotangent of the unselected operand is zero. If its own derivative is infinite or NaN, the product is NaN, as
    usual in reverse mode. Guard the operand, as in ``where(x > 0, log(where(x > 0, x, 1)), 0)``.

    >>> gt.where(gt.array([True, False]), 1.0, gt.array([5., 6.]))
    Array([1., 6.], dtype=float32)
    """
    if condition.__class__ is Array:
        found = _met(condition, x, y)
        if found is not None:
            return emit(*found)
    mask = lift("where", condition)
    if mask.aval.dtype is not torch.bool:
        mask = not_equal(mask, 0)
    if x.__class__ in (int, float) and y.__class__ in (int, float):  # both stay Python numbers
        dtype, _ = meeting((), (x, y))
        return bind(_where, (mask, *[number_operand("where", value, dtype, mask.aval.device) for value in (x, y)]))
    return bind(_where, (mask, *promote("where", x, y)))


def _met(mask: Array, x: Any, y: Any) -> tuple[Instr, tuple[Any, ...]] | None:
    """Return the instruction and the operands for known operand types; None if they need promotion."""
    if x.__class__ is Array:
        if y.__class__ is not Array:
            y = _number(y, x.aval)
    elif y.__class__ is Array:
        x = _number(x, y.aval)
    else:
        return None
    if x is None or y is None:
        return None
    instr = _where.table.get((mask.aval, x.aval, y.aval))
    return None if instr is None else (instr, (mask, x, y))


def _number(value: Any, a: Aval) -> Scalar | None:
    """Return a number beside a floating operand of type `a`; None for other values and operands."""
    kind = value.__class__
    if kind is not float and (kind is not int or value.bit_length() >= 64):
        return None
    if not a.floating or a.weak or a.complex or is_other_nan(value):
        return None
    return Scalar(float(value), scalar_aval(a.dtype, a.device))
