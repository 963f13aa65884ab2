"""Functions of dtypes: promotion by JAX's lattice, with the dtypes of ml_dtypes that torch lacks."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from gtrace import numpy as ours
from gtrace.dtypes import float16, float32, float64
from gtrace.extend import (
    WITHOUT_TORCH,
    Aval,
    DType,
    DtypeError,
    IntInfo,
    as_dtype,
    aval,
    avals_and_numbers,
    default_dtype,
    meeting,
    message,
)
from gtrace.jax.keys import taking_keys
from gtrace.jax.promotion_checks import checks, fits_strictly, mixed
from gtrace.jax.scalars import WEAK

__all__ = ["can_cast", "finfo", "iinfo", "isdtype", "issubdtype", "promote_types", "result_type"]

_KINDS = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f",
    "complex floating": "c", "numeric": "iufc",
}  # fmt: skip
"""The letters of the dtypes of each kind in the array API."""


_DEFAULTS: dict[str, Any] = {"i": int, "u": "uint64", "f": float, "c": complex}
"""The dtypes of numbers by the letter of their kind."""


def as_numpy(x: Any) -> DType:
    """Return a dtype as NumPy reads it: those of the types int, float and complex have 64 bits."""
    return DType(x.__name__ if _stands_for_numbers(x) else x)


def _stands_for_numbers(x: Any) -> bool:
    return any(x is kind for kind in WEAK)  # a dtype may equal one


def _dtype_of(x: Any) -> Any:
    """Return the dtype of an array or of what has one; of a dtype, itself."""
    return x.dtype if not isinstance(x, (type, DType, numpy.dtype)) and hasattr(x, "dtype") else x


def _without_torch(x: Any) -> DType | None:
    """Return the dtype that is given, or that a NumPy array has, if it is one of those that torch lacks."""
    kind = _dtype_of(x)
    name = kind if isinstance(kind, str) else getattr(kind, "name", None) or getattr(kind, "__name__", None)
    return DType(name) if name in WITHOUT_TORCH else None


def finfo(dtype: Any) -> Any:
    """Return what NumPy knows of a floating dtype, or ml_dtypes where it is installed; else ``gt.finfo``.

    `dtype` may be an array, which stands for its dtype.

    >>> import gtrace.jax.numpy as jnp
    >>> print(jnp.finfo(jnp.float32).eps)
    1.1920929e-07
    """
    kind = as_numpy(_dtype_of(dtype))
    known = kind.kind == "c" or kind in (float16, float32, float64)
    if known or "ml_dtypes" not in sys.modules:
        return numpy.finfo(kind.name) if known else ours.finfo(kind)
    return sys.modules["ml_dtypes"].finfo(kind.name)


def iinfo(int_type: Any) -> Any:
    """Return what NumPy or ml_dtypes knows of an integer dtype, or of that of an array.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.iinfo(jnp.int8).max
    127
    """
    kind = DType(_dtype_of(int_type))
    if kind.name not in WITHOUT_TORCH or kind.kind == "f":
        return numpy.iinfo(kind.name) if kind.kind in "iu" else ours.iinfo(kind)
    if "ml_dtypes" in sys.modules:
        return sys.modules["ml_dtypes"].iinfo(kind.name)
    top = bits(kind) - (kind.kind == "i")
    return IntInfo(kind, bits(kind), 2**top - 1, -(2**top) if kind.kind == "i" else 0)


def bits(dtype: DType) -> int:
    """Return the bits of an element, which a dtype's name begins with after its kind."""
    found = re.search(r"\d+", dtype.name)
    return int(found[0]) if found else 8


