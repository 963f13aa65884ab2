"""Operations that move elements as C++. Most only change how memory is read; the others copy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gtrace.compile.native.block import Block, check, emitter
from gtrace.compile.native.values import Uniform, Unsupported, Value, View, c_type, collapse, spread
from gtrace.ir.aval import DTYPES, Aval, aval, contiguous_strides
from gtrace.ir.graph import Node


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
        value = View(value.base, tuple(value.strides[k] for k in node.params[0]), value.offset)
    set_view(block, node, value)


@emitter("slice")
def _slice(block: Block, node: Node) -> None:
    value = block.operand(node, 0)
    if isinstance(value, View):
        start = sum(s * first for s, (first, _, _) in zip(value.strides, node.params[0], strict=True))
        strides = tuple(s * step for s, (_, _, step) in zip(value.strides, node.params[0], strict=True))
        value = View(value.base, strides, value.moved(str(start) if start else ""))
    set_view(block, node, value)


@emitter("flip")
def _flip(block: Block, node: Node) -> None:
    value, a = block.operand(node, 0), node.instr.ins[0]
    if isinstance(value, View):
        axes = node.params[0]
        start = sum(value.strides[k] * (a.shape[k] - 1) for k in axes)
        strides = tuple(-s if k in axes else s for k, s in enumerate(value.strides))
        value = View(value.base, strides, value.moved(str(start) if start else ""))
    set_view(block, node, value)


@emitter("arange")
def _arange(block: Block, node: Node) -> None:
    start, _, step, dtype, _ = node.params
    a = node.instr.aval
    check(a)
    own = c_type(a.dtype)
    kind = "double" if any(isinstance(n, float) for n in (start, step)) else "int64_t"
    if a.size == 1:
        block.values[node.out] = block.writer.local(a, f"{own}({start!r})")
        return
    target = block.result(node)
    block.writer.nest(
        a.shape, [(1,)], lambda at: block.writer.line(f"{target.at(at[0])} = {own}({start!r} + {kind}({at[0]}) * {step!r});")
    )
    block.cost += a.size


def write_part(block: Block, target: View, shape: Sequence[int], bounds: Sequence[Sequence[int]], value: Value, a: Aval) -> None:
    """Write a value to the slice `bounds` of an array in row-major order."""
    own = contiguous_strides(tuple(shape))
    start = sum(s * first for s, (first, _, _) in zip(own, bounds, strict=True))
    strides = tuple(s * step for s, (_, _, step) in zip(own, bounds, strict=True))
    part = View(target.base, strides, target.moved(str(start) if start else ""))
    given = value.strides if isinstance(value, View) else (0,) * len(strides)
    writer = block.writer
    writer.nest(
        a.shape, [spread(a, given, a.shape), strides],
        lambda at: writer.line(f"{part.at(at[1])} = {writer.read(value, at[0])};"),
    )  # fmt: skip
    block.cost += a.size


@emitter("slice_update")
def _slice_update(block: Block, node: Node) -> None:
    check(node.instr.aval)
    target = block.result(node)
    block.writer.copy(block.operand(node, 0), node.instr.aval, target)
    if node.instr.ins[1].size:
        write_part(block, target, node.instr.aval.shape, node.params[0], block.operand(node, 1), node.instr.ins[1])
    block.cost += node.instr.aval.size
    block.settle(node)


@emitter("unslice")
def _unslice(block: Block, node: Node) -> None:
    a = node.instr.aval
    check(a)
    check(node.instr.ins[0])
    target = block.result(node)
    block.writer.copy(Uniform(f"{c_type(a.dtype)}(0)"), a, target)
    write_part(block, target, a.shape, node.params[1], block.operand(node, 0), node.instr.ins[0])
    block.cost += a.size
    block.settle(node)


@emitter("pad")
def _pad(block: Block, node: Node) -> None:
    a, inner = node.instr.aval, node.instr.ins[0]
    check(a)
    target = block.result(node)
    block.writer.copy(Uniform(block.scalar(node.ins[1])), a, target)
    bounds = [(before, before + n, 1) for n, (before, _) in zip(inner.shape, node.params[0], strict=True)]
    if inner.size:
        write_part(block, target, a.shape, bounds, block.operand(node, 0), inner)
    block.cost += a.size
    block.settle(node)


@emitter("concat")
def _concat(block: Block, node: Node) -> None:
    a, axis = node.instr.aval, node.params[0]
    check(a)
    target = block.result(node)
    start = 0
    for k, part in enumerate(node.instr.ins):
        bounds = [(0, n, 1) for n in part.shape]
        bounds[axis] = (start, start + part.shape[axis], 1)
        if part.size:
            write_part(block, target, a.shape, bounds, block.operand(node, k), part)
        start += part.shape[axis]
    block.settle(node)


@emitter("roll")
def _roll(block: Block, node: Node) -> None:
    a = node.instr.aval
    check(a)
    shifts, axes = node.params
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
            here = View(source.base, source.strides, source.moved(str(start) if start else ""))
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
    a, (k,) = node.instr.aval, node.params
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
                source = " + ".join(filter(None, (at[0], f"{i} * {value.strides[-2]} + {j} * {value.strides[-1]}")))
                to = " + ".join(filter(None, (at[1], f"{i} * {columns} + {j}")))
                kept = f"{j} {sign} {i} + {k}"
                writer.line(f"{target.at(to)} = {kept} ? {value.at(source)} : {c_type(a.dtype)}(0);")

    writer.nest(a.shape[:-2], [value.strides[:-2], own[:-2]], matrix)
    block.cost += a.size
    block.settle(node)


@emitter("one_hot")
def _one_hot(block: Block, node: Node) -> None:
    count, axis, dtype = node.params
    a, index = node.instr.aval, node.instr.ins[0]
    check(a)
    check(index)
    value, writer, own = block.operand(node, 0), block.writer, c_type(DTYPES[dtype])
    target = block.result(node)
    writer.copy(Uniform(f"{own}(0)"), a, target)
    strides = contiguous_strides(a.shape)
    given = spread(index, value.strides, index.shape) if isinstance(value, View) else (0,) * len(index.shape)
    rest = (*strides[:axis], *strides[axis + 1 :])

    def write(at: list[str]) -> None:
        k = writer.name("k")
        writer.line(f"const int64_t {k} = {writer.read(value, at[0])};")
        place = " + ".join(filter(None, (at[1], f"{k} * {strides[axis]}")))
        writer.line(f"if ({k} >= 0 && {k} < {count}) {target.at(place)} = {own}(1);")

    writer.nest(index.shape, [given, rest], write)
    block.cost += a.size + index.size
    block.settle(node)


# -- elements at places that are values


def _places(block: Block, node: Node, first: int, dims: Sequence[int], shape: Sequence[int]) -> list[tuple[Value, Aval]]:
    return [(block.operand(node, first + k), node.instr.ins[first + k]) for k in range(len(dims))]


def _bound(block: Block, text: str, size: int) -> str:
    """Write a place along an axis into a variable, counted from the front and checked; returns its name."""
    writer = block.writer
    name = writer.name("k")
    writer.line(f"int64_t {name} = {text};")
    writer.line(f"{name} += {name} < 0 ? {size} : 0;")
    # a place outside refuses the whole loop; meanwhile nothing outside is read
    writer.line(f"if (uint64_t({name}) >= {size}) {{ refused = true; {name} = 0; }}")
    return name


def _index_layout(x: Aval, indices: Sequence[Aval], dims: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return the broadcast shape of index arrays, and the first of its axes in the result."""
    ndim = max(len(i.shape) for i in indices)
    shape = [1] * ndim
    for i in indices:
        for axis, n in enumerate(reversed(i.shape), 1):
            shape[-axis] = max(shape[-axis], n) if n else 0
    adjacent = all(b == a + 1 for a, b in zip(dims, dims[1:], strict=False))
    return tuple(shape), dims[0] if adjacent else 0


