"""The dtypes of arrays as users see them: each equals torch's and NumPy's dtype, and the name.

Inside the package, dtypes are torch's own: `Array.aval.dtype` and the results of `as_dtype`.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import numpy
import torch
from torch import dtype as TorchDtype  # noqa: N812 - a class, in spite of its name

from gtrace.core.base.config import config
from gtrace.core.base.errors import DtypeError, message

__all__ = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float8_e4m3fn", "float8_e5m2",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip

DTYPES: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f8e4m3fn": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "f8e4m3fnuz": torch.float8_e4m3fnuz,
    "f8e5m2fnuz": torch.float8_e5m2fnuz,
    "f8e8m0fnu": torch.float8_e8m0fnu,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
"""Short name of each supported dtype, as in the text of programs."""

SHORT: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}
LONG: dict[torch.dtype, str] = {dtype: str(dtype).removeprefix("torch.") for dtype in SHORT}
"""The name of each supported dtype, such as "float32"."""

FLOAT0 = numpy.dtype([("float0", numpy.void, 0)])
"""The dtype of tangents and cotangents of integers, which have no values. JAX uses a NumPy dtype of this name."""
FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""The real floating dtypes that are computed with."""

FLOAT8 = frozenset(dtype for name, dtype in DTYPES.items() if name.startswith("f8"))
"""Dtypes for storage only: their elements are moved and converted, but not computed with."""

COMPLEX = frozenset({torch.complex64, torch.complex128})
"""The complex dtypes."""

INEXACT = FLOATS | FLOAT8 | COMPLEX
"""The differentiable dtypes: real and complex floating ones."""

_LARGEST_ROUNDED = 464.0
"""The largest number that float8_e4m3fn rounds to its own largest, 448: a tie, which goes to the even number."""


def converted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in a dtype. What float8_e4m3fn cannot hold becomes NaN, as in JAX; torch returns 448."""
    if dtype is torch.float8_e4m3fn and x.dtype is not dtype:
        x = x if x.dtype in FLOATS else x.float()
        x = torch.where(x.abs() <= _LARGEST_ROUNDED, x, math.nan)
    return x.to(dtype)


def number_held(value: Any, dtype: torch.dtype) -> Any:
    """Return a Python number, or NaN if `converted` would return that."""
    return math.nan if dtype is torch.float8_e4m3fn and not abs(value) <= _LARGEST_ROUNDED else value


BIT_DTYPES = {torch.bfloat16: torch.int16} | dict.fromkeys(FLOAT8, torch.uint8)
"""Dtypes that NumPy lacks, with integers of the same width."""

WIDE_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
"""Dtypes for which torch has few kernels."""

UNSIGNED = WIDE_UNSIGNED | {torch.uint8}
"""The unsigned integer dtypes."""

_NAMES = (*__all__,)

_NUMPYS = re.compile(r"[<>=|]?(?!a\d*$)[A-Za-z]\w*|\?")
"""The form of NumPy's names of single dtypes. ``a`` is an old name of texts, of which NumPy warns."""

WITHOUT_TORCH = (
    "int1", "uint1", "int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn",
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz",
)  # fmt: skip
"""Names of dtypes that ml_dtypes has and torch lacks.

The functions of `gtrace.jax` that take dtypes, such as `promote_types` and `iinfo`, accept them. No Array has one.
"""


_OF_NUMPY = frozenset(
    "alignment base byteorder char descr fields flags hasobject isalignedstruct isbuiltin isnative metadata names ndim"
    " newbyteorder num shape str subdtype".split()
)
"""Further attributes of NumPy's dtypes."""


