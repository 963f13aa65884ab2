"""Known ranges of integer arrays that are indices, and the treatment of out-of-range indices.

No value is read: a range comes from the operation that computes the indices, or from host data.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy
import torch

from gtrace.core.base.errors import ArgumentError, BoundsError, message
from gtrace.core.ir.cpp import Cpp
from gtrace.core.ops.batching import unchanged
from gtrace.core.ops.checks import same_kind
from gtrace.core.ops.declare import Array, Sample, bind, define, lift
from gtrace.core.ops.elementwise import add
from gtrace.core.ops.logic import bitwise_and, bitwise_right_shift, equal
from gtrace.core.ops.samples import rng
from gtrace.core.ops.sharding_rules import same
from gtrace.core.trace.index_ranges import Span, span

READ_MODES = ("fill", "drop", "clip", "promise_in_bounds")
"""What functions that read may do with indices out of range, by JAX's names."""

clamp_op = define(
    "clamp_index", lambda i, low, high: torch.clamp(i, low, high), params=("low", "high"),
    nondiff="the result is an index", shape=same_kind, batch=unchanged, factors=same,
    span=lambda avals, spans, low, high: (low, high),
    samples=lambda: [Sample((rng(1).integers(-9, 9, (4, 3)), -3, 2))], reference=numpy.clip,
    user=lambda i, low, high: bind(clamp_op, (lift("clamp_index", i),), (low, high)),
    cpp=Cpp(lambda low, high: f"minimum<{{T}}>(maximum<{{T}}>({{0}}, {{T}}({low})), {{T}}({high}))", "i", 2),
)  # fmt: skip


def host_span(value: Any) -> Span | None:
    """Return the range of the integers in a Python number, a list or a NumPy array; None for other values."""
    if not isinstance(value, (int, list, numpy.ndarray, numpy.integer)):
        return None
    host = numpy.asarray(value)
    return (int(host.min()), int(host.max())) if host.size and host.dtype.kind in "iu" else None


def is_loose(index: Array, size: int, known: Span | None = None) -> bool:
    """Return whether `index` may be out of range for an axis of `size` elements.

    Args:
        known: the range of `index`, if known.
    """
    if not index.size:
        return False
    if not size:
        got = f"{index.aval!r} for an axis without elements"
        raise BoundsError(message("index", "an axis with elements", got, 'Drop the index, or use mode="fill".'))
    found = known or span(index)
    return found is None or found[0] < -size or found[1] >= size


def clamped(index: Array, size: int, low: int | None = None) -> Array:
    """Return `index` with out-of-range indices moved to the nearest end.

    Args:
        low: the first index inside. None: negative ones still count from the end.
    """
    return bind(clamp_op, (index,), (-size if low is None else low, size - 1))


def counted_from_front(index: Array, size: int) -> Array:
    """Return `index` with negative indices replaced by those counted from the front."""
    found = span(index)
    if found is not None and found[0] >= 0:
        return index
    # the shift gives -1 for negative indices and 0 for others; `where` would take three times as long
    return add(index, bitwise_and(bitwise_right_shift(index, 63), size))


def is_inside(index: Array, size: int) -> Array:
    """Return where `index` is in range."""
    return equal(clamped(index, size), index)


def fill_for(x: Array, fill_value: Any) -> Any:
    """Return `fill_value`; by default NaN, the least signed or greatest unsigned integer, or True."""
    if fill_value is not None:
        return fill_value
    if x.aval.floating:
        return float("nan")
    if x.aval.dtype is torch.bool:
        return True
    info = torch.iinfo(x.aval.dtype)
    return info.min if info.min else info.max


def mode_name(name: str, mode: Any, modes: tuple[str, ...] = READ_MODES) -> str | None:
    """Return a mode, which may be a member of ``lax.GatherScatterMode``, as one of `modes`, or None; else raise."""
    mode = mode.value if isinstance(mode, enum.Enum) else mode
    if mode is not None and mode not in modes:
        raise ArgumentError(message(name, f"a mode among {', '.join(modes)}", repr(mode), "Use one of them, or None."))
    return mode
