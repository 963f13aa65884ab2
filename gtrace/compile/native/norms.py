"""Layer norms and their gradients, as torch's operators have them, as C++."""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.compile.native.arrange import as_view
from gtrace.compile.native.block import Block, check, emitter
from gtrace.compile.native.loops import finish
from gtrace.compile.native.values import UnsupportedLoopError, View, c_type
from gtrace.ir.aval import Aval
from gtrace.ir.graph import Node
from gtrace.ir.norm_operators import LAYER, LAYER_BACKWARD

OPERATORS = (LAYER, LAYER_BACKWARD)
"""Those of torch's operators, by overload, that have C++ of ours."""

FORWARD_COST, BACKWARD_COST = 8, 16
"""Additions for each element."""


def is_written(node: Node) -> bool:
    """Whether an operation is such an operator, on arrays of a type that it is written for."""
    return node.params[0] in OPERATORS and all(a.dtype in (torch.float32, torch.float64) for a in node.instr.ins)


@emitter("aten")
def _norm(block: Block, node: Node) -> None:
    if not is_written(node):
        raise UnsupportedLoopError(f"native loops have no {node.params[0]}")
    for a in (*node.instr.ins, *node.instr.aval.avals):
        check(a)
    (_forward if node.params[0] == LAYER else _backward)(block, node, *node.params[1])


def _results(block: Block, node: Node) -> list[View]:
    """Return memory for the results: where they are wanted, if they are wanted in memory."""
    made: dict[int, View] = {}
    for user in block.users.get(node.out, ()):
        made.setdefault(user.params[0], block.place(user.out, user.instr.aval))
    return [made[k] if k in made else block.writer.buffer(a) for k, a in enumerate(node.instr.aval.avals)]


def _pointer(block: Block, node: Node, k: int) -> str:
    """Return the C++ of a pointer to the elements of an operand, row by row."""
    return block.writer.dense(as_view(block, block.operand(node, k), node.instr.ins[k]), node.instr.ins[k]).pointer("0")


def _forward(block: Block, node: Node, x: Any, sizes: tuple[int, ...], weight: Any, bias: Any, eps: float) -> None:
    a: Aval = node.instr.ins[0]
    own, count = c_type(a.dtype), math.prod(sizes)
    given = iter(range(len(node.ins)))
    pointers = [f"static_cast<const {own}*>(nullptr)" if name is None else _pointer(block, node, next(given))
                for name in (x, weight, bias)]  # fmt: skip
    out, mean, scale = _results(block, node)

    def row(at: list[str]) -> None:
        i = at[0] or "0"
        place = f"({i}) * {count}"
        writer.line(
            f"layer_norm<{own}, {count}>({pointers[0]} + {place}, {pointers[1]}, {pointers[2]}, {own}({eps!r}),"
            f" {out.pointer(place)}, {mean.pointer(i)}, {scale.pointer(i)});"
        )

    writer = block.writer
    rows, cost = a.size // count, FORWARD_COST * a.size
    writer.nest([rows], [[1]], row, ordered=True, cost=cost, grain=1)
    block.cost += cost
    finish(block, node, [out, mean, scale])


def _backward(
    block: Block, node: Node, g: Any, x: Any, sizes: tuple[int, ...], mean: Any, scale: Any, weight: Any, bias: Any,
    wanted: tuple[bool, ...],
) -> None:  # fmt: skip
    a: Aval = node.instr.ins[0]
    own, count = c_type(a.dtype), math.prod(sizes)
    rows, writer = a.size // count, block.writer
    given = iter(range(len(node.ins)))
    pointers = [f"static_cast<const {own}*>(nullptr)" if name is None else _pointer(block, node, next(given))
                for name in (g, x, mean, scale, weight, bias)]  # fmt: skip
    results = _results(block, node)
    made = iter(results)  # the operator leaves out what is not wanted
    gradient, of_weight, of_bias = (next(made) if one else None for one in wanted)

    def row(at: list[str]) -> None:
        assert gradient is not None
        i = at[0] or "0"
        place = f"({i}) * {count}"
        writer.line(
            f"layer_norm_grad<{own}, {count}>({pointers[0]} + {place}, {pointers[1]} + {place}, *({pointers[2]} + {i}),"
            f" *({pointers[3]} + {i}), {pointers[4]}, {gradient.pointer(place)});"
        )

    def columns(at: list[str]) -> None:
        sums = [f"static_cast<{own}*>(nullptr)" if to is None else to.pointer("0") for to in (of_weight, of_bias)]
        operands = ", ".join([*pointers[:4], at[0] or "0", *sums])
        writer.line(f"layer_norm_sums<{own}, {rows}, {count}>({operands});")

    cost = BACKWARD_COST * a.size
    if gradient is not None:
        writer.nest([rows], [[1]], row, ordered=True, cost=cost, grain=1)
    if of_weight is not None or of_bias is not None:
        writer.nest([-(-count // COLUMNS)], [[COLUMNS]], columns, ordered=True, cost=cost // 2, grain=1)
    block.cost += cost + cost // 2
    finish(block, node, results)


COLUMNS = 64
"""Columns that are summed together: `SUMMED` in `loop.h`."""
