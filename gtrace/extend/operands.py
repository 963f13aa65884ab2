"""Arrays of what users pass: operands, axes, sizes and indices, checked."""

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
from gtrace.core.trace.array import Array, wrap
from gtrace.core.trace.convert import lift, new_tensor, python_scalar, real_scalar
from gtrace.core.transform.arguments import is_array, is_empty, lift_outputs, like, name_of, named, without_empty

__all__ = [
    "Array", "READ_MODES", "as_arrays", "as_index", "as_int", "as_shape", "as_size", "as_sizes", "by_axis",
    "cast", "constant", "deferring", "is_array", "is_empty", "is_short", "lift", "lift_outputs", "like",
    "mode_name", "name_of", "named", "negatives_outside", "new_tensor", "normalize_axes", "normalize_axis",
    "over_count", "places_where", "promote_arrays", "python_scalar", "real_scalar", "unshortened", "weakened",
    "with_avals", "with_axis", "without_empty", "wrap",
]  # fmt: skip