@emitter("index")
def _index(block: Block, node: Node) -> None:
    (dims,) = node.params
    x, *indices = node.instr.ins
    a = node.instr.aval
    for one in (x, a, *indices):
        check(one)
    value, writer = block.operand(node, 0), block.writer
    places = [block.operand(node, k + 1) for k in range(len(indices))]
    shape, first = _index_layout(x, indices, dims)
    view = as_view(block, value, x)
    if all(i.size == 1 for i in indices):
        # one place: the result is a part of the memory that is there
        names = [_bound(block, block.scalar(node.ins[k + 1]), x.shape[d]) for k, d in enumerate(dims)]
        terms = [f"{k} * {view.strides[d]}" for k, d in zip(names, dims, strict=True)]
        kept = [s for d, s in enumerate(view.strides) if d not in dims]
        strides = (*kept[:first], *[0] * len(shape), *kept[first:])
        set_view(block, node, View(view.base, strides, view.moved(" + ".join(terms))))
        return
    target = block.result(node)
    own = contiguous_strides(a.shape)
    outer = own[first : first + len(shape)]
    inner_out = (*own[:first], *own[first + len(shape) :])
    inner_in = [s for d, s in enumerate(view.strides) if d not in dims]
    inner_shape = [n for d, n in enumerate(x.shape) if d not in dims]
    given = [spread(i, p.strides if isinstance(p, View) else (0,) * len(i.shape), shape)
             for i, p in zip(indices, places, strict=True)]  # fmt: skip

    def row(at: list[str]) -> None:
        names = [
            _bound(block, writer.read(p, at[k]), x.shape[d]) for k, (p, d) in enumerate(zip(places, dims, strict=True))
        ]
        source = " + ".join(f"{k} * {view.strides[d]}" for k, d in zip(names, dims, strict=True))

        def one(inner: list[str]) -> None:
            to = " + ".join(filter(None, (at[-1], inner[1])))
            writer.line(f"{target.at(to)} = {view.at(' + '.join(filter(None, (source, inner[0]))))};")

        writer.nest(inner_shape, [inner_in, inner_out], one)

    writer.nest(shape, [*given, outer], row, ordered=True)
    block.cost += 2 * a.size
    block.settle(node)