class DType:
    """A dtype of arrays. It equals the dtypes of torch and NumPy with this name, and the name itself.

    A call with data makes an array, as with NumPy's scalar types. NumPy's functions accept it as a dtype. For torch's
    functions, pass its attribute `torch`.

    Attributes:
        torch: torch's dtype. Dtypes that torch lacks, such as int4, raise a DtypeError instead.
        name: a name such as ``"float32"``.
        itemsize: bytes of an element.
        kind: NumPy's letter: ``"b"``, ``"i"``, ``"u"``, ``"f"`` (also for bfloat16 and float8) or ``"c"``.
        is_floating_point, is_complex, is_signed: as in torch.
        char, num, str, byteorder, names, ...: as in NumPy.

    >>> import numpy, torch
    >>> x = gt.ones(2)
    >>> x.dtype == numpy.float32, x.dtype == torch.float32, x.dtype == "float32"
    (True, True, True)
    >>> numpy.zeros(2, x.dtype), torch.zeros(2, dtype=x.dtype.torch)
    (array([0., 0.], dtype=float32), tensor([0., 0.]))
    >>> gt.float64(2)
    Array(2., dtype=float64)
    """

    __slots__ = ("torch", "name", "itemsize", "kind", "is_floating_point", "is_complex", "is_signed", "_numpy_hash")

    torch: TorchDtype
    name: str
    itemsize: int
    kind: str
    is_floating_point: Any
    is_complex: Any
    is_signed: Any
    _numpy_hash: int | None

    def __new__(cls, dtype: Any) -> DType:
        """Return the dtype for a dtype of torch or NumPy, a Python type, or a name.

        Raises:
            DtypeError: there is no such dtype.
        """
        found = _find(dtype)
        if found is None:
            number = isinstance(dtype, int)
            fix = "A shape is one tuple: gt.ones((2, 3))." if number else "Use a supported dtype."
            raise DtypeError(message("dtype", f"one of {', '.join(_NAMES)}", _shown(dtype), fix))
        return found

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """NumPy's dtype. NumPy's functions read it, so they accept this object as a dtype.

        Raises:
            DtypeError: NumPy has no such dtype: bfloat16 and float8, unless ml_dtypes is imported.
        """
        try:
            return numpy.dtype(self.name)
        except TypeError:
            fix = "Use float32 for NumPy arrays, or import ml_dtypes."
            raise DtypeError(message("dtype", "a dtype that NumPy has", self.name, fix)) from None

    @property
    def type(self) -> Any:
        """NumPy's scalar class."""
        return self.dtype.type

    @property
    def numpy_type(self) -> Any:
        """NumPy's scalar class, or this object if NumPy has none."""
        return self.type if _in_numpy(self.name) else self

    def __getattr__(self, name: str) -> Any:
        if name in _OF_NUMPY:
            return getattr(self.dtype, name)
        if name == "torch":
            fix = "Use the next wider one."
            raise DtypeError(message("dtype", "a dtype that torch has", self.name, fix))
        raise AttributeError(f"a dtype of gtrace has no attribute {name!r}", name=name, obj=self)

    def __eq__(self, other: object) -> Any:
        if other.__class__ is DType:
            return self is other
        if isinstance(other, torch.dtype):
            return self is BY_TORCH.get(other)
        if isinstance(other, (str, type, numpy.dtype)):
            # anything can be compared: what is no dtype differs, and 8 counts bytes in these two, as in NumPy
            other = {"i8": "int64", "u8": "uint64"}.get(other, other) if type(other) is str else other
            try:
                return self is _find(other)
            except DtypeError:
                return False
        return NotImplemented

    def __hash__(self) -> int:
        # so that tables by torch's dtypes find it; with JAX's results, tables by NumPy's, which JAX's arrays have
        if not config.current.jax_results:
            return hash(self.name) if self.name in WITHOUT_TORCH else hash(self.torch)
        if self._numpy_hash is None:
            own = self.name if self.name in WITHOUT_TORCH else self.torch
            self._numpy_hash = hash(self.dtype if _in_numpy(self.name) else own)
        return self._numpy_hash

    def __repr__(self) -> str:
        if not config.current.jax_results:
            return f"gtrace.{self.name}"
        return f"dtype({self.name})" if _of_ml_dtypes(self.name) else f"dtype({self.name!r})"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return DType, (self.name,)


def _in_numpy(name: str) -> Any:
    """Whether NumPy has a dtype of this name. It has bfloat16 and float8 once ml_dtypes is imported."""
    return not _of_ml_dtypes(name) or "ml_dtypes" in sys.modules


