"""``jax._src.dtypes``, at the place where flax and tinygp look for it."""

from __future__ import annotations

from typing import Any

from gtrace import dtypes
from gtrace.extend import DType, as_dtype
from gtrace.jax.dtypes import TypePromotionError, extended, finfo, issubdtype, prng_key
from gtrace.jax.extend.absent import absent_class
from gtrace.jax.private_places import public_names

ExtendedDType = absent_class("ExtendedDType")

__all__ = [
    "DType", "ExtendedDType", "TypePromotionError", "extended", "finfo", "issubdtype", "prng_key", "supports_inf",
    "to_complex_dtype",
]  # fmt: skip


def supports_inf(dtype: Any) -> bool:
    """Return whether a dtype has infinities.

    >>> supports_inf("float16"), supports_inf("float8_e4m3fn"), supports_inf("int32")
    (True, False, False)
    """
    kind = DType(dtype)
    return kind.kind == "f" and kind.name in ("float16", "bfloat16", "float32", "float64", "float8_e5m2")


def to_complex_dtype(dtype: Any) -> DType:
    """Return the complex dtype of numbers whose parts have a dtype.

    >>> to_complex_dtype("float32").name, to_complex_dtype("int8").name
    ('complex64', 'complex64')
    """
    kind = DType(as_dtype(dtype))
    if kind.kind == "c":
        return kind
    return dtypes.complex128 if kind.name in ("float64", "int64", "uint64") else dtypes.complex64


__getattr__ = public_names(__name__)
