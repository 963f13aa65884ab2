"""Limits, kinds, promotion and casts of dtypes."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import attrs
import numpy
import torch

from gtrace.core.base.dtypes import BIT_DTYPES, FLOAT8, FLOATS, LONG, DType
from gtrace.core.base.errors import ArgumentError, DtypeError, message
from gtrace.core.ops.declare import Array, Aval, aval
from gtrace.core.trace.convert import lift, python_scalar
from gtrace.core.trace.promotion import as_dtype, narrowed, result_dtype

__all__ = ["can_cast", "finfo", "iinfo", "isdtype", "result_type"]

SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex64, torch.complex128)
REAL = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
KINDS: dict[str, tuple[torch.dtype, ...]] = {
    "bool": (torch.bool,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": SIGNED + UNSIGNED,
    "real floating": REAL,
    "complex floating": COMPLEX,
    "numeric": SIGNED + UNSIGNED + REAL + COMPLEX,
}
"""The dtypes of each kind in the array API."""


@attrs.frozen
class FloatInfo:
    """The limits of a floating dtype, with the names of NumPy and the array API.

    Attributes:
        eps, epsneg: the distance from 1.0 to the next float above, and to the next below.
        smallest_normal, tiny: the smallest positive float of full precision.
        smallest_subnormal: the smallest positive float.
        resolution: the decimal precision, as a power of ten.
    """

    dtype: DType
    bits: int
    max: float
    min: float
    eps: float
    epsneg: float
    smallest_normal: float
    tiny: float
    smallest_subnormal: float
    resolution: float


@attrs.frozen
class IntInfo:
    """The limits of an integer dtype."""

    dtype: DType
    bits: int
    max: int
    min: int


def dtype_of(x: Any) -> torch.dtype:
    """Return the dtype of an array of any library, or the dtype that x names."""
    array = not isinstance(x, (type, DType)) and hasattr(x, "shape") and hasattr(x, "dtype")
    return DType(x.dtype if array else x).torch


def finfo(dtype: Any) -> FloatInfo:
    """Return the limits of a floating dtype or array; for complex numbers, those of their components.

    Raises:
        DtypeError: the dtype is neither floating nor complex.

    >>> gt.finfo(gt.float32).eps
    1.1920928955078125e-07
    """
    kind = dtype_of(dtype)
    if kind in COMPLEX:
        kind = kind.to_real()
    if kind not in FLOATS | FLOAT8:
        raise DtypeError(message("finfo", "a floating dtype", LONG[kind], "Use gt.iinfo for integers."))
    info = torch.finfo(kind)
    small = info.smallest_normal
    limits = info.max, info.min, info.eps, info.eps / 2, small, small, small * info.eps, info.resolution
    return FloatInfo(DType(kind), info.bits, *limits)


def iinfo(dtype: Any) -> IntInfo:
    """Return the limits of an integer dtype or array.

    Raises:
        DtypeError: it is not an integer dtype.

    >>> gt.iinfo(gt.int8).max
    127
    """
    kind = dtype_of(dtype)
    if kind not in KINDS["integral"]:
        raise DtypeError(message("iinfo", "an integer dtype", LONG[kind], "Use gt.finfo for floats."))
    info = torch.iinfo(kind)
    return IntInfo(DType(kind), info.bits, info.max, info.min)


def isdtype(dtype: Any, kind: Any) -> builtins.bool:
    """Return whether a dtype equals another one, or belongs to a kind of the array API or to one of several kinds.

    Args:
        kind: a dtype, ``"bool"``, ``"signed integer"``, ``"unsigned integer"``, ``"integral"``, ``"real floating"``,
            ``"complex floating"``, ``"numeric"``, or a tuple of these.

    >>> gt.isdtype(gt.int8, "integral"), gt.isdtype(gt.int8, (gt.float32, "bool"))
    (True, False)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str) and kind in KINDS:
        return as_dtype(dtype) in KINDS[kind]
    return as_dtype(dtype) is as_dtype(kind)


def result_type(*arrays_and_dtypes: Any) -> DType:
    """Return the promoted dtype of arrays, dtypes and Python numbers.

    Raises:
        ArgumentError: no argument is given.

    >>> gt.result_type(gt.int32, gt.float16, 2.5)
    gtrace.float16
    """
    return DType(result_dtype(*avals_and_numbers(arrays_and_dtypes)))


def avals_and_numbers(
    arrays_and_dtypes: Sequence[Any],
) -> tuple[list[Aval], list[builtins.bool | int | float | complex]]:
    """Return the avals of arrays and dtypes, and the Python numbers among them: what promotion depends on."""
    if not arrays_and_dtypes:
        raise ArgumentError(message("result_type", "arrays, dtypes or numbers", "nothing", "Pass at least one."))
    avals, scalars = [], []
    for x in arrays_and_dtypes:
        if isinstance(x, (bool, int, float, complex)) and not isinstance(x, numpy.generic):
            value = python_scalar(x)
            assert value is not None
            scalars.append(value)
        elif isinstance(x, Array):
            avals.append(lift("result_type", x).aval)
        else:
            named = isinstance(x, (type, torch.dtype))  # torch's dtypes keep their width
            avals.append(aval((), as_dtype(x) if named else narrowed(dtype_of(x))))
    return avals, scalars


def can_cast(from_: Any, to: Any, casting: str = "safe") -> builtins.bool:
    """Return whether another dtype can represent every value of a dtype or of an array's dtype.

    Args:
        casting: NumPy's rules: ``"no"``, ``"equiv"``, ``"safe"``, ``"same_kind"`` or ``"unsafe"``.

    >>> gt.can_cast(gt.int32, gt.float64), gt.can_cast(gt.int64, gt.float32)
    (True, False)
    """
    source, target = dtype_of(from_), dtype_of(to)
    if casting not in ("no", "equiv", "safe", "same_kind", "unsafe"):
        raise ArgumentError(message("can_cast", "a rule of NumPy's", repr(casting), 'Such as "safe".'))
    if source is target:
        return True
    if source not in BIT_DTYPES and target not in BIT_DTYPES:
        return numpy.can_cast(LONG[source], LONG[target], casting)  # type: ignore[arg-type]
    wider = {torch.float32, torch.float64} | ({torch.float16, torch.bfloat16} if source in FLOAT8 else set())
    if source is torch.float8_e8m0fnu:
        wider.discard(torch.float16)  # float16 has fewer exponent bits
    exact = {torch.bool, torch.int8, torch.uint8} if target is torch.bfloat16 else set()
    if (source in BIT_DTYPES and target in wider) or source in exact:
        return casting in ("safe", "same_kind", "unsafe")
    return casting == "unsafe" or (casting == "same_kind" and target in FLOATS | FLOAT8)
