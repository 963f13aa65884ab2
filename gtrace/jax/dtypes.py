"""The names of ``jax.dtypes``."""

from __future__ import annotations

from typing import Any

from gtrace import numpy as names
from gtrace.extend import (
    FLOAT0,
    WITHOUT_TORCH,
    ArgumentError,
    DType,
    DtypeError,
    KeyType,
    as_dtype,
    message,
)
from gtrace.extend import extended as extended
from gtrace.extend import prng_key as prng_key
from gtrace.jax.adapt import namespace
from gtrace.jax.numpy import _dtypes

float0 = FLOAT0
TypePromotionError = DtypeError


def scalar_type_of(x: Any) -> type:
    """Return the Python type of the numbers of an array: bool, int, float or complex."""
    kinds = {"b": bool, "i": int, "u": int, "f": float, "c": complex}
    return kinds[_dtypes.result_type(x).kind]


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> Any:
    """Return the dtype that arrays of `dtype` have under the number rules in force: NumPy's, where NumPy has it.

    >>> import numpy
    >>> canonicalize_dtype("float32") is numpy.dtype("float32")
    True
    """
    if allow_extended_dtype and isinstance(dtype, KeyType):
        return dtype
    found = DType(float if dtype is None else dtype)
    if found.name not in WITHOUT_TORCH:
        found = DType(as_dtype(float if dtype is None else dtype))
    return found if found.numpy_type is found else found.dtype


def itemsize_bits(dtype: Any) -> int:
    """Return the bits of an element.

    >>> itemsize_bits("int4"), itemsize_bits("float32")
    (4, 32)
    """
    if dtype is None:
        raise ArgumentError(message("itemsize_bits", "a dtype", "None", "Pass one."))
    return _dtypes.bits(_dtypes.as_numpy(dtype))


def result_type(*args: Any, return_weak_type_flag: bool = False) -> Any:
    """``jax.numpy.result_type``; with the flag, also whether the result gives way to other dtypes.

    >>> result_type(1.5, return_weak_type_flag=True)[1]
    True
    """
    found = _dtypes.lattice(args)
    return found if return_weak_type_flag else found[0]


__getattr__, __dir__ = namespace("jax.dtypes", vars(_dtypes), names)
