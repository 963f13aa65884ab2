"""Operations that move elements as C++. Most only change how memory is read; the others copy."""

from __future__ import annotations

from collections.abc import Sequence

from gtrace.core.backends.native.block import Block, check, emitter
from gtrace.core.backends.native.values import Uniform, Value, View, c_type, collapse, memory_type, spread
from gtrace.core.ir.aval import Aval, aval, contiguous_strides
from gtrace.core.ir.graph import Node


def set_view(block: Block, node: Node, value: Value) -> None:
    """Make `value` the result of a node, read into a variable if it has one element."""
    check(node.instr.aval)
    block.values[node.out] = value
    block.settle(node)


def as_view(block: Block, value: Value, a: Aval) -> View:
    """Return a value as memory, written there if it is a number."""
    return value if isinstance(value, View) else block.writer.dense(value, a)


@emitter("broadcast_to")
def _broadcast(block: Block, node: Node) -> None:
    value, a = block.operand(node, 0), node.instr.ins[0]
    if isinstance(value, View):
        value = View(value.base, spread(a, value.strides, node.instr.aval.shape), value.offset)
    set_view(block, node, value)


@emitter("full")
def _full(block: Block, node: Node) -> None:
    check(node.instr.aval)
    block.values[node.out] = Uniform(block.scalar(node.ins[0]))


def reshaped(value: View, shape: Sequence[int], new: Sequence[int]) -> View | None:
    """Return a view in another shape; None if its elements must move for that."""
    sizes, (steps,) = collapse(shape, [value.strides])
    strides: list[int] = []
    left = list(zip(sizes, steps, strict=True))
    rest, step = left.pop(0) if left else (1, 1)
    for n in new:
        if n == 1:
            strides.append(0)
            continue
        if rest == 1 and left:
            rest, step = left.pop(0)
        if rest % n:
            return None
        rest //= n
        strides.append(step * rest)
    return View(value.base, tuple(strides), value.offset)


@emitter("reshape")
def _reshape(block: Block, node: Node) -> None:
    value, a = block.operand(node, 0), node.instr.ins[0]
    check(a)
    if isinstance(value, View):
        new = reshaped(value, a.shape, node.instr.aval.shape)
        if new is None:
            flat = block.writer.dense(value, a)
            block.cost += a.size
            new = View(flat.base, contiguous_strides(node.instr.aval.shape), flat.offset)
        value = new
    set_view(block, node, value)


@emitter("permute")
def _permute(block: Block, node: Node) -> None:
    value = block.operand(node, 0)
    if isinstance(value, View):
        value = View(value.base, tuple(value.strides[k] for k in node.attributes["axes"]), value.offset)
    set_view(block, node, value)


@emitter("slice")
def _slice(block: Block, node: Node) -> None:
    value = block.operand(node, 0)
    if isinstance(value, View):
        start = sum(s * first for s, (first, _, _) in zip(value.strides, node.attributes["bounds"], strict=True))
        strides = tuple(s * step for s, (_, _, step) in zip(value.strides, node.attributes["bounds"], strict=True))
        value = View(value.base, strides, value.moved(start))
    set_view(block, node, value)


@emitter("flip")
def _flip(block: Block, node: Node) -> None:
    value, a = block.operand(node, 0), node.instr.ins[0]
    if isinstance(value, View):
        axes = node.attributes["axes"]
        start = sum(value.strides[k] * (a.shape[k] - 1) for k in axes)
        strides = tuple(-s if k in axes else s for k, s in enumerate(value.strides))
        value = View(value.base, strides, value.moved(start))
    set_view(block, node, value)


@emitter("arange")
def _arange(block: Block, node: Node) -> None:
    start, step = node.attributes["start"], node.attributes["step"]
    a = node.instr.aval
    check(a)
    own = c_type(a.dtype)
    kind = "double" if any(isinstance(n, float) for n in (start, step)) else "int64_t"
    if a.size == 1:
        block.values[node.out] = block.writer.local(a, f"{own}({start!r})")
        return
    target = block.result(node)
    block.writer.nest(
        a.shape,
        [(1,)],
        lambda at: block.writer.line(f"{target.at(at[0])} = {own}({start!r} + {kind}({at[0]}) * {step!r});"),
    )
    block.cost += a.size


def write_part(
    block: Block, target: View, shape: Sequence[int], bounds: Sequence[Sequence[int]], value: Value, a: Aval
) -> None:
    """Write a value to the slice `bounds` of an array in row-major order."""
    own = contiguous_strides(tuple(shape))
    start = sum(s * first for s, (first, _, _) in zip(own, bounds, strict=True))
    strides = tuple(s * step for s, (_, _, step) in zip(own, bounds, strict=True))
    part = View(target.base, strides, target.moved(start))
    given = value.strides if isinstance(value, View) else (0,) * len(strides)
    writer = block.writer
    writer.nest(
        a.shape, [spread(a, given, a.shape), strides],
        lambda at: writer.line(f"{part.at(at[1])} = {writer.read(value, at[0])};"), cost=a.size,
    )  # fmt: skip
    block.cost += a.size


