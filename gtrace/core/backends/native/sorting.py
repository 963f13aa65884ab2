"""Sorting as C++: a stable merge sort of each row."""

from __future__ import annotations

import torch

from gtrace.core.backends.native.arrange import as_view
from gtrace.core.backends.native.block import Block, check, emitter
from gtrace.core.backends.native.values import c_type
from gtrace.core.ir.aval import aval, contiguous_strides
from gtrace.core.ir.graph import Node


@emitter("sort", "argsort", widens=True)
def _sort(block: Block, node: Node) -> None:
    axis, descending = node.attributes["axis"], node.attributes["descending"]
    x, a = node.instr.ins[0], node.instr.aval
    check(x)
    writer, count = block.writer, x.shape[axis]
    view = as_view(block, block.operand(node, 0), x)
    target = block.result(node)
    strides = contiguous_strides(a.shape)
    kept = [k for k in range(len(x.shape)) if k != axis]
    # two rows of elements with their places, 16 bytes each at most
    memory = writer.buffer(aval((4 * count,), torch.int64))
    part = "key" if node.op.name == "sort" else "place"

    def row(at: list[str]) -> None:
        own, found, k = f"Placed<{c_type(x.dtype)}>", writer.name("p"), writer.name("p")
        source, descends = view.pointer(at[0]), "true" if descending else "false"
        text = f"sorted<{c_type(x.dtype)}, {descends}>({source}, {view.strides[axis]}, {count}, {memory.base})"
        writer.line(f"const {own}* const {found} = {text};")
        to = target.at(at[1], f"{k} * {strides[axis]}")
        writer.line(f"for (int64_t {k} = 0; {k} < {count}; ++{k}) {to} = {found}[{k}].{part};")

    writer.nest(
        [x.shape[k] for k in kept], [[view.strides[k] for k in kept], [strides[k] for k in kept]], row, ordered=True
    )
    block.cost += 4 * x.size * max(count.bit_length(), 1)
    block.settle(node)
