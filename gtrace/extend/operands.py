"""Operands: arrays of what users pass, and axes, sizes and indices, checked."""

from gtrace.core.ops.counts import is_short, over_count, unshortened
from gtrace.core.ops.index_bounds import READ_MODES, mode_name
from gtrace.core.ops.index_split import as_index, negatives_outside
from gtrace.core.ops.operands import as_arrays, cast, deferring, promote_arrays, weakened, with_avals
from gtrace.core.ops.pad_modes import by_axis
from gtrace.core.ops.shape import (
    as_int,
    as_shape,
    as_size,
    as_sizes,
    constant,
    normalize_axes,
    normalize_axis,
    with_axis,
)
from gtrace.core.ops.unique import places_where
from gtrace.core.trace.array import wrap
from gtrace.core.trace.convert import lift, new_tensor, python_scalar, real_scalar

__all__ = [
    "READ_MODES", "as_arrays", "as_index", "as_int", "as_shape", "as_size", "as_sizes", "by_axis", "cast",
    "constant", "deferring", "is_short", "lift", "mode_name", "negatives_outside", "new_tensor", "normalize_axes",
    "normalize_axis", "over_count", "places_where", "promote_arrays", "python_scalar", "real_scalar", "unshortened",
    "weakened", "with_avals", "with_axis", "wrap",
]  # fmt: skip
