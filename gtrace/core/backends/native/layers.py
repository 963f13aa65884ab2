"""Layer norms and short attention, with their gradients, as torch's operators have them, as C++."""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.core.backends.native.arrange import as_view
from gtrace.core.backends.native.block import Block, check, emitter
from gtrace.core.backends.native.loops import finish
from gtrace.core.backends.native.tuned import EXPONENTIAL_COST, MOST_SCORES, NORM_COLUMNS, NORM_COST, NORM_GRADIENT_COST
from gtrace.core.backends.native.values import UnsupportedLoopError, View, c_type
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Node
from gtrace.core.passes.attention import BACKWARD, FORWARD
from gtrace.core.passes.norm_operators import LAYER, LAYER_BACKWARD


def is_written(node: Node) -> bool:
    """Whether one of torch's operators has C++ of ours, for these arguments."""
    if any(a.dtype not in (torch.float32, torch.float64) for a in node.instr.ins):
        return False
    overload, arguments = node.attributes["overload"], node.attributes["args"]
    if overload in (FORWARD, BACKWARD):
        queries, keys, values = node.instr.ins[0 if overload == FORWARD else 1 :][:3]
        dropout, _, mask = _options(overload, arguments)[:3]
        (long, wide), (wide_keys, wide_values) = queries.shape[-2:], (keys.shape[-1], values.shape[-1])
        alike = len(queries.shape) == 4 and queries.shape[:2] == keys.shape[:2] and wide == wide_keys == wide_values
        return alike and not dropout and mask is None and long * keys.shape[-2] <= MOST_SCORES
    return overload in (LAYER, LAYER_BACKWARD)


@emitter("aten")
def _operator(block: Block, node: Node) -> None:
    if not is_written(node):
        raise UnsupportedLoopError(f"native loops have no {node.attributes['overload']} with these arguments")
    for a in (*node.instr.ins, *node.instr.aval.avals):
        check(a)
    overload, arguments = node.attributes["overload"], node.attributes["args"]
    if overload == LAYER:
        _norm(block, node, *arguments)
    elif overload == LAYER_BACKWARD:
        _norm_gradient(block, node, *arguments)
    else:
        _attention(block, node)


def _results(block: Block, node: Node) -> list[View]:
    """Return memory for the results: where they are wanted, if they are wanted in memory."""
    made: dict[int, View] = {}
    for user in block.users.get(node.out, ()):
        if user.instr.index not in made:
            made[user.instr.index] = block.place(user.out, user.instr.aval)
    return [made[k] if k in made else block.writer.buffer(a) for k, a in enumerate(node.instr.aval.avals)]


def _pointer(block: Block, node: Node, k: int) -> str:
    """Return the C++ of a pointer to the elements of an operand, row by row."""
    return block.writer.dense(as_view(block, block.operand(node, k), node.instr.ins[k]), node.instr.ins[k]).pointer("0")


# -- norms


def _norm(block: Block, node: Node, x: Any, sizes: tuple[int, ...], weight: Any, bias: Any, eps: float) -> None:
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

    writer, cost = block.writer, NORM_COST * a.size
    writer.nest([a.size // count], [[1]], row, ordered=True, cost=cost, grain=1)
    block.cost += cost
    finish(block, node, [out, mean, scale])


def _norm_gradient(
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
        writer.line(f"layer_norm_sums<{own}, {rows}, {count}, {NORM_COLUMNS}>({operands});")

    cost = NORM_GRADIENT_COST * a.size
    if gradient is not None:
        writer.nest([rows], [[1]], row, ordered=True, cost=2 * cost // 3, grain=1)
    if of_weight is not None or of_bias is not None:
        writer.nest([-(-count // NORM_COLUMNS)], [[NORM_COLUMNS]], columns, ordered=True, cost=cost // 3, grain=1)
    block.cost += cost
    finish(block, node, results)


# -- attention


def _options(overload: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the rate of dropout, whether attention is causal, the mask and the scale."""
    given = arguments[3 if overload == FORWARD else 6 :]
    return (*given, *(0.0, False, None, None)[len(given) :])


def _attention(block: Block, node: Node) -> None:
    forward = node.attributes["overload"] == FORWARD
    _, causal, _, scale = _options(node.attributes["overload"], node.attributes["args"])
    queries, keys = node.instr.ins[0 if forward else 1 :][:2]
    (long, wide), many = queries.shape[-2:], keys.shape[-2]
    writer, own = block.writer, c_type(queries.dtype)
    views = [_of_rows(block, node, k) for k in range(3 if forward else 5)]
    if not forward:  # the logarithms of sums of exponentials
        views.append(writer.dense(as_view(block, block.operand(node, 5), node.instr.ins[5]), node.instr.ins[5]))
    results = _results(block, node)
    steps = ", ".join(str(view.strides[2]) for view in views[: 3 if forward else 5])
    kind = f"{own}, {long}, {many}, {wide}, {steps}, {str(bool(causal)).lower()}"
    factor = f"{own}({(1 / math.sqrt(wide) if scale is None else scale)!r})"

    def one(at: list[str]) -> None:
        pointers = [view.pointer(place) for view, place in zip((*views, *results), at, strict=True)]
        pointers.insert(len(views), factor)
        writer.line(f"{'attention' if forward else 'attention_grad'}<{kind}>({', '.join(pointers)});")

    heads = queries.shape[:2]
    scores = math.prod(heads) * long * many
    cost = scores * ((2 if forward else 5) * wide // 16 + EXPONENTIAL_COST)
    writer.nest(heads, [view.strides[:2] for view in (*views, *results)], one, ordered=True, cost=cost, grain=1)
    block.cost += cost
    finish(block, node, results)


def _of_rows(block: Block, node: Node, k: int) -> View:
    """Return an operand with the elements of a row side by side."""
    view = as_view(block, block.operand(node, k), node.instr.ins[k])
    return view if view.strides[-1] == 1 else block.writer.dense(view, node.instr.ins[k])
