"""Comparisons of arrays, and questions about arrays and dtypes, under NumPy's names."""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.dtypes import BIT_DTYPES, LONG, WITHOUT_TORCH, DType
from gtrace.core.base.errors import ArgumentError, DtypeError, message
from gtrace.core.ops.key_arrays import KeyType
from gtrace.core.ops.operands import promote_arrays
from gtrace.core.ops.shape import normalize_axes
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift, python_scalar
from gtrace.core.trace.promotion import as_dtype

__all__ = [
    "allclose", "array_equal", "array_equiv", "isclose", "isneginf", "isposinf", "isscalar", "issubdtype", "ndim",
    "promote_types", "shape", "size",
]  # fmt: skip


def isclose(x: Any, y: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Array:
    """Return where |x - y| <= atol + rtol * |y|; infinities are close to equal ones.

    >>> gnp.isclose(gnp.array([1., 2.]), gnp.array([1.000001, 2.1]))
    Array([ True, False], dtype=bool)
    """
    x, y = promote_arrays("isclose", x, y, floating=True)
    near = ops.absolute(ops.subtract(x, y)) <= ops.absolute(y) * rtol + atol
    out = ops.where(ops.logical_and(ops.isfinite(x), ops.isfinite(y)), near, ops.equal(x, y))
    return ops.logical_or(out, ops.logical_and(ops.isnan(x), ops.isnan(y))) if equal_nan else out


def allclose(x: Any, y: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Array:
    """Return whether all elements are close, as in `isclose`.

    >>> gnp.allclose(gnp.array([1., 2.]), gnp.array([1.000001, 2.]))
    Array(True, dtype=bool)
    """
    return ops.all(isclose(x, y, rtol, atol, equal_nan))


def array_equal(x: Any, y: Any, equal_nan: bool = False) -> Array:
    """Return whether two arrays (or lists) have one shape and equal elements.

    >>> gnp.array_equal(gnp.array([1, 2]), [1, 2])
    Array(True, dtype=bool)
    """
    x, y = promote_arrays("array_equal", ops.array(x), ops.array(y))
    if x.shape != y.shape:
        return ops.full((), False)
    same = ops.equal(x, y)
    if equal_nan and x.aval.floating:
        same = ops.logical_or(same, ops.logical_and(ops.isnan(x), ops.isnan(y)))
    return ops.all(same)


def array_equiv(x: Any, y: Any) -> Array:
    """Return whether two arrays (or lists) broadcast to one shape with equal elements.

    >>> gnp.array_equiv(gnp.array([1, 1]), 1)
    Array(True, dtype=bool)
    """
    x, y = promote_arrays("array_equiv", ops.array(x), ops.array(y))
    try:
        sizes = numpy.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return ops.full((), False)
    return ops.all(ops.equal(ops.broadcast_to(x, sizes), ops.broadcast_to(y, sizes)))


def isposinf(x: Any) -> Array:
    """Return where x is positive infinity.

    Raises:
        DtypeError: complex numbers.

    >>> gnp.isposinf(gnp.array([gnp.inf, -gnp.inf]))
    Array([ True, False], dtype=bool)
    """
    return _equals("isposinf", x, math.inf)


def isneginf(x: Any) -> Array:
    """Return where x is negative infinity.

    Raises:
        DtypeError: complex numbers.

    >>> gnp.isneginf(gnp.array([gnp.inf, -gnp.inf]))
    Array([False,  True], dtype=bool)
    """
    return _equals("isneginf", x, -math.inf)


def _equals(op: str, x: Any, value: float) -> Array:
    x = lift(op, x)
    if x.aval.complex:
        raise DtypeError(message(op, "real numbers", repr(x.aval), "Use gtrace.numpy.isinf."))
    return ops.equal(x, value) if x.aval.floating else ops.full(x.shape, False, device=x.aval.device)


def isscalar(x: Any) -> bool:
    """Return whether x is a number, or an array without dimensions.

    >>> gnp.isscalar(2.5), gnp.isscalar(gnp.ones(1))
    (True, False)
    """
    return x.ndim == 0 if isinstance(x, (Array, torch.Tensor)) else bool(numpy.isscalar(x))


def ndim(x: Any) -> int:
    """Return the number of dimensions of an array, a number or nested lists.

    >>> gnp.ndim(gnp.ones((2, 3)))
    2
    """
    return len(shape(x))


def shape(x: Any) -> tuple[int, ...]:
    """Return the sizes of the dimensions of an array, a number or nested lists; those of None are none, as in NumPy.

    >>> gnp.shape(gnp.ones((2, 3)))
    (2, 3)
    """
    if x is None:
        return ()
    return tuple(x.shape) if hasattr(x, "shape") else ops.array(x).shape


def size(x: Any, axis: Any = None) -> int:
    """Return the number of elements, or that along `axis`, an int or several.

    >>> gnp.size(gnp.ones((2, 3))), gnp.size(gnp.ones((2, 3)), 1)
    (6, 3)
    """
    sizes = shape(x)
    return math.prod(sizes[k] for k in normalize_axes("size", axis, len(sizes)))


def _abstract(x: Any) -> type:
    """Return a dtype, or a class of dtypes, as a NumPy class of scalars; bfloat16, float8 and int4 have their own."""
    if x is None:
        return numpy.float64  # as NumPy reads it
    if isinstance(x, KeyType):
        return x.type
    if isinstance(x, type) and issubclass(x, numpy.generic):
        return _CLASSES.get(x.__name__, x)
    if isinstance(x, numpy.dtype) or x is object:
        name = numpy.dtype(x).name
        return _CLASSES.get(name) or numpy.dtype(x).type
    name = DType(x).name
    return _CLASSES.get(name) or numpy.dtype(name).type


_PARENTS = {"f": numpy.floating, "i": numpy.signedinteger, "u": numpy.unsignedinteger}
_CLASSES: dict[str, type] = {
    name: type(name, (_PARENTS[DType(name).kind],), {})
    for name in (*[LONG[dtype] for dtype in BIT_DTYPES], *WITHOUT_TORCH)
}
"""The places of bfloat16, float8 and the dtypes that torch lacks among NumPy's classes of scalars."""


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Return whether a dtype is another one, or belongs to a class of dtypes, such as ``gtrace.numpy.floating``.

    >>> gnp.issubdtype(gnp.bfloat16, gnp.floating), gnp.issubdtype(gnp.int32, gnp.int64)
    (True, False)
    """
    return issubclass(_abstract(arg1), _abstract(arg2))


def promote_types(a: Any, b: Any) -> DType:
    """Return the dtype that two dtypes are promoted to.

    >>> gnp.promote_types(gnp.int32, gnp.float16)
    gtrace.float16
    """
    if python_scalar(a) is not None or python_scalar(b) is not None:
        raise ArgumentError(message("promote_types", "two dtypes", f"{a!r} and {b!r}", "Use result_type for numbers."))
    return ops.result_type(as_dtype(a), as_dtype(b))