@emitter("index_put")
def _index_put(block: Block, node: Node) -> None:
    dims, accumulate = node.params
    x, u, *indices = node.instr.ins
    for one in (x, u, *indices):
        check(one)
    if accumulate and c_type(x.dtype) == "bool":
        raise Unsupported("native loops have no index_put of booleans that accumulates")
    writer = block.writer
    places = [block.operand(node, k + 2) for k in range(len(indices))]
    shape, first = _index_layout(x, indices, dims)
    target = block.result(node)
    writer.copy(block.operand(node, 0), x, target)
    own = contiguous_strides(x.shape)
    inner_shape = [n for d, n in enumerate(x.shape) if d not in dims]
    inner_to = [s for d, s in enumerate(own) if d not in dims]
    full = (*inner_shape[:first], *shape, *inner_shape[first:])
    value = block.operand(node, 1)
    steps = spread(u, value.strides, full) if isinstance(value, View) else (0,) * len(full)
    outer, inner_from = steps[first : first + len(shape)], (*steps[:first], *steps[first + len(shape) :])
    given = [spread(i, p.strides if isinstance(p, View) else (0,) * len(i.shape), shape)
             for i, p in zip(indices, places, strict=True)]  # fmt: skip

    def row(at: list[str]) -> None:
        names = [
            _bound(block, writer.read(p, at[k]), x.shape[d]) for k, (p, d) in enumerate(zip(places, dims, strict=True))
        ]
        to = " + ".join(f"{k} * {own[d]}" for k, d in zip(names, dims, strict=True))

        def one(inner: list[str]) -> None:
            new = writer.read(value, " + ".join(filter(None, (at[-1], inner[0]))))
            old = target.at(" + ".join(filter(None, (to, inner[1]))))
            writer.line(f"{old} = {c_type(x.dtype)}({old} + {new});" if accumulate else f"{old} = {new};")

        writer.nest(inner_shape, [inner_from, inner_to], one)

    writer.nest(shape, [*given, outer], row, ordered=True)
    block.cost += x.size + 2 * math.prod(full)
    block.settle(node)


@emitter("gather", "scatter_add")
def _gather(block: Block, node: Node) -> None:
    (axis,) = node.params
    x, index = node.instr.ins[:2]
    a = node.instr.aval
    for one in (x, index, a):
        check(one)
    writer = block.writer
    adds = node.op.name == "scatter_add"
    whole = block.result(node)
    if adds:
        writer.copy(block.operand(node, 0), x, whole)
    moved = whole if adds else as_view(block, block.operand(node, 0), x)
    other = block.operand(node, 2) if adds else whole
    places = block.operand(node, 1)
    given = places.strides if isinstance(places, View) else (0,) * len(index.shape)
    along = tuple(0 if d == axis else s for d, s in enumerate(moved.strides))
    beside = other.strides if isinstance(other, View) else (0,) * len(index.shape)

    def one(at: list[str]) -> None:
        k = _bound(block, writer.read(places, at[0]), x.shape[axis])
        element = moved.at(" + ".join(filter(None, (at[1], f"{k} * {moved.strides[axis]}"))))
        if adds:
            writer.line(f"{element} = {c_type(x.dtype)}({element} + {writer.read(other, at[2])});")
        else:
            writer.line(f"{whole.at(at[2])} = {element};")

    writer.nest(index.shape, [given, along, beside], one, ordered=True)
    block.cost += 2 * index.size + x.size * adds
    block.settle(node)