def _of_ml_dtypes(name: str) -> Any:
    """Whether NumPy has the dtype of this name from ml_dtypes alone."""
    return name in WITHOUT_TORCH or name.startswith(("bfloat", "float8"))


def _shown(dtype: Any) -> str:
    return dtype.__name__ if isinstance(dtype, type) else repr(dtype)


def _define(name: str) -> DType:
    found = object.__new__(DType)
    found.name = name
    found._numpy_hash = None
    if name in WITHOUT_TORCH:
        found.itemsize, found.is_complex = 1, False
        found.is_floating_point, found.is_signed = name.startswith("float"), not name.startswith("uint")
        found.kind = name[0]
        return found
    found.torch = getattr(torch, name)
    found.itemsize = found.torch.itemsize
    floating, complex_ = found.torch.is_floating_point, found.torch.is_complex
    found.is_floating_point, found.is_complex, found.is_signed = floating, complex_, found.torch.is_signed
    found.kind = "b" if name == "bool" else "f" if floating else "c" if complex_ else name[0]
    return found


_BY_NAME = {name: _define(name) for name in (*_NAMES, *WITHOUT_TORCH)}
BY_TORCH = {_BY_NAME[name].torch: _BY_NAME[name] for name in _NAMES}
"""The dtype object of each of torch's dtypes."""

_SHORT = {"bf16": "bfloat16"} | {
    f"{letter}{bits}": f"{word}{bits}"
    for letter, word in (("u", "uint"), ("i", "int"), ("f", "float"), ("c", "complex"))
    for bits in (8, 16, 32, 64, 128)
    if f"{word}{bits}" in _BY_NAME
}
_PYTHON: dict[Any, str] = {bool: "bool", int: "int64", float: "float32", complex: "complex64"}
_ABSTRACT = (
    numpy.generic, numpy.number, numpy.integer, numpy.signedinteger, numpy.unsignedinteger, numpy.inexact,
    numpy.floating, numpy.complexfloating,
)  # fmt: skip


def _find(dtype: Any) -> DType | None:
    """Return the dtype of a name or object; None if there is none."""
    if dtype.__class__ is DType:
        return dtype
    if isinstance(dtype, torch.dtype):
        return BY_TORCH.get(dtype)
    if dtype is None:
        return None
    if isinstance(dtype, str):
        if dtype in ("i8", "u8"):
            name = "int" if dtype == "i8" else "uint"
            got = f"{dtype!r}, which is {name}64 to NumPy and {name}8 in programs' texts"
            raise DtypeError(message("dtype", "an unambiguous name", got, "Write the name in full."))
        # names as in the text of programs (f32, i64), or NumPy's names, which count bytes (f4)
        name = _SHORT.get(dtype, dtype.removeprefix("torch.").removeprefix("gtrace."))
        if name in _BY_NAME:
            return _BY_NAME[name]
        if _NUMPYS.fullmatch(dtype) is None:
            return None
    elif isinstance(dtype, type):
        own = getattr(dtype, "dtype", None) if dtype.__class__ is not type else None
        if own.__class__ is DType:  # a scalar class, such as jax.numpy.float32
            return own
        if dtype in _PYTHON:
            return _BY_NAME[_PYTHON[dtype]]
        if not issubclass(dtype, numpy.generic):
            return None
        if dtype in _ABSTRACT:
            fix = "Use gt.numpy.issubdtype(x.dtype, ...) to ask for a class of dtypes."
            raise DtypeError(message("dtype", "one dtype", f"all of numpy.{dtype.__name__}", fix))
    try:
        return _BY_NAME.get(numpy.dtype(dtype).name)
    except TypeError:
        return None


# fmt: off
(
    bool, uint8, uint16, uint32, uint64, int8, int16, int32, int64, float8_e4m3fn, float8_e5m2,  # noqa: A001
    float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu, float16, bfloat16, float32, float64,
    complex64, complex128,
) = [_BY_NAME[name] for name in __all__]
# fmt: on
