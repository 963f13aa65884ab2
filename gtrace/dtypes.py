"""The dtypes of arrays: torch's own."""

from torch import bfloat16, bool, float16, float32, float64, int8, int16, int32, int64, uint8  # noqa: A004

__all__ = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
