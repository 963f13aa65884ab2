"""Reductions of the elements of an array that belong to the same segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.extend import FLOATS, ArgumentError, Array, ShapeError, as_int, cast, lift, message, ops, whole

__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]


def _segments(name: str, update: Callable[[Any], Any], start: Callable[[Array], Any]) -> Callable[..., Array]:
    def reduce(data: Any, segment_ids: Any, num_segments: int | None = None, *, mode: str | None = None) -> Array:
        x, ids = lift(name, data), lift(name, segment_ids)
        if not x.ndim or ids.shape != x.shape[:1]:
            got = f"{ids.aval!r} for {x.aval!r}"
            raise ShapeError(message(name, "a segment for each slice along axis 0", got, "Check the shapes."))
        if num_segments is None:
            whole(ids, "size")
            count = int(ops.max(ids)) + 1 if ids.size else 0
        else:
            count = as_int(name, "num_segments", num_segments)
        kind, boolean = x.aval.dtype, x.aval.dtype is torch.bool and start in (_least, _most)
        x = cast(x, torch.uint8) if boolean else x
        base = ops.full((count, *x.shape[1:]), start(x), x.aval.dtype, device=x.aval.device)
        if mode not in (None, "fill", "drop", "clip", "promise_in_bounds"):
            raise ArgumentError(message(name, "drop or clip as mode", repr(mode), "Pass one of them."))
        ids = ops.clip(ids, 0, count - 1) if mode == "clip" else ids
        # a negative place would count from the end
        out: Array = update(base.at[ops.where(ops.less(ids, 0), count, ids)])(x, mode="drop")
        return cast(out, kind) if boolean else out

    reduce.__name__ = reduce.__qualname__ = name
    return reduce


def _least(x: Array) -> Any:
    return -numpy.inf if x.aval.dtype in FLOATS else ops.iinfo(x.aval.dtype).min


def _most(x: Array) -> Any:
    return numpy.inf if x.aval.dtype in FLOATS else ops.iinfo(x.aval.dtype).max


_DOC = """Return the {what} of the slices of `data` along axis 0 that belong to each segment.

    Args:
        segment_ids: the segment of each slice; those outside the range are dropped, or, with the mode "clip", belong
            to the first or last.
        num_segments: the length of the result; by default the largest segment and one. Traced functions need it.

    Raises:
        ShapeError: not one segment for each slice.

    >>> gt.segments.{name}(gt.array([5., 2., 3.]), gt.array([0, 0, 1]), 2)
    {result}
    """

segment_sum = _segments("segment_sum", lambda at: at.add, lambda x: 0)
segment_prod = _segments("segment_prod", lambda at: at.multiply, lambda x: 1)
segment_max = _segments("segment_max", lambda at: at.max, _least)
segment_min = _segments("segment_min", lambda at: at.min, _most)

for _function, _what, _result in (
    (segment_sum, "sum", "[7., 3.]"),
    (segment_prod, "product", "[10.,  3.]"),
    (segment_max, "largest", "[5., 3.]"),
    (segment_min, "smallest", "[2., 3.]"),
):
    _function.__doc__ = _DOC.format(what=_what, name=_function.__name__, result=f"Array({_result}, dtype=float32)")