@emitter("slice_update")
def _slice_update(block: Block, node: Node) -> None:
    check(node.instr.aval)
    target = block.result(node)
    block.cost += block.writer.copy(block.operand(node, 0), node.instr.aval, target)
    if node.instr.ins[1].size:
        write_part(
            block, target, node.instr.aval.shape, node.attributes["bounds"], block.operand(node, 1), node.instr.ins[1]
        )
    block.settle(node)


@emitter("unslice")
def _unslice(block: Block, node: Node) -> None:
    a = node.instr.aval
    check(a)
    check(node.instr.ins[0])
    target = block.result(node)
    block.writer.copy(Uniform(f"{c_type(a.dtype)}(0)"), a, target)
    write_part(block, target, a.shape, node.attributes["bounds"], block.operand(node, 0), node.instr.ins[0])
    block.cost += a.size
    block.settle(node)


@emitter("pad")
def _pad(block: Block, node: Node) -> None:
    a, inner = node.instr.aval, node.instr.ins[0]
    check(a)
    target = block.result(node)
    block.writer.copy(Uniform(block.scalar(node.ins[1])), a, target)
    bounds = [(before, before + n, 1) for n, (before, _) in zip(inner.shape, node.attributes["widths"], strict=True)]
    if inner.size:
        write_part(block, target, a.shape, bounds, block.operand(node, 0), inner)
    block.cost += a.size
    block.settle(node)


@emitter("concat")
def _concat(block: Block, node: Node) -> None:
    a, axis = node.instr.aval, node.attributes["axis"]
    check(a)
    if node.out in block.joined:
        target, early = block.joined[node.out]
        block.values[node.out] = target
    else:
        target, early = block.result(node), frozenset()
    start = 0
    for k, (x, part) in enumerate(zip(node.ins, node.instr.ins, strict=True)):
        bounds = [(0, n, 1) for n in part.shape]
        bounds[axis] = (start, start + part.shape[axis], 1)
        if part.size and (x not in early or x in block.pieces):
            write_part(block, target, a.shape, bounds, block.operand(node, k), part)
        start += part.shape[axis]
    block.settle(node)


@emitter("roll")
def _roll(block: Block, node: Node) -> None:
    a = node.instr.aval
    check(a)
    shifts, axes = node.attributes["shifts"], node.attributes["axes"]
    total = [0] * len(a.shape)
    for shift, axis in zip(shifts, axes, strict=True):
        total[axis] = (total[axis] + shift) % a.shape[axis]
    value = block.operand(node, 0)
    if isinstance(value, Uniform):
        block.values[node.out] = value
        return
    target = block.result(node)
    source = as_view(block, value, a)

    def write(axis: int, bounds: list[tuple[int, int, int]], start: int, shape: list[int]) -> None:
        if axis == len(total):
            part = aval(tuple(shape), a.dtype)
            here = View(source.base, source.strides, source.moved(start))
            write_part(block, target, a.shape, bounds, here, part)
            return
        n, by = a.shape[axis], total[axis]
        # the first n - by elements move to the end, the others to the front
        for first, count, to in ((0, n - by, by), (n - by, by, 0)):
            if count:
                write(axis + 1, [*bounds, (to, to + count, 1)], start + first * source.strides[axis], [*shape, count])

    write(0, [], 0, [])
    block.settle(node)


@emitter("tril", "triu")
def _triangle(block: Block, node: Node) -> None:
    a, k = node.instr.aval, node.attributes["k"]
    check(a)
    value = as_view(block, block.operand(node, 0), a)
    target = block.result(node)
    rows, columns = a.shape[-2:]
    writer, own = block.writer, contiguous_strides(a.shape)
    sign = "<=" if node.op.name == "tril" else ">="

    def matrix(at: list[str]) -> None:
        i, j = writer.name("i"), writer.name("i")
        with writer.braces(f"for (int64_t {i} = 0; {i} < {rows}; ++{i})"):
            with writer.braces(f"for (int64_t {j} = 0; {j} < {columns}; ++{j})"):
                source = at[0], f"{i} * {value.strides[-2]} + {j} * {value.strides[-1]}"
                to = at[1], f"{i} * {columns} + {j}"
                kept = f"{j} {sign} {i} + {k}"
                writer.line(f"{target.at(*to)} = {kept} ? {value.at(*source)} : {memory_type(a.dtype)}(0);")

    writer.nest(a.shape[:-2], [value.strides[:-2], own[:-2]], matrix)
    block.cost += a.size
    block.settle(node)
