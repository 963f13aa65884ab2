"""Dtypes and devices, and how they follow from operands and settings."""

from gtrace.core.base.devices import as_device
from gtrace.core.base.dtypes import COMPLEX, FLOAT0, FLOATS, INEXACT, LONG, UNSIGNED, WITHOUT_TORCH
from gtrace.core.ops.dtype_info import IntInfo, avals_and_numbers
from gtrace.core.ops.saturation import INTEGERS, saturated
from gtrace.core.trace.promotion import as_dtype, default_dtype, meeting, of_user, promote_dtypes, result_dtype

__all__ = [
    "COMPLEX", "FLOAT0", "FLOATS", "INEXACT", "INTEGERS", "IntInfo", "LONG", "UNSIGNED", "WITHOUT_TORCH",
    "as_device", "as_dtype", "avals_and_numbers", "default_dtype", "meeting", "of_user", "promote_dtypes",
    "result_dtype", "saturated",
]  # fmt: skip
