"""Bits packed into bytes, and places and order that NumPy has names for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, DtypeError, message
from gtrace.core.ops.draw_functions import nextafter
from gtrace.core.ops.join_split import slice_axis
from gtrace.core.ops.operands import cast, promote
from gtrace.core.ops.shape import normalize_axis
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.trace.promotion import as_dtype, float_of
from gtrace.numpy.selection import lexsort

__all__ = ["mask_indices", "packbits", "sort_complex", "spacing", "unpackbits"]


def _order(bitorder: str) -> numpy.ndarray[Any, Any]:
    if bitorder not in ("big", "little"):
        raise ArgumentError(message("packbits", "big or little as bitorder", repr(bitorder), "Pass one of them."))
    places = numpy.arange(8)
    return places[::-1].copy() if bitorder == "big" else places


def packbits(a: Any, axis: int | None = None, bitorder: str = "big") -> Array:
    """Return bytes that hold the truth of eight elements each, along `axis` or of all; the last is filled with zeros.

    >>> gnp.packbits(gnp.array([1, 0, 0, 0, 0, 0, 1, 1, 1]))
    Array([131, 128], dtype=uint8)
    """
    x = lift("packbits", a)
    if x.aval.floating:
        raise DtypeError(message("packbits", "integers or booleans", repr(x.aval), "Compare first."))
    weights = ops.array(1 << _order(bitorder), as_dtype("int32"), device=x.aval.device)
    x = ops.ravel(x) if axis is None else x
    place = normalize_axis("packbits", 0 if axis is None else axis, x.ndim)
    bits = ops.moveaxis(cast(ops.not_equal(x, 0), as_dtype("int32")), place, -1)
    missing = -bits.shape[-1] % 8
    if missing:
        bits = ops.concat([bits, ops.zeros((*bits.shape[:-1], missing), bits.aval.dtype, device=x.aval.device)], -1)
    eights = ops.reshape(bits, (*bits.shape[:-1], bits.shape[-1] // 8, 8))
    return ops.moveaxis(cast(ops.sum(eights * weights, -1), as_dtype("uint8")), -1, place)


def unpackbits(a: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Array:
    """Return the bits of bytes, along `axis` or of all; `count` of them, or all but that many if it is negative.

    >>> gnp.unpackbits(gnp.array([131], dtype="uint8"))
    Array([1, 0, 0, 0, 0, 0, 1, 1], dtype=uint8)
    """
    x = lift("unpackbits", a)
    if x.aval.dtype is not as_dtype("uint8"):
        raise DtypeError(message("unpackbits", "uint8", repr(x.aval), "Convert it."))
    x = ops.ravel(x) if axis is None else x
    place = normalize_axis("unpackbits", 0 if axis is None else axis, x.ndim)
    wide = cast(ops.moveaxis(x, place, -1), as_dtype("int32"))
    bits = ops.bitwise_and(
        ops.bitwise_right_shift(wide[..., None], ops.array(_order(bitorder), as_dtype("int32"), device=x.aval.device)),
        1,
    )
    flat = ops.reshape(bits, (*wide.shape[:-1], wide.shape[-1] * 8))
    size = flat.shape[-1]
    if count is not None:
        kept = count if count >= 0 else max(size + count, 0)
        if kept > size:
            more = ops.zeros((*flat.shape[:-1], kept - size), flat.aval.dtype, device=x.aval.device)
            flat = ops.concat([flat, more], -1)
        else:
            flat = slice_axis(flat, flat.ndim - 1, 0, kept)
    return ops.moveaxis(cast(flat, as_dtype("uint8")), -1, place)


def spacing(x: Any) -> Array:
    """Return the distance to the next number of larger magnitude, with the sign of x.

    Of float16 it is the distance to the next larger number, as in NumPy.

    >>> gnp.spacing(gnp.array(1.))
    Array(1.1920929e-07, dtype=float32)
    """
    (x,) = promote("spacing", lift("spacing", x), floating=True)
    if x.aval.dtype is torch.float16:
        return ops.subtract(nextafter(x, numpy.inf), x)
    return ops.subtract(nextafter(x, x + numpy.inf * (2 * (x >= 0) - 1)), x)


def sort_complex(a: Any) -> Array:
    """Return the elements along the last axis as complex numbers, ordered by their real, then their imaginary parts.

    >>> gnp.sort_complex(gnp.array([2., 1.]))
    Array([1.+0.j, 2.+0.j], dtype=complex64)
    """
    x = lift("sort_complex", a)
    if not x.aval.complex:
        kind = x.aval.dtype if x.aval.floating else float_of(x.aval.dtype)
        x = cast(x, torch.promote_types(kind, torch.complex64))
    return ops.take_along_axis(x, lexsort((ops.imag(x), ops.real(x))), -1)


def mask_indices(n: int, mask_func: Callable[..., Any], k: Any = 0, *, size: int | None = None) -> tuple[Array, ...]:
    """Return the places of an (n, n) matrix that `mask_func`, such as ``gnp.triu``, keeps.

    >>> gnp.mask_indices(2, gnp.triu)[1]
    Array([0, 1, 1], dtype=int64)
    """
    return ops.nonzero(mask_func(ops.ones((n, n)), k), size=size)
