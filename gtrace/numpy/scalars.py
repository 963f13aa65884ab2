"""Constants, classes of dtypes, and other names of dtypes."""

from __future__ import annotations

from math import e, inf, nan, pi

from numpy import (
    character,
    complexfloating,
    flexible,
    floating,
    generic,
    inexact,
    integer,
    number,
    object_,
    signedinteger,
    unsignedinteger,
)

from gtrace.core.base import dtypes

__all__ = [
    "bool_", "cdouble", "character", "complex_", "complexfloating", "csingle", "double", "dtype", "e", "euler_gamma",
    "flexible", "float_", "floating", "generic", "half", "inexact", "inf", "int_", "integer", "nan", "newaxis",
    "number", "object_", "pi", "signedinteger", "single", "uint", "unsignedinteger",
]  # fmt: skip

euler_gamma = 0.5772156649015329
newaxis = None
bool_, int_, uint = dtypes.bool, dtypes.int64, dtypes.uint64
half, single, float_, double = dtypes.float16, dtypes.float32, dtypes.float32, dtypes.float64
csingle, complex_, cdouble = dtypes.complex64, dtypes.complex64, dtypes.complex128
dtype = dtypes.DType
