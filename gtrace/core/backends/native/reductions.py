"""Reductions, running sums and products of matrices as C++."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import attrs

from gtrace.core.backends.native.arrange import as_view
from gtrace.core.backends.native.block import Block, check, emitter
from gtrace.core.backends.native.tuned import MAX_EINSUM, SUMMED_ROWS
from gtrace.core.backends.native.values import UnsupportedLoopError, View, c_type, collapse, kind_of, plus
from gtrace.core.backends.native.writer import Writer
from gtrace.core.backends.tuned import PRODUCTS
from gtrace.core.ir.aval import Aval, aval, contiguous_strides
from gtrace.core.ir.graph import Node

COMBINE = {
    "sum": ("{T}(0)", "a + b"),
    "prod": ("{T}(1)", "a * b"),
    "max": ("lowest<{T}>()", "maximum<{T}>(a, b)"),
    "min": ("highest<{T}>()", "minimum<{T}>(a, b)"),
    "any": ("false", "a || b"),
    "all": ("true", "a && b"),
}
"""The first value of a reduction, and how two are combined."""

MAX_BOOL = {"max": "any", "min": "all"}


def _levels(rows: int) -> int:
    """Return how many sums each result needs besides its own."""
    levels = 0
    while rows > SUMMED_ROWS:
        rows, levels = rows // SUMMED_ROWS, levels + 1
    return levels


@attrs.frozen
class _Fold:
    """How elements become one result.

    Attributes:
        own: the C++ type of the result.
        start: what the first element is combined with.
        combine: `a` and `b` combined.
        scale: what is done with the result in the end.
    """

    own: str
    start: str
    combine: str
    scale: str

    def function(self, kind: str) -> str:
        """Return the C++ function that combines two numbers of a type."""
        return f"[]({kind} a, {kind} b) {{ return {kind}({self.combine}); }}"


@attrs.frozen(eq=False)
class _Results:
    """The results that one thread computes.

    Attributes:
        writer: takes the lines.
        sizes, steps: of the loops over them: strides in a row of the operand, and in the results.
        first, last: where the outermost loop begins and ends.
    """

    writer: Writer
    sizes: Sequence[int]
    steps: Sequence[Sequence[int]]
    first: str
    last: str

    def each(self, text: Callable[[str, str], str]) -> None:
        """Write a line for each result, given its places in a row of the operand and among the results."""
        self.writer.loops(self.sizes, self.steps, lambda at: self.writer.line(text(*at)), self.first, self.last)

    def fill(self, to: View, number: str) -> None:
        self.each(lambda _, k: f"{to.at(k)} = {number};")

    def add(self, to: View, more: View) -> None:
        self.each(lambda _, k: f"{to.at(k)} += {more.at(k)};")


def reduce(block: Block, node: Node, how: str, axes: Sequence[int], scale: str = "") -> None:
    """Write a reduction of the first operand over some axes."""
    x, a = node.instr.ins[0], node.instr.aval
    check(x)
    check(a)
    writer, own, cost = block.writer, c_type(a.dtype), 2 * x.size
    if kind_of(x.dtype) == "b":
        how = MAX_BOOL.get(how, how)
    start, combine = (text.format(T=own) for text in COMBINE[how])
    fold = _Fold(own, start, combine, scale)
    view = as_view(block, block.operand(node, 0), x)
    target = block.result(node)
    kept = [k for k in range(len(x.shape)) if k not in axes]
    shape = [x.shape[k] for k in kept]
    steps = [[view.strides[k] for k in kept], contiguous_strides(tuple(shape))]
    sizes, (strides,) = collapse([x.shape[k] for k in axes], [[view.strides[k] for k in axes]])
    # along the axis on which elements are neighbours, loops become vector instructions
    neighbours = bool(strides) and strides[-1] == 1
    if len(sizes) <= 1 and (neighbours or math.prod(shape) == 1):
        count, step = (sizes[0], strides[0]) if sizes else (1, 1)
        wide = "double" if (how, own) == ("prod", "float") else own  # products near 1 are rounded most

        def whole(at: list[str]) -> None:
            text = f"over<{wide}>({view.pointer(at[0])}, {count}, {step}, {fold.start}, {fold.function(wide)})"
            writer.line(f"{target.at(at[1])} = {own}({text}{scale});")

        writer.nest(shape, steps, whole, cost=cost, grain=1)
    else:
        # a sum of many rows adds up sums of few rows, then sums of more, so that it loses few digits
        levels = _levels(math.prod(sizes)) if how == "sum" and kind_of(a.dtype) == "f" else 0
        sums = [target, *[writer.buffer(a) for _ in range(levels)]]
        kept_sizes, kept_steps = collapse(shape, steps)

        def some(first: str, last: str) -> None:
            _reduce_rows(_Results(writer, kept_sizes, kept_steps, first, last), fold, view, sums, sizes, strides)

        writer.divide(kept_sizes, cost, some)
    block.cost += cost
    block.settle(node)


def _reduce_rows(
    results: _Results, fold: _Fold, view: View, sums: Sequence[View], sizes: Sequence[int], strides: Sequence[int]
) -> None:
    """Write a reduction that combines one row of the operand after the other with the results so far.

    Args:
        sums: the results; of a sum of many rows also the sums of `SUMMED_ROWS` rows, of as many of these, and so on.
        sizes, strides: of the loops over the rows.
    """
    writer, own, (target, *levels) = results.writer, fold.own, sums
    results.fill(target, fold.start)
    count = writer.name("p") if levels else ""
    for level in levels:
        results.fill(level, fold.start)
    if levels:
        writer.line(f"int64_t {count} = 0;")

    def row(at: list[str]) -> None:
        combine = fold.function(own)
        results.each(lambda x, k: f"{target.at(k)} = {combine}({target.at(k)}, {own}({view.at(at[0], x)}));")
        if levels:
            writer.line(f"++{count};")
        for level, (few, more) in enumerate(itertools.pairwise(sums), 1):
            with writer.braces(f"if ({count} % {SUMMED_ROWS**level} == 0)"):
                results.add(more, few)
                results.fill(few, fold.start)

    writer.nest(sizes, [strides], row, ordered=True)
    for level in levels:
        results.add(target, level)
    if fold.scale:
        results.each(lambda _, k: f"{target.at(k)} = {own}({target.at(k)}{fold.scale});")


@emitter("sum", "max", "min", "any", "all", widens=True)
def _reduce(block: Block, node: Node) -> None:
    reduce(block, node, node.op.name, node.attributes["axes"])


@emitter("mean", widens=True)
def _mean(block: Block, node: Node) -> None:
    x, axes = node.instr.ins[0], node.attributes["axes"]
    reduce(block, node, "sum", axes, f" / {c_type(node.instr.aval.dtype)}({math.prod(x.shape[k] for k in axes)})")


@emitter("prod", widens=True)
def _prod(block: Block, node: Node) -> None:
    reduce(block, node, "prod", (node.attributes["axis"],))


@emitter("sum_to", widens=True)
def _sum_to(block: Block, node: Node) -> None:
    x, shape = node.instr.ins[0], node.attributes["shape"]
    lead = len(x.shape) - len(shape)
    axes = [k for k, n in enumerate(x.shape) if k < lead or (shape[k - lead] == 1 and n != 1)]
    reduce(block, node, "sum", axes)


def by_rows(
    block: Block, node: Node, axis: int, strides: Sequence[Sequence[int]], row: Callable[[list[str]], None], cost: int
) -> None:
    """Write what is done with each row along an axis of the first operand, and settle the result.

    Args:
        strides: of each view that `row` takes a place in; that along the axis does not count.
        cost: additions for all rows.
    """
    shape = node.instr.ins[0].shape
    kept = [k for k in range(len(shape)) if k != axis]
    steps = [[own[k] for k in kept] for own in strides]
    block.writer.nest([shape[k] for k in kept], steps, row, ordered=True, cost=cost, grain=1)
    block.cost += cost
    block.settle(node)


@emitter("argmax", "argmin", widens=True)
def _place(block: Block, node: Node) -> None:
    axis, keepdims = node.attributes["axis"], node.attributes["keepdims"]
    x = node.instr.ins[0]
    check(x)
    writer = block.writer
    view = as_view(block, block.operand(node, 0), x)
    target = block.result(node)
    out = target.strides if keepdims else (*target.strides[:axis], 0, *target.strides[axis:])
    beats = ">" if node.op.name == "argmax" else "<"

    def one(at: list[str]) -> None:
        best, place, k, new = (writer.name("p") for _ in range(4))
        own = c_type(x.dtype)
        writer.line(f"{own} {best} = {view.at(at[0])};")
        writer.line(f"int64_t {place} = 0;")
        with writer.braces(f"for (int64_t {k} = 1; {k} < {x.shape[axis]}; ++{k})"):
            source = at[0], f"{k} * {view.strides[axis]}"
            writer.line(f"const {own} {new} = {view.at(*source)};")
            # the first NaN wins
            wins = f"{new} {beats} {best} || ({new} != {new} && {best} == {best})"
            if kind_of(x.dtype) == "f":
                wins = f"{best} == {best} && ({wins})"
            writer.line(f"if ({wins}) {{ {best} = {new}; {place} = {k}; }}")
        writer.line(f"{target.at(at[1])} = {place};")

    by_rows(block, node, axis, [view.strides, out], one, 3 * x.size)


@emitter("cumsum", "cumprod", widens=True)
def _running(block: Block, node: Node) -> None:
    axis = node.attributes["axis"]
    x, a = node.instr.ins[0], node.instr.aval
    check(x)
    check(a)
    writer, own = block.writer, c_type(a.dtype)
    view = as_view(block, block.operand(node, 0), x)
    target = block.result(node)
    sign, start = ("+", 0) if node.op.name == "cumsum" else ("*", 1)
    wide = "double" if own == "float" else own  # as in torch

    def one(at: list[str]) -> None:
        total, k = writer.name("p"), writer.name("p")
        writer.line(f"{wide} {total} = {start};")
        with writer.braces(f"for (int64_t {k} = 0; {k} < {x.shape[axis]}; ++{k})"):
            source = at[0], f"{k} * {view.strides[axis]}"
            to = at[1], f"{k} * {target.strides[axis]}"
            writer.line(f"{total} = {wide}({total} {sign} {own}({view.at(*source)}));")
            writer.line(f"{target.at(*to)} = {own}({total});")

    by_rows(block, node, axis, [view.strides, target.strides], one, 2 * x.size)


# -- products


def product(
    block: Block, a: Aval, target: View, x: View, y: View,
    batch: Sequence[tuple[int, int, int, int]], rows: int, inner: int, columns: int,
    strides: tuple[int, int, int, int, int, int],
) -> None:  # fmt: skip
    """Write products of matrices, out[i, j] = sum over k of x[i, k] * y[k, j].

    Args:
        a: the type of the result.
        batch: for each batch axis its size, and its strides in `x`, in `y` and in the result.
        strides: of x along i and k, of y along k and j, of the result along i and j.
    """
    writer, own = block.writer, c_type(a.dtype)

    def one(at: list[str]) -> None:
        given = ", ".join(v.pointer(p) for v, p in zip((x, y, target), at, strict=True))
        kind = ", ".join(map(str, (own, rows, inner, columns, *strides)))
        if parts > 1:
            writer.line(f"shared_product<Product<{kind}>>(team, {parts}, {given});")
        else:
            writer.line(f"product<{kind}>({given});")

    count = math.prod([n for n, *_ in batch])
    cost = 1 + count * rows * inner * columns // PRODUCTS
    # threads share a product, or several
    parts = writer.parts(cost) if count == 1 else 1
    writer.nest([n for n, *_ in batch], [[b[k] for b in batch] for k in (1, 2, 3)], one, cost=cost, grain=1)
    block.cost += cost


@emitter("matmul", widens=True)
def _matmul(block: Block, node: Node) -> None:
    p, q = node.instr.ins
    a = node.instr.aval
    for one in (p, q, a):
        check(one)
    x, y = (as_view(block, block.operand(node, k), one) for k, one in enumerate((p, q)))
    # a vector is a matrix with one row, or one column
    p_shape, p_strides = (p.shape, x.strides) if len(p.shape) > 1 else ((1, *p.shape), (0, *x.strides))
    q_shape, q_strides = (q.shape, y.strides) if len(q.shape) > 1 else ((*q.shape, 1), (*y.strides, 0))
    shape = list(a.shape)
    if len(p.shape) == 1:
        shape.insert(len(shape) - (len(q.shape) > 1), 1)
    if len(q.shape) == 1:
        shape.append(1)
    out = contiguous_strides(tuple(shape))
    target = block.result(node)
    lead = len(shape) - 2
    batch = []
    for k in range(lead):
        own = []
        for s, t in ((p_shape, p_strides), (q_shape, q_strides)):
            axis = k - lead + len(s) - 2
            own.append(t[axis] if axis >= 0 and s[axis] != 1 else 0)
        batch.append((shape[k], own[0], own[1], out[k]))
    strides = (p_strides[-2], p_strides[-1], q_strides[-2], q_strides[-1], out[-2], out[-1])
    product(block, a, target, x, y, batch, p_shape[-2], p_shape[-1], q_shape[-1], strides)
    block.settle(node)


@emitter("einsum", widens=True)
def _einsum(block: Block, node: Node) -> None:
    """Sums of products of one or two operands, by loops over all labels."""
    equation = node.attributes["equation"]
    terms, _, result = equation.partition("->")
    labels = terms.split(",")
    if "." in equation or "->" not in equation:
        raise UnsupportedLoopError(f"native loops have no einsum {equation!r}")
    a = node.instr.aval
    for one in (a, *node.instr.ins):
        check(one)
    sizes: dict[str, int] = {}
    for term, one in zip(labels, node.instr.ins, strict=True):
        sizes.update(zip(term, one.shape, strict=True))
    views = [as_view(block, block.operand(node, k), one) for k, one in enumerate(node.instr.ins)]

    def steps(term: str, strides: Sequence[int], order: str) -> list[int]:
        return [sum(s for c, s in zip(term, strides, strict=True) if c == label) for label in order]

    target = block.result(node)
    own_out = contiguous_strides(a.shape)
    summed = "".join(label for label in sizes if label not in result)
    total = math.prod(sizes.values())
    if total > MAX_EINSUM:
        raise UnsupportedLoopError("a large einsum takes longer than a call of torch")
    writer, own = block.writer, c_type(a.dtype)
    outs = steps(result, own_out, result)
    shape = [sizes[c] for c in result]
    writer.nest(shape, [outs], lambda at: writer.line(f"{target.at(at[0])} = {own}(0);"))
    given = [steps(term, view.strides, result) for term, view in zip(labels, views, strict=True)]
    along = [steps(term, view.strides, summed) for term, view in zip(labels, views, strict=True)]

    def outer(at: list[str]) -> None:
        def inner(place: list[str]) -> None:
            factors = [view.at(i, j) for view, i, j in zip(views, at, place, strict=False)]
            old = target.at(place[-1])
            writer.line(f"{old} = {own}({old} + {' * '.join(factors)});")

        writer.nest(shape, [*given, outs], inner)

    writer.nest([sizes[c] for c in summed], along, outer, ordered=True)
    block.cost += 2 * total
    block.settle(node)


# -- softmax and its kin


def _along(block: Block, node: Node, axis: int, body: str) -> None:
    """Write a function of each row along an axis, ``body(x, stride, out, stride, count)``."""
    x, a = node.instr.ins[0], node.instr.aval
    check(a)
    view = as_view(block, block.operand(node, 0), x)
    target = block.result(node)

    def one(at: list[str]) -> None:
        source, to = view.pointer(at[0]), target.pointer(at[1])
        block.writer.line(f"{body}({source}, {view.strides[axis]}, {to}, {target.strides[axis]}, {x.shape[axis]});")

    by_rows(block, node, axis, [view.strides, target.strides], one, 12 * x.size)


@emitter("softmax", "log_softmax", widens=True)
def _softmax(block: Block, node: Node) -> None:
    _along(block, node, node.attributes["axis"], f"{node.op.name}<{c_type(node.instr.aval.dtype)}>")


@emitter("logsumexp", widens=True)
def _logsumexp(block: Block, node: Node) -> None:
    axes = node.attributes["axes"]
    x, a = node.instr.ins[0], node.instr.aval
    check(a)
    if kind_of(x.dtype) != "f":
        raise UnsupportedLoopError(f"native loops have no logsumexp of {x!r}")
    # over one axis at the end: the reduced elements of each result, side by side
    view = as_view(block, block.operand(node, 0), x)
    order = [k for k in range(len(x.shape)) if k not in axes]
    moved = View(view.base, tuple(view.strides[k] for k in (*order, *axes)), view.offset)
    flat = block.writer.dense(moved, aval(tuple(x.shape[k] for k in (*order, *axes)), x.dtype))
    count = math.prod(x.shape[k] for k in axes)
    target = block.result(node)
    shape = [x.shape[k] for k in order]
    out = contiguous_strides(tuple(shape))
    writer, own = block.writer, c_type(a.dtype)

    def one(at: list[str]) -> None:
        source = flat.pointer(at[0])
        writer.line(f"{target.at(at[1])} = logsumexp<{own}>({source}, 1, {count});")

    cost = 12 * x.size
    writer.nest(shape, [[s * count for s in out], out], one, ordered=True, cost=cost, grain=1)
    block.cost += cost
    block.settle(node)


@emitter("log_softmax_grad", widens=True)
def _log_softmax_grad(block: Block, node: Node) -> None:
    axis = node.attributes["axis"]
    a = node.instr.aval
    check(a)
    g, y = (as_view(block, block.operand(node, k), a) for k in (0, 1))
    target = block.result(node)
    writer, views = block.writer, (g, y, target)

    def one(at: list[str]) -> None:
        total, k = writer.name("p"), writer.name("p")
        own = c_type(a.dtype)
        head = f"for (int64_t {k} = 0; {k} < {a.shape[axis]}; ++{k})"
        places = [plus(place, f"{k} * {view.strides[axis]}") for place, view in zip(at, views, strict=True)]
        first = g.pointer(at[0])
        writer.line(f"const {own} {total} = sum<{own}>({first}, {g.strides[axis]}, {a.shape[axis]});")
        writer.line("#pragma GCC ivdep")
        writer.line(f"{head} {target.at(places[2])} = {g.at(places[0])} - m::exp({y.at(places[1])}) * {total};")

    by_rows(block, node, axis, [view.strides for view in views], one, 12 * a.size)
