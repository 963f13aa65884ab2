"""Operations that read or write elements at places that are values, as C++."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from itertools import pairwise

from gtrace.core.backends.native.arrange import as_view, set_view
from gtrace.core.backends.native.block import Block, check, emitter
from gtrace.core.backends.native.values import (
    SHORT_FLOATS,
    Uniform,
    UnsupportedLoopError,
    Value,
    View,
    c_type,
    plus,
    spread,
)
from gtrace.core.base.dtypes import DTYPES
from gtrace.core.ir.aval import Aval, contiguous_strides
from gtrace.core.ir.graph import Node


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
    adjacent = all(b == a + 1 for a, b in pairwise(dims))
    return tuple(shape), dims[0] if adjacent else 0


def _offset(
    block: Block, texts: Sequence[str], dims: Sequence[int], shape: Sequence[int], strides: Sequence[int]
) -> str:
    """Write checked places along axes `dims`; returns the C++ of the offset of the element there."""
    names = [_bound(block, text, shape[d]) for text, d in zip(texts, dims, strict=True)]
    return _at(names, dims, strides)


def _at(names: Sequence[str], dims: Sequence[int], strides: Sequence[int]) -> str:
    return " + ".join(f"{name} * {strides[d]}" for name, d in zip(names, dims, strict=True))


def _counted(block: Block, text: str, size: int) -> str:
    """Write a place along an axis, which may be outside, into a variable, counted from the front; returns its name."""
    name = block.writer.name("k")
    block.writer.line(f"int64_t {name} = {text};")
    block.writer.line(f"{name} += {name} < 0 ? {size} : 0;")
    return name


def _index_strides(indices: Sequence[Aval], places: Sequence[Value], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the strides of index arrays broadcast to a shape."""
    own = [p.strides if isinstance(p, View) else (0,) * len(i.shape) for i, p in zip(indices, places, strict=True)]
    return [spread(i, strides, shape) for i, strides in zip(indices, own, strict=True)]


@emitter("index")
def _index(block: Block, node: Node) -> None:
    dims = node.attributes["dims"]
    x, *indices = node.instr.ins
    a = node.instr.aval
    for kind in (x, a, *indices):
        check(kind)
    value, writer = block.operand(node, 0), block.writer
    places = [block.operand(node, k + 1) for k in range(len(indices))]
    shape, first = _index_layout(x, indices, dims)
    view = as_view(block, value, x)
    if all(i.size == 1 for i in indices):
        # one place: the result is a part of the memory that is there
        place = _offset(block, [block.scalar(i) for i in node.ins[1:]], dims, x.shape, view.strides)
        kept = [s for d, s in enumerate(view.strides) if d not in dims]
        strides = (*kept[:first], *[0] * len(shape), *kept[first:])
        set_view(block, node, View(view.base, strides, view.moved(place)))
        return
    target = block.result(node)
    own = contiguous_strides(a.shape)
    outer = own[first : first + len(shape)]
    inner_out = (*own[:first], *own[first + len(shape) :])
    inner_in = [s for d, s in enumerate(view.strides) if d not in dims]
    inner_shape = [n for d, n in enumerate(x.shape) if d not in dims]
    given = _index_strides(indices, places, shape)

    def row(at: list[str]) -> None:
        texts = [writer.read(p, offset) for p, offset in zip(places, at, strict=False)]
        source = _offset(block, texts, dims, x.shape, view.strides)

        def one(inner: list[str]) -> None:
            to = plus(at[-1], inner[1])
            writer.line(f"{target.at(to)} = {view.at(source, inner[0])};")

        writer.nest(inner_shape, [inner_in, inner_out], one)

    writer.nest(shape, [*given, outer], row, ordered=True, cost=2 * a.size, grain=1)
    block.cost += 2 * a.size
    block.settle(node)


