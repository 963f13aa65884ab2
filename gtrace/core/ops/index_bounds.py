"""Integer arrays as places of an axis: their known range, and how places outside the axis are treated.

Nothing here looks at values: a range comes from the operation that computes the places, or from data of the host.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace.core.base.errors import ArgumentError, BoundsError, message
from gtrace.core.ir.cases import Sample
from gtrace.core.ir.op import define
from gtrace.core.ops.batching import unchanged
from gtrace.core.ops.checks import same_kind
from gtrace.core.ops.elementwise import add
from gtrace.core.ops.logic import bitwise_and, bitwise_right_shift, equal
from gtrace.core.ops.samples import rng
from gtrace.core.ops.sharding_rules import same
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind
from gtrace.core.trace.convert import lift
from gtrace.core.trace.index_ranges import Span, span

READ_MODES = ("fill", "drop", "clip", "promise_in_bounds")

clamp_op = define(
    "clamp_index", lambda i, low, high: torch.clamp(i, low, high), params=("low", "high"),
    nondiff="the result is an index", shape=same_kind, batch=unchanged, factors=same,
    span=lambda avals, spans, low, high: (low, high),
    samples=lambda: [Sample((rng(1).integers(-9, 9, (4, 3)), -3, 2))], reference=numpy.clip,
    user=lambda i, low, high: bind(clamp_op, (lift("clamp_index", i),), (low, high)),
)  # fmt: skip


def host_span(value: Any) -> Span | None:
    """Return the range of integers in a Python number, a list or a NumPy array; None for anything else."""
    if not isinstance(value, (int, list, numpy.ndarray, numpy.integer)):
        return None
    host = numpy.asarray(value)
    return (int(host.min()), int(host.max())) if host.size and host.dtype.kind in "iu" else None


def is_loose(index: Array, size: int, known: Span | None = None) -> bool:
    """Return whether `index` may hold a place outside an axis of `size` elements.

    Args:
        known: the range of `index`, if it is known already.

    Raises:
        BoundsError: the axis is empty and `index` is not.
    """
    if not index.size:
        return False
    if not size:
        got = f"{index.aval!r} for an axis without elements"
        raise BoundsError(message("index", "an axis with elements", got, 'Drop the index, or use mode="fill".'))
    found = known or span(index)
    return found is None or found[0] < -size or found[1] >= size


def clamped(index: Array, size: int) -> Array:
    """Return `index` with places outside the axis moved to its nearest end; negative ones still count from the end."""
    return bind(clamp_op, (index,), (-size, size - 1))


def counted_from_front(index: Array, size: int) -> Array:
    """Return `index` with the negative places of an axis counted from its front."""
    found = span(index)
    if found is not None and found[0] >= 0:
        return index
    # the shift gives -1 for negative places, and 0 for others; a choice would take three times as long
    return add(index, bitwise_and(bitwise_right_shift(index, 63), size))


def is_inside(index: Array, size: int) -> Array:
    """Return where `index` is a place of the axis."""
    return equal(clamped(index, size), index)


def fill_for(x: Array, fill_value: Any) -> Any:
    """Return what a read outside gives: `fill_value`, or NaN, the least signed or greatest unsigned integer, True."""
    if fill_value is not None:
        return fill_value
    if x.aval.floating:
        return float("nan")
    if x.aval.dtype is torch.bool:
        return True
    info = torch.iinfo(x.aval.dtype)
    return info.min if info.min else info.max


def check_mode(name: str, mode: Any, modes: tuple[str, ...] = READ_MODES) -> None:
    """Refuse a mode that is not None and not among `modes`.

    Raises:
        ArgumentError: with the modes there are.
    """
    if mode is not None and mode not in modes:
        got = repr(mode)
        raise ArgumentError(message(name, f"a mode among {', '.join(modes)}", got, "Use one of them, or None."))
