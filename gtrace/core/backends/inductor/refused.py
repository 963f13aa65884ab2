"""What Inductor cannot compile, or computes otherwise than torch: such operations are interpreted."""

from __future__ import annotations

import torch

from gtrace.core.backends.native.values import SHORT_FLOATS
from gtrace.core.base.dtypes import FLOAT8, WIDE_UNSIGNED
from gtrace.core.base.mechanisms import NEAREST_BY_SCALES
from gtrace.core.ir.aval import Bundle
from gtrace.core.ir.graph import Graph, Node, subgraphs

RECURRENCES = tuple(
    f"aten.special_{name}_polynomial_" for name in ("chebyshev", "shifted_chebyshev", "hermite", "laguerre", "legendre")
)
"""Polynomials whose recurrences amplify roundings, until one result is infinite and the other is NaN."""


def uncompilable(graph: Graph) -> str:
    """Return why Inductor cannot compile a program as a whole; empty if nothing is known against it."""
    for node in graph.nodes:
        found = refusal(node) or next(filter(None, (uncompilable(s.graph) for s in subgraphs(node.params))), "")
        if found:
            return found
    return ""


def refusal(node: Node) -> str:
    """Return why Inductor cannot compile an operation, by the dtypes of its operands and results."""
    if node.op.effect:
        return "Python functions are called by the interpreter"
    if node.op.interpreted:
        return "the interpreter alone has its kernel"
    if NEAREST_BY_SCALES.on and _is_nearest_by_scales(node):
        NEAREST_BY_SCALES.used()
        return "Inductor takes other neighbours than torch for scales that are no integers"
    found = _rounds_otherwise(node)
    if found:
        return found
    for a in (*node.instr.ins, node.instr.aval):
        for one in a.avals if isinstance(a, Bundle) else (a,):
            if one.complex:
                return "Inductor generates no code for complex numbers"
            if one.dtype in FLOAT8:
                return "Inductor's code for float8 is incomplete"
            if one.dtype in WIDE_UNSIGNED and not _moves_words(node):
                return "Inductor's code for uint16, uint32 and uint64 is incomplete"
    return ""


def _is_nearest_by_scales(node: Node) -> bool:
    """Whether a node takes nearest neighbours by scales that do not make the sizes of its result.

    torch's kernels differ in their rounding by the strides of what they are given, and Inductor has another
    (pytorch/pytorch#198201, #175154).
    """
    if not str(node.attributes.get("overload")).startswith(("aten.upsample_nearest", "aten._upsample_nearest")):
        return False
    args = node.attributes["args"]
    sizes = [x for x in args[1:] if isinstance(x, tuple)]
    scales = [x for x in args[1:] if isinstance(x, (int, float))]
    big = sizes[0]
    small = (node.instr.ins[0].shape if len(sizes) == 1 else sizes[1])[-len(big) :]
    return bool(scales) and (
        len(scales) != len(big) or any(k * n != m for k, n, m in zip(scales, small, big, strict=True))
    )


def _rounds_otherwise(node: Node) -> str:
    """Return why Inductor's results would differ much from torch's because of rounding; empty: they would not."""
    overload, aval = str(node.attributes.get("overload")), node.instr.aval
    if overload.startswith(RECURRENCES):
        return "Inductor rounds recurrences of polynomials otherwise than torch"
    if isinstance(aval, Bundle):
        return ""
    if overload.startswith(("aten.upsample_bi", "aten._upsample_bi")) and not aval.floating:
        # torch's weights have 16 bits (pytorch/pytorch#113024)
        return "Inductor interpolates images of bytes with other weights than torch"
    if aval.dtype in SHORT_FLOATS:
        if node.op.name == "nextafter" or overload.startswith("aten.nextafter"):
            return "Inductor's neighbours of 16-bit floats are those of float32"
        if overload.startswith("aten.grid_sampler_2d"):
            return "Inductor rounds places of 16 bits otherwise than torch"
    return ""


def _moves_words(node: Node) -> bool:
    """Whether a node moves and converts integers, of which uint32 are the widest unsigned: Inductor has that."""
    return node.op.moves and all(
        a.dtype is torch.uint32 or not (a.dtype in WIDE_UNSIGNED or a.dtype.is_floating_point)
        for a in (*node.instr.ins, node.instr.aval)
    )
