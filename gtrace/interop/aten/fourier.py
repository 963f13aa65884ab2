"""Fourier transforms without tracing; see `handwritten_layers`.

As in JAX, cotangents of complex values are not conjugated: the cotangent of a linear function is its transpose. Let
W = exp(-2 pi i / n). R2C computes the sums of x[j] W**(j k) for k from 0 to n / 2. C2R computes the real parts of the
sums of w[k] z[k] W**(-j k). Here w[k] is 1 for k = 0 and k = n / 2, and 2 for the others, to count conjugates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import constant
from gtrace.core.trace.array import Array
from gtrace.interop.aten.overloads import OPERAND
from gtrace.interop.aten.translate import call_aten

C2C, R2C, C2R = "aten._fft_c2c.default", "aten._fft_r2c.default", "aten._fft_c2r.default"

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {wide: one for one, wide in _COMPLEX.items()}
_NAMES = {f"{i}{r}fft{n}": (bool(i), bool(r)) for i in ("", "i") for r in ("", "r") for n in ("", "2", "n")}
"""Whether each transform is inverse, and whether it omits the conjugate half."""

_SCALES = {"backward": (0, 2), "ortho": (1, 1), "forward": (2, 0)}
"""torch's scaling by norm: for forward and inverse transforms."""


def transform(name: str, x: Array, sizes: Any, axes: Any, norm: str) -> Array | None:
    """Return a transform of `numpy.fft` by name; None if no rule applies.

    Args:
        sizes: the sizes of the transformed axes: one, several, or None for those of x.
        axes: one or several; None: all.
    """
    kind = x.aval.dtype
    inverse, halved = _NAMES.get(name, (None, False))
    if inverse is None or (kind not in _COMPLEX and (kind not in _REAL or (halved and not inverse))):
        return None
    places = range(x.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    if any(type(k) is not int or not -x.ndim <= k < x.ndim for k in places):
        return None
    dims = tuple(k % x.ndim for k in places)
    if not dims or len(set(dims)) < len(dims) or not x.size:
        return None
    last = x.shape[dims[-1]]
    present = [x.shape[k] for k in dims]
    if inverse and halved:
        present[-1] = 2 * (last - 1)
    given = list(present) if sizes is None else [sizes] if isinstance(sizes, int) else list(sizes)
    if inverse and halved and len(given) == len(present) and type(given[-1]) is int and given[-1] // 2 + 1 == last:
        present[-1] = given[-1]
    if given != present or min(present) < 1:
        return None
    scale = _SCALES[norm][inverse]
    if halved and not inverse:
        return _call(R2C, x, dims, scale, True)
    if kind in _COMPLEX and not halved and len(dims) == 1:
        found = _call(R2C, x, dims, scale, False)
        return ops.conj(found) if inverse else found
    x = cast(x, _COMPLEX.get(kind, kind))
    return _call(C2R, x, dims, scale, present[-1]) if halved else _call(C2C, x, dims, scale, not inverse)


def _call(overload: str, x: Array, *args: Any) -> Array:
    if not x.size:  # torch's library rejects empty batches
        empty = TYPES[overload]([x.aval], (OPERAND, *args))
        assert empty is not None
        return constant(0, empty)
    found: Array = call_aten(overload, (OPERAND, *args), [x])
    return found


def _interior_times(x: Array, n: int, axis: int, factor: float) -> Array:
    """Return half of a spectrum of n elements, after scaling those that also stand for a conjugate."""
    k = ops.arange(x.shape[axis], device=x.aval.device).reshape([-1 if at == axis else 1 for at in range(x.ndim)])
    return ops.where(ops.logical_or(ops.equal(k, 0), ops.equal(k * 2, n)), x, x * factor)


def _c2c_pullback(
    ct: Array, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    """Return the cotangent of the operand: the same transform."""
    return [_call(C2C, ct, *args[1:])]


def _r2c_pullback(
    ct: Array, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    """Return the cotangent of real elements: the real parts of the transform of a possible half."""
    _, dims, scale, halved = args
    (x,) = operands
    if not halved:
        return [ops.real(_call(C2C, ct, dims, scale, True))]
    n = x.shape[dims[-1]]
    return [_call(C2R, ops.conj(_interior_times(ct, n, dims[-1], 0.5)), dims, scale, n)]


def _c2r_pullback(
    ct: Array, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None]:
    """Return the cotangent of half a spectrum."""
    _, dims, scale, n = args
    return [_interior_times(ops.conj(_call(R2C, ct, dims, scale, True)), n, dims[-1], 2.0)]


def _tangent(
    tangents: Sequence[Array | None], operands: Sequence[Array], out: Array, overload: str, args: tuple[Any, ...]
) -> Array | None:
    (tangent,) = tangents
    return None if tangent is None else _call(overload, tangent, *args[1:])  # it is linear


def _of_batch(overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]) -> Any:
    (x,) = operands
    dims = tuple(k % (x.ndim - 1) + 1 for k in args[1])
    return _call(overload, x, dims, *args[2:])


def _type_of_c2c(avals: Sequence[Aval], args: tuple[Any, ...]) -> Aval:
    return avals[0]


def _type_of_r2c(avals: Sequence[Aval], args: tuple[Any, ...]) -> Aval | None:
    (x,) = avals
    if x.dtype not in _COMPLEX:
        return None
    return aval(_with(x.shape, args[1][-1], lambda n: n // 2 + 1 if args[3] else n), _COMPLEX[x.dtype], x.device)


def _type_of_c2r(avals: Sequence[Aval], args: tuple[Any, ...]) -> Aval | None:
    (x,) = avals
    if x.dtype not in _REAL:
        return None
    return aval(_with(x.shape, args[1][-1], lambda n: args[3]), _REAL[x.dtype], x.device)


def _with(shape: tuple[int, ...], axis: int, size: Callable[[int], int]) -> tuple[int, ...]:
    return tuple(size(n) if k == axis % len(shape) else n for k, n in enumerate(shape))


TYPES = {C2C: _type_of_c2c, R2C: _type_of_r2c, C2R: _type_of_c2r}
PULLBACKS = {C2C: _c2c_pullback, R2C: _r2c_pullback, C2R: _c2r_pullback}
TANGENTS = dict.fromkeys(TYPES, _tangent)
BATCHES = dict.fromkeys(TYPES, _of_batch)