@emitter("index_put")
def _index_put(block: Block, node: Node) -> None:
    dims, loose, accumulate = (node.attributes[name] for name in ("dims", "loose", "accumulate"))
    x, u, *indices = node.instr.ins
    for kind in (x, u, *indices):
        check(kind)
    if accumulate and x.dtype in SHORT_FLOATS and indices[0].size > 1:
        return block.emit_widened(node)  # several may be added to one element, and are rounded once
    if accumulate and c_type(x.dtype) == "bool":
        raise UnsupportedLoopError("native loops have no index_put of booleans that accumulates")
    writer = block.writer
    places = [block.operand(node, k + 2) for k in range(len(indices))]
    shape, first = _index_layout(x, indices, dims)
    target = block.result(node)
    block.cost += writer.copy(block.operand(node, 0), x, target)
    own = contiguous_strides(x.shape)
    inner_shape = [n for d, n in enumerate(x.shape) if d not in dims]
    inner_to = [s for d, s in enumerate(own) if d not in dims]
    full = (*inner_shape[:first], *shape, *inner_shape[first:])
    value = block.operand(node, 1)
    steps = spread(u, value.strides, full) if isinstance(value, View) else (0,) * len(full)
    outer, inner_from = steps[first : first + len(shape)], (*steps[:first], *steps[first + len(shape) :])
    given = _index_strides(indices, places, shape)

    def row(at: list[str]) -> None:
        names, inside = [], []
        for place, offset, d, check_place in zip(places, at, dims, loose, strict=False):
            text, size = writer.read(place, offset), x.shape[d]
            names.append(_counted(block, text, size) if check_place else _bound(block, text, size))
            if check_place:
                inside.append(f"uint64_t({names[-1]}) < {size}")
        to = _at(names, dims, own)

        def one(inner: list[str]) -> None:
            new = writer.read(value, plus(at[-1], inner[0]))
            old = target.at(to, inner[1])
            writer.line(f"{old} = {c_type(x.dtype)}({old} + {new});" if accumulate else f"{old} = {new};")

        with writer.braces(f"if ({' && '.join(inside)})") if inside else contextlib.nullcontext():
            writer.nest(inner_shape, [inner_from, inner_to], one)

    writer.nest(shape, [*given, outer], row, ordered=True)
    block.cost += 2 * math.prod(full)
    block.settle(node)


@emitter("gather", "scatter_add")
def _gather(block: Block, node: Node) -> None:
    axis = node.attributes["axis"]
    x, index = node.instr.ins[:2]
    a = node.instr.aval
    for kind in (x, index, a):
        check(kind)
    writer = block.writer
    adds = node.op.name == "scatter_add"
    if adds and x.dtype in SHORT_FLOATS:
        return block.emit_widened(node)  # several may be added to one element, and are rounded once
    whole = block.result(node)
    if adds:
        block.cost += writer.copy(block.operand(node, 0), x, whole)
    moved = whole if adds else as_view(block, block.operand(node, 0), x)
    other = block.operand(node, 2) if adds else whole
    places = block.operand(node, 1)
    given = places.strides if isinstance(places, View) else (0,) * len(index.shape)
    along = tuple(0 if d == axis else s for d, s in enumerate(moved.strides))
    beside = other.strides if isinstance(other, View) else (0,) * len(index.shape)

    def one(at: list[str]) -> None:
        k = _bound(block, writer.read(places, at[0]), x.shape[axis])
        element = moved.at(at[1], f"{k} * {moved.strides[axis]}")
        if adds:
            writer.line(f"{element} = {c_type(x.dtype)}({element} + {writer.read(other, at[2])});")
        else:
            writer.line(f"{whole.at(at[2])} = {element};")

    cost = 2 * index.size
    # several may be added to one element
    writer.nest(index.shape, [given, along, beside], one, ordered=True, cost=0 if adds else cost)
    block.cost += cost
    block.settle(node)


@emitter("one_hot")
def _one_hot(block: Block, node: Node) -> None:
    count, axis, dtype = (node.attributes[name] for name in ("num_classes", "axis", "dtype"))
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
        place = plus(at[1], f"{k} * {strides[axis]}")
        writer.line(f"if ({k} >= 0 && {k} < {count}) {target.at(place)} = {own}(1);")

    writer.nest(index.shape, [given, rest], write)
    block.cost += a.size + index.size
    block.settle(node)
