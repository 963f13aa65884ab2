"""Values in generated C++: one number for all elements, or elements in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy
import torch

from gtrace.core.base.dtypes import SHORT
from gtrace.core.base.errors import CompileError
from gtrace.core.ir.aval import Aval, aval, contiguous_strides
from gtrace.core.ir.graph import Scalar


class UnsupportedLoopError(CompileError):
    """The generator cannot express a program; the text says which part."""


C_TYPES: dict[torch.dtype, str] = {
    torch.bool: "bool", torch.uint8: "uint8_t", torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int32_t",
    torch.int64: "int64_t", torch.uint32: "uint32_t", torch.float32: "float", torch.float64: "double",
}  # fmt: skip

SHORT_FLOATS: dict[torch.dtype, str] = {torch.float16: "half", torch.bfloat16: "bfloat"}
"""Types in memory alone: all is computed in float, and rounded after each operation, as in torch."""


def c_type(dtype: torch.dtype) -> str:
    """Return the C++ type in which elements of a dtype are computed; raise an UnsupportedLoopError if there is none."""
    if dtype in SHORT_FLOATS:
        return "float"
    found = C_TYPES.get(dtype)
    if found is None:
        raise UnsupportedLoopError(f"there is no C++ type for {SHORT[dtype]}")
    return found


def memory_type(dtype: torch.dtype) -> str:
    """Return the C++ type of elements of a dtype in memory; see `c_type`."""
    return SHORT_FLOATS.get(dtype) or c_type(dtype)


def widened(a: Aval) -> Aval:
    """Return the type in which operations compute that do so for float16 and bfloat16 as a whole."""
    return aval(a.shape, torch.float32, a.device) if a.dtype in SHORT_FLOATS else a


def kind_of(dtype: torch.dtype) -> str:
    """Return "b" for booleans, "i" for integers, "f" for floats, "u" for uint32, which is only moved and converted."""
    return "b" if dtype is torch.bool else "f" if dtype.is_floating_point else "u" if dtype is torch.uint32 else "i"


@attrs.frozen
class Uniform:
    """A value whose elements are all the same number.

    Attributes:
        text: the C++ expression, cheap and without effects: a variable or a literal.
    """

    text: str


@attrs.frozen
class View:
    """A value in memory.

    Attributes:
        base: the C++ variable that points to it.
        strides: in elements, one an axis.
        offset: a C++ expression, in elements; empty: none.
    """

    base: str
    strides: tuple[int, ...]
    offset: str = ""

    def at(self, *offsets: str) -> str:
        """Return the C++ of the element at the sum of some offsets."""
        return f"{self.base}[{self.moved(*offsets) or '0'}]"

    def pointer(self, *offsets: str) -> str:
        """Return the C++ of the address of that element."""
        return f"{self.base} + {self.moved(*offsets) or '0'}"

    def moved(self, *offsets: str | int) -> str:
        """Return the offset of this view with further ones added."""
        return plus(self.offset, *offsets)


def plus(*terms: str | int) -> str:
    """Return the C++ of a sum of offsets; empty ones and zeros are left out."""
    return " + ".join(str(term) for term in terms if term)


Value = Uniform | View


def dense(base: str, a: Aval, offset: str = "") -> View:
    """Return a view of elements in row-major order."""
    return View(base, contiguous_strides(a.shape), offset)


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie in row-major order without gaps."""
    return all(n == 1 or s == t for n, s, t in zip(shape, strides, contiguous_strides(tuple(shape)), strict=True))


def literal(scalar: Scalar) -> str:
    """Return the C++ of a number, of exactly the value that torch gives it in its dtype."""
    dtype = scalar.aval.dtype
    own = c_type(dtype)
    value = torch.tensor(scalar.value, dtype=dtype).item()
    if dtype is torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return f"{own}({value}LL)" if value > -(2**63) else "std::numeric_limits<int64_t>::min()"
    if math.isnan(value):
        return f"std::numeric_limits<{own}>::quiet_NaN()"
    if math.isinf(value):
        return f"{'-' * (value < 0)}std::numeric_limits<{own}>::infinity()"
    digits = repr(float(numpy.float32(value)) if dtype is torch.float32 else value)
    return f"{own}({digits})"


def collapse(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Merge axes that all views run through in one stride; return sizes, none 1, and the strides of each."""
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        if sizes and all(own[-1] == given[axis] * n for own, given in zip(steps, strides, strict=True)):
            sizes[-1] *= n
            for own, given in zip(steps, strides, strict=True):
                own[-1] = given[axis]
        else:
            sizes.append(n)
            for own, given in zip(steps, strides, strict=True):
                own.append(given[axis])
    return sizes, steps


def spread(a: Aval, strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a value broadcast to a shape: 0 along the axes that it lacks."""
    lead = len(shape) - len(a.shape)
    return (*[0] * lead, *[0 if n == 1 else s for n, s in zip(a.shape, strides, strict=True)])
