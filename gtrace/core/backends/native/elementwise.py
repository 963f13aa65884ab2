"""The C++ of elementwise operations: an expression of the operands, for each kind of dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

from gtrace.core.backends.native.values import SHORT_FLOATS, c_type, kind_of
from gtrace.core.base.dtypes import DTYPES
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Node

Template = str | Callable[..., str]
"""An expression with ``{0}``, ``{1}`` for the operands, ``{T}`` and ``{A}`` for the types of the result and of the last
operand; or a function of the attributes that returns one."""


@attrs.frozen
class Elementwise:
    """How an elementwise operation is computed.

    Attributes:
        template: the expression.
        kinds: of operands it is right for, by the last operand's: "b" bool, "i" integers, "f" floats.
        cost: how many additions it takes, about.
        boolean: the expression for booleans, where it is another one.
        precise: whether it is computed in double precision and rounded once.
    """

    template: Template
    kinds: str = "bif"
    cost: int = 1
    boolean: str = ""
    precise: bool = False


def _function(name: str, cost: int = 10, precise: bool = False) -> Elementwise:
    return Elementwise(f"m::{name}({{0}})", "f", cost, precise=precise)


def _whole_power(y: int) -> str:
    return f"whole_power({{0}}, {y})"


def _float_power(y: int) -> str:
    power = {0: "{T}(1)", 1: "{0}", 2: "{0} * {0}", 3: "{0} * {0} * {0}"}.get(abs(y))
    if power is None or y < -2:
        return f"m::pow({{0}}, {{T}}({y}))"
    return power if y >= 0 else f"{{T}}(1) / ({power})"


ELEMENTWISE: dict[str, tuple[Elementwise, ...]] = {
    "neg": (Elementwise("-{0}", "if"),),
    "add": (Elementwise("{0} + {1}", boolean="{0} | {1}"),),
    "sub": (Elementwise("{0} - {1}", "if"),),
    "mul": (Elementwise("{0} * {1}", boolean="{0} & {1}"),),
    "div": (Elementwise("{0} / {1}", "f", 4),),
    "floor_divide": (Elementwise("floor_divide<{T}>({0}, {1}, refused)", "if", 10),),
    "remainder": (Elementwise("remainder<{T}>({0}, {1}, refused)", "if", 10),),
    "fmod": (Elementwise("fmod_<{T}>({0}, {1}, refused)", "if", 10),),
    "pow": (Elementwise("power<{T}>({0}, {1})", "if", 20),),
    "integer_pow": (Elementwise(_float_power, "f", 4), Elementwise(_whole_power, "i", 4)),
    "maximum": (Elementwise("maximum<{T}>({0}, {1})", "if", 4), Elementwise("{0} | {1}", "b")),
    "minimum": (Elementwise("minimum<{T}>({0}, {1})", "if", 4), Elementwise("{0} & {1}", "b")),
    "clamp": (Elementwise("minimum<{T}>(maximum<{T}>({1}, {0}), {2})", "if", 8),),
    "abs": (Elementwise("absolute<{T}>({0})", "if"),),
    "sign": (Elementwise("sign<{T}>({0})", "if", 3),),
    "floor": (Elementwise("m::floor({0})", "f"), Elementwise("{0}", "i")),
    "ceil": (Elementwise("m::ceil({0})", "f"), Elementwise("{0}", "i")),
    "trunc": (Elementwise("m::trunc({0})", "f"), Elementwise("{0}", "i")),
    "round": (Elementwise("m::nearbyint({0})", "f"), Elementwise("{0}", "i")),
    "sqrt": (_function("sqrt", 4),),
    "rsqrt": (Elementwise("{T}(1) / m::sqrt({0})", "f", 6),),
    "reciprocal": (Elementwise("{T}(1) / {0}", "f", 4),),
    "square": (Elementwise("{0} * {0}", "if"),),
    **{
        name: (_function(name),)
        for name in ("exp", "expm1", "log", "log1p", "log2", "log10", "exp2", "sin", "cos", "tan", "asin", "acos",
                     "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf")
    },
    "atan2": (Elementwise("m::atan2({0}, {1})", "f", 20),),
    "hypot": (Elementwise("m::hypot({0}, {1})", "f", 10),),
    "copysign": (Elementwise("m::copysign({0}, {1})", "f"),),
    "nextafter": (Elementwise("m::nextafter({0}, {1})", "f", 10),),
    "fma": (Elementwise("m::fma({0}, {1}, {2})", "f", 2),),
    "sigmoid": (Elementwise("sigmoid<{T}>({0})", "f", 14),),
    "silu": (Elementwise("silu<{T}>({0})", "f", 14),),
    "relu": (Elementwise("relu<{T}>({0})", "if"),),
    "relu_grad": (Elementwise("({1} > 0 ? {0} : {T}(0))", "f"),),
    "softplus": (Elementwise("logaddexp<{T}>({0}, {T}(0))", "f", 20),),
    "logaddexp": (Elementwise("logaddexp<{T}>({0}, {1})", "f", 20),),
    "gelu": (Elementwise(lambda approximate: "gelu_tanh<{T}>({0})" if approximate else "gelu<{T}>({0})", "f", 16),),
    "gelu_grad": (
        Elementwise(
            lambda approximate: f"{{0}} * {'gelu_tanh_slope' if approximate else 'gelu_slope'}<{{T}}>({{1}})", "f", 24
        ),
    ),
    "erfc": (_function("erfc", 20, precise=True),),
    "gammaln": (_function("lgamma", 40, precise=True),),
    "xlogy": (Elementwise("xlogy<double>({0}, {1})", "f", 20, precise=True),),
    "xlog1py": (Elementwise("xlog1py<double>({0}, {1})", "f", 20, precise=True),),
    "entr": (Elementwise("entr<double>({0})", "f", 20, precise=True),),
    "eq": (Elementwise("{0} == {1}"),),
    "ne": (Elementwise("{0} != {1}"),),
    "lt": (Elementwise("{0} < {1}"),),
    "le": (Elementwise("{0} <= {1}"),),
    "gt": (Elementwise("{0} > {1}"),),
    "ge": (Elementwise("{0} >= {1}"),),
    "isnan": (Elementwise("{0} != {0}"),),
    "isinf": (Elementwise("m::fabs({0}) == highest<{A}>()", "f"), Elementwise("false", "bi")),
    "isfinite": (Elementwise("m::fabs({0}) < highest<{A}>()", "f"), Elementwise("true", "bi")),
    "signbit": (Elementwise("m::signbit({0})", "f"), Elementwise("{0} < 0", "i"), Elementwise("false", "b")),
    "logical_not": (Elementwise("!{0}"),),
    "logical_and": (Elementwise("bool({0}) & bool({1})"),),
    "logical_or": (Elementwise("bool({0}) | bool({1})"),),
    "logical_xor": (Elementwise("bool({0}) != bool({1})"),),
    "bitwise_and": (Elementwise("{0} & {1}", "bi"),),
    "bitwise_or": (Elementwise("{0} | {1}", "bi"),),
    "bitwise_xor": (Elementwise("{0} ^ {1}", "bi"),),
    "bitwise_not": (Elementwise("~{0}", "bi", boolean="!{0}"),),
    "bitwise_left_shift": (Elementwise("left_shift<{T}>({0}, {1})", "i", 3),),
    "bitwise_right_shift": (Elementwise("right_shift<{T}>({0}, {1})", "i", 3),),
    "gcd": (Elementwise("gcd<{T}>({0}, {1})", "i", 60),),
    "where": (Elementwise("{0} ? {1} : {2}", "bifu"),),
    "astype": (Elementwise(lambda dtype: f"cast<{c_type(DTYPES[dtype.removesuffix('~')])}>({{0}})", "bifu"),),
    "saturate": (Elementwise(lambda dtype: f"saturated<{c_type(DTYPES[dtype])}>({{0}})", "f", 3),),
    "clamp_index": (
        Elementwise(lambda low, high: f"minimum<{{T}}>(maximum<{{T}}>({{0}}, {{T}}({low})), {{T}}({high}))", "i", 2),
    ),
    "identity": (Elementwise("{0}"),),
    "stop_gradient": (Elementwise("{0}", "bifu"),),
}  # fmt: skip
"""By the name of the operation, one for each set of kinds."""


def lowering(node: Node) -> Elementwise | None:
    """Return how the generator computes an elementwise node; None if it cannot."""
    found = ELEMENTWISE.get(node.op.name)
    if found is None or (node.op.name == "nextafter" and node.instr.aval.dtype in SHORT_FLOATS):
        return None  # the next float is not the next float16
    if node.instr.aval.dtype is torch.uint32 and any(a.dtype.is_floating_point for a in node.instr.ins):
        return None  # what C++ makes of negative numbers is not what torch makes of them
    kind = kind_of(node.instr.ins[-1].dtype)
    return next((one for one in found if kind in one.kinds), None)


def expression(node: Node, rule: Elementwise, operands: list[str]) -> str:
    """Return the C++ of an elementwise node, of the type of its result."""
    result: Aval = node.instr.aval
    last: Aval = node.instr.ins[-1]
    template: Any = rule.template
    if rule.boolean and kind_of(last.dtype) == "b":
        template = rule.boolean
    elif callable(template):
        template = template(**node.attributes)
    own = c_type(result.dtype)
    if rule.precise:
        operands = [f"double({x})" for x in operands]
    text: str = template.format(*operands, T=own, A=c_type(last.dtype))
    short = SHORT_FLOATS.get(result.dtype)
    return f"rounded<{short}>({text})" if short else f"{own}({text})"


# -- functions of Python as templates


class Term:
    """A value of a function that is being turned into C++. Python's operators on it add a statement."""

    def __init__(self, text: str, lines: list[str]) -> None:
        self.text = text
        self.lines = lines


def _operator(sign: str) -> Callable[[Term, Any], Term]:
    def apply(self: Term, other: Any) -> Term:
        operand = other.text if isinstance(other, Term) else f"int64_t({other})"
        name = f"w{len(self.lines)}"
        self.lines.append(f"const int64_t {name} = {self.text} {sign} {operand};")
        return Term(name, self.lines)

    return apply


for _method, _sign in {
    "add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}.items():  # fmt: skip
    setattr(Term, f"__{_method}__", _operator(_sign))


def integer_function(function: Callable[..., Any], operands: int) -> Callable[..., str]:
    """Return a template that computes a function of 64-bit integers, written with Python's operators."""

    def template(**attributes: Any) -> str:
        lines: list[str] = []
        result = function(*[Term(f"{{{k}}}", lines) for k in range(operands)], **attributes)
        return f"[&] {{{{ {' '.join(lines)} return {result.text}; }}}}()"

    return template