def isdtype(dtype: Any, kind: Any) -> Any:
    """``gt.isdtype``, which counts float8 as real floating, and knows the dtypes of ml_dtypes.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.isdtype(jnp.int4, "integral"), jnp.isdtype(jnp.float8_e5m2, ("bool", "real floating"))
    (True, True)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return as_numpy(dtype).kind in _KINDS[kind]
    return as_numpy(dtype) is as_numpy(kind)


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """``gtrace.numpy.issubdtype``, for which the types int, float and complex have 64 bits.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.issubdtype(jnp.float32, jnp.floating), jnp.issubdtype(jnp.float32, float)
    (True, False)
    """
    return ours.issubdtype(*[as_numpy(x) if _stands_for_numbers(x) else x for x in (arg1, arg2)])


def can_cast(from_: Any, to: Any, casting: str = "safe") -> Any:
    """``gt.can_cast``, and NumPy's for the dtypes that it has from ml_dtypes alone, where that is imported.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.can_cast(jnp.int8, jnp.int16), jnp.can_cast(jnp.int16, jnp.int8)
    (True, False)
    """
    from_, to = [as_numpy(x) if _stands_for_numbers(x) else x for x in (from_, to)]
    if _without_torch(from_) is None and _without_torch(to) is None:
        return ours.can_cast(from_, to, casting)
    return numpy.can_cast(DType(_dtype_of(from_)).dtype, DType(_dtype_of(to)).dtype, casting)  # type: ignore[arg-type]


@functools.partial(taking_keys, "jax.numpy.result_type")
def result_type(*args: Any) -> DType:
    """Return the dtype that arrays, dtypes and numbers are promoted to; that of weak arrays is the default.

    The types int, float and complex stand for Python numbers, and None for the default dtype of floats.

    Raises:
        DtypeError: they have none in common, or, with ``jax_numpy_dtype_promotion="strict"``, differ.

    >>> import gtrace.jax.numpy as jnp
    >>> print(jnp.result_type(jnp.int8, float), jnp.result_type(jnp.int8, int), jnp.result_type(jnp.int4, bool))
    float32 int8 int4
    """
    return lattice(args)[0]


def lattice(args: Sequence[Any]) -> tuple[DType, Any]:
    """Return the `result_type` of arrays, dtypes and numbers, and whether it gives way to others."""
    given = [x(0) if _stands_for_numbers(x) else default_dtype(float) if x is None else x for x in args]
    narrow = {kind for x in given if (kind := _without_torch(x)) is not None}
    if narrow:
        return _of_ml_dtypes(given, narrow), False
    return _met(*avals_and_numbers(given), lambda x: DType(as_dtype(x)))


def _met(avals: Sequence[Aval], numbers: Sequence[Any], default: Callable[[Any], DType]) -> tuple[DType, bool]:
    """Return the dtype that operands are promoted to, and whether it gives way to others: then it is a `default`."""
    dtype, weak = meeting(avals, numbers)
    if checks.dtypes == "strict" and not fits_strictly(avals, numbers):
        raise mixed("result_type", [DType(a.dtype).name for a in avals])
    found = DType(dtype)
    if not weak or found.kind == "b":
        return found, False
    return default(_DEFAULTS[found.kind]), True


def _of_ml_dtypes(given: Sequence[Any], narrow: set[DType]) -> DType:
    """Return the dtype of operands of which some have a dtype that torch lacks: that one, or none."""
    kind, *more = narrow
    taken = ("biu" if kind.kind == "f" else "b", (int, float) if kind.kind == "f" else (int,))
    others = [x for x in given if _without_torch(x) is None]
    if more or not all(type(x) in taken[1] or DType(_dtype_of(x)).kind in taken[0] for x in others):
        fix = "Convert one with x.astype(...)."
        raise DtypeError(message("promotion", "dtypes with a common one", repr(given), fix))
    return kind


def promote_types(a: Any, b: Any) -> DType:
    """Return the dtype that two dtypes are promoted to, also one of 64 bits without ``x64``.

    The types int, float and complex stand for Python numbers.

    >>> import gtrace.jax.numpy as jnp
    >>> print(jnp.promote_types(jnp.int32, jnp.float16), jnp.promote_types(jnp.int8, int))
    float16 int8
    """
    numbers = [x(0) for x in (a, b) if _stands_for_numbers(x)]
    kinds = [as_numpy(x) for x in (a, b) if not _stands_for_numbers(x)]
    if any(kind.name in WITHOUT_TORCH for kind in kinds):
        return result_type(*kinds, *numbers)
    return _met([aval((), kind.torch) for kind in kinds], numbers, as_numpy)[0]
