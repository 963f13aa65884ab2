"""The C++ of elementwise operations: an expression of the operands, for each kind of dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gtrace.core.backends.native.values import SHORT_FLOATS, c_type, kind_of
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.cpp import Cpp
from gtrace.core.ir.graph import Node


def lowering(node: Node) -> Cpp | None:
    """Return how the generator computes an elementwise node; None if it cannot."""
    found = node.op.rules.cpp
    if not found or (node.op.name == "nextafter" and node.instr.aval.dtype in SHORT_FLOATS):
        return None  # the next float is not the next float16
    if node.instr.aval.dtype is torch.uint32 and any(a.dtype.is_floating_point for a in node.instr.ins):
        return None  # what C++ makes of negative numbers is not what torch makes of them
    kind = kind_of(node.instr.ins[-1].dtype)
    return next((one for one in found if kind in one.kinds), None)


def expression(node: Node, rule: Cpp, operands: list[str]) -> str:
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
