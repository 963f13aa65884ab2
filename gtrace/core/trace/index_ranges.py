"""Integer ranges that follow from the operations that compute an index. No value is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gtrace.core.ir.op import Instr
from gtrace.core.trace.array import Array

Span = tuple[int, int]

MAX_DEPTH = 8
"""The number of operations that `span` follows backwards."""


def span(index: Array) -> Span | None:
    """Return the least and greatest integer that `index` may contain, if its operation declares them."""
    return _span(index._trace.flat, index._number, MAX_DEPTH)


def _span(flat: Sequence[Any], number: int, depth: int) -> Span | None:
    instr = flat[number] if 0 <= number < len(flat) else None
    if instr.__class__ is not Instr or instr.op.rules.span is None or not depth:
        return None
    operands = flat[number + 1 : number + 1 + len(instr.ins)]
    spans = [_span(flat, operand, depth - 1) for operand in operands]
    found: Span | None = instr.op.rules.span(instr.ins, spans, **dict(zip(instr.op.params, instr.params, strict=True)))
    return found
